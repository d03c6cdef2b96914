package reference_test

import (
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/nodelet/nodelet/test/reference"
)

func files(t *testing.T) []reference.File {
	t.Helper()
	table, err := os.ReadFile("testdata/files.txt")
	if err != nil {
		t.Fatal(err)
	}
	all, err := reference.Files(string(table))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestFilesAreInTheSource checks that the source has the last part of each path in the table that is not a placeholder.
func TestFilesAreInTheSource(t *testing.T) {
	literals, _ := productReasons(t)
	all := strings.Join(slices.Collect(maps.Keys(literals)), "\n")
	for _, f := range files(t) {
		name := f.Path
		for strings.ToUpper(path.Base(name)) == path.Base(name) {
			name = path.Dir(name)
		}
		if name = strings.TrimSuffix(path.Base(name), "-current.pem"); !strings.Contains(all, name) {
			t.Errorf("%s: no string in the source has %s", f.Path, name)
		}
	}
}
