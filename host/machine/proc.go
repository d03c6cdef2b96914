package machine

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// ParseMeminfo reads lines of /proc/meminfo by their names, in bytes. A value that the kernel does not report keeps
// what it was.
func ParseMeminfo[N int64 | uint64](text []byte, into map[string]*N) error {
	for line := range bytes.Lines(text) {
		name, value, _ := bytes.Cut(line, []byte{':'})
		to, wanted := into[string(name)]
		if !wanted {
			continue
		}
		number := bytes.TrimSpace(bytes.TrimSuffix(bytes.TrimSpace(value), []byte("kB")))
		kib, err := strconv.ParseUint(string(number), 10, 53)
		if err != nil {
			return fmt.Errorf("%s is %q", name, number)
		}
		*to = N(kib) << 10
	}
	return nil
}

// Tasks returns how many processes and threads the machine has, and how many the kernel allows. proc is /proc outside
// tests.
func Tasks(proc string) (running, limit int64, err error) {
	if limit, err = TaskLimit(proc); err != nil {
		return 0, 0, err
	}
	path := filepath.Join(proc, "loadavg")
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, 0, fmt.Errorf("read the number of processes: %w", err)
	}
	fields := strings.Fields(string(text)) // 0.20 0.18 0.12 1/80 11206
	if len(fields) < 4 {
		return 0, 0, fmt.Errorf("read %s: %q has too few fields", path, text)
	}
	_, all, _ := strings.Cut(fields[3], "/")
	n, err := strconv.ParseUint(all, 10, 31)
	if err != nil {
		return 0, 0, fmt.Errorf("read %s: %w", path, err)
	}
	return int64(n), limit, nil
}

// TaskLimit returns how many processes and threads the kernel allows: the smaller of its limits for numbers and for
// threads.
func TaskLimit(proc string) (int64, error) {
	limit := int64(0)
	for _, file := range []string{"pid_max", "threads-max"} {
		path := filepath.Join(proc, "sys/kernel", file)
		text, err := os.ReadFile(path)
		if err != nil {
			return 0, fmt.Errorf("read the limit of processes: %w", err)
		}
		n, err := strconv.ParseUint(string(bytes.TrimSpace(text)), 10, 31)
		if err != nil {
			return 0, fmt.Errorf("read %s: %w", path, err)
		}
		if limit == 0 || int64(n) < limit {
			limit = int64(n)
		}
	}
	return limit, nil
}

// ProcessStat returns a field of /proc/PID/stat by its number in proc(5), from 3 on.
func ProcessStat(pid, field int) (string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", err
	}
	after := text[bytes.LastIndexByte(text, ')')+1:] // field 2, the name, may contain any character
	fields := strings.Fields(string(after))
	if field-3 >= len(fields) {
		return "", fmt.Errorf("%q is not the state of a process", text)
	}
	return fields[field-3], nil
}
