package names

import (
	"strconv"
	"strings"
)

// pageUnits are the units in which the kernel names page sizes, the largest first. It takes the first that fits.
var pageUnits = [...]struct {
	suffix string
	bytes  int64
}{{"GB", 1 << 30}, {"MB", 1 << 20}, {"KB", 1 << 10}}

// PageSize returns the name of a size of huge pages, in bytes, in the files of the hugetlb controller: 2MB in
// hugetlb.2MB.max.
func PageSize(size int64) string {
	for _, u := range pageUnits {
		if size >= u.bytes {
			return strconv.FormatInt(size/u.bytes, 10) + u.suffix
		}
	}
	return strconv.FormatInt(size, 10)
}

// ParsePageSize reads a name that PageSize returns, and reports whether it is one.
func ParsePageSize(name string) (size int64, ok bool) {
	for _, u := range pageUnits {
		if number, found := strings.CutSuffix(name, u.suffix); found {
			n, err := strconv.ParseInt(number, 10, 64)
			return n * u.bytes, err == nil
		}
	}
	return 0, false
}
