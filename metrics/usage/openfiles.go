package usage

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// OpenFiles are the open files of the processes in a cgroup.
type OpenFiles struct {
	// Files has all of them, Sockets those that are sockets.
	Files, Sockets uint64
	// Soft is the limit of open files of one of the processes; -1 for none. HasSoft reports whether it was read.
	Soft    float64
	HasSoft bool
}

// openFiles counts the open files of the processes in the cgroup itself. A process that ends meanwhile has none.
func (h *Hierarchy) openFiles(cgroup string) (o OpenFiles) {
	_ = withFile(filepath.Join(h.dir(h.walked(), cgroup), "cgroup.procs"), func(text []byte) {
		for pid := range bytes.Lines(text) {
			o.add(filepath.Join("/proc", string(bytes.TrimSpace(pid))))
		}
	})
	return o
}

// add counts the open files of the process that a directory of /proc describes.
func (o *OpenFiles) add(process string) {
	dir, err := os.Open(filepath.Join(process, "fd"))
	if err != nil {
		return
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1) // what was read before an error counts
	o.Files += uint64(len(names))
	for _, name := range names {
		if target, err := os.Readlink(filepath.Join(process, "fd", name)); err == nil && strings.HasPrefix(target, "socket") {
			o.Sockets++
		}
	}
	if !o.HasSoft {
		_ = withFile(filepath.Join(process, "limits"), func(text []byte) { o.Soft, o.HasSoft = softLimit(text) })
	}
}

// softLimit returns the soft limit of open files in /proc/PID/limits.
func softLimit(limits []byte) (limit float64, ok bool) {
	for line := range bytes.Lines(limits) {
		rest, found := strings.CutPrefix(string(line), "Max open files")
		if !found {
			continue
		}
		fields := strings.Fields(rest)
		if len(fields) == 0 {
			return 0, false
		}
		if fields[0] == "unlimited" {
			return -1, true
		}
		limit, err := strconv.ParseFloat(fields[0], 64)
		return limit, err == nil
	}
	return 0, false
}
