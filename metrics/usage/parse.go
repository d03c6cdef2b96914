package usage

import (
	"bytes"
	"math"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
	api "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// unlimited is the value from which a limit means no limit: the kernel rounds its largest number down to a page.
const unlimited = uint64(1 << 62)

// buffers reuses the buffers into which small files of the kernel are read.
var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 8<<10); return &b }}

// withFile reads a small file of the kernel and passes its text to use, which must not keep it. A file that
// cannot be opened is left out: kernels and controllers differ.
func withFile(path string, use func(text []byte)) {
	// os.Open would register each of thousands of files with the poller.
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	text := (*buf)[:0]
	for {
		if len(text) == cap(text) {
			text = append(text, 0)[:len(text)]
		}
		n, err := unix.Read(fd, text[len(text):cap(text)])
		if err == unix.EINTR {
			continue
		}
		if n <= 0 || err != nil {
			break // reading a cgroup during its removal returns an error: use what was read
		}
		text = text[:len(text)+n]
	}
	*buf = text
	use(text)
}

// readUint reads a file that contains one number. ok is false if the file is missing or contains "max".
func readUint(path string) (v uint64, ok bool) {
	withFile(path, func(text []byte) { v, ok = parseUint(bytes.TrimSpace(text)) })
	return v, ok
}

// readLimit reads a limit. It is unlimited if the file is missing or contains "max".
func readLimit(path string) uint64 {
	if limit, ok := readUint(path); ok {
		return limit
	}
	return unlimited
}

// parseUint reads a decimal number. It returns the largest number for a negative one, which
// means "no limit" in cgroup v1.
func parseUint(text []byte) (uint64, bool) {
	if len(text) > 1 && text[0] == '-' {
		return math.MaxUint64, digits(text[1:])
	}
	if !digits(text) || len(text) > 20 {
		return 0, false
	}
	v, err := strconv.ParseUint(string(text), 10, 64)
	return v, err == nil
}

func digits(text []byte) bool {
	for _, c := range text {
		if c < '0' || c > '9' {
			return false
		}
	}
	return len(text) > 0
}

// readKeyed reads a file such as memory.stat, with a line "key value" for each number, and reports whether it has one
// of these keys.
func readKeyed(path string, into map[string]*uint64) (found bool) {
	withFile(path, func(text []byte) { found = parseKeyed(text, into) })
	return found
}

func parseKeyed(text []byte, into map[string]*uint64) (found bool) {
	for line := range bytes.Lines(text) {
		key, value, _ := bytes.Cut(bytes.TrimSpace(line), []byte{' '})
		if v, ok := parseUint(value); ok && into[string(key)] != nil {
			*into[string(key)] = v
			found = true
		}
	}
	return found
}

// parsePressure reads a PSI file, whose lines are "some avg10=0.00 avg60=0.00 avg300=0.00 total=0". Totals are
// microseconds there, and nanoseconds in the result.
func parsePressure(text []byte) *api.PSIStats {
	p := &api.PSIStats{}
	found := false
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		var into *api.PSIData
		switch fields[0] {
		case "some":
			into = &p.Some
		case "full":
			into = &p.Full
		default:
			continue
		}
		found = true
		for _, field := range fields[1:] {
			key, value, _ := strings.Cut(field, "=")
			switch key {
			case "total":
				total, _ := strconv.ParseUint(value, 10, 64)
				into.Total = total * 1000
			case "avg10":
				into.Avg10 = parseShare(value)
			case "avg60":
				into.Avg60 = parseShare(value)
			case "avg300":
				into.Avg300 = parseShare(value)
			}
		}
	}
	if !found {
		return nil
	}
	return p
}

func parseShare(text string) float64 {
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
		return 0
	}
	return v
}

func readPressure(path string) (p *api.PSIStats) {
	withFile(path, func(text []byte) { p = parsePressure(text) })
	return p
}
