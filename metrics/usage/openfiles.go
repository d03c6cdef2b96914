package usage

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// maxOpenFiles is how many open files of a cgroup are looked at. A process may have a million, and each costs a system
// call.
const maxOpenFiles = 1 << 16

// OpenFiles are the open files of the processes in a cgroup.
type OpenFiles struct {
	// Files has all of them, Sockets those that are sockets.
	Files, Sockets count
	// Soft is the limit of open files of one of the processes; -1 for none. HasSoft reports whether it was read.
	Soft    float64
	HasSoft bool
	// left is how many more files may be looked at.
	left int
}

// count is a number of files, unless it is unknown because there are too many.
type count struct {
	n       uint64
	unknown bool
}

// openFiles counts the open files of the processes in the cgroup itself. It looks at most at so many. A process that
// ends meanwhile has none.
func (h *Hierarchy) openFiles(cgroup string, most int) *OpenFiles {
	o := &OpenFiles{left: most}
	withFile(filepath.Join(h.dir(walked, cgroup), "cgroup.procs"), func(text []byte) {
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
	files, all := o.look(dir)
	if !all {
		counted := uint64(0)
		if st, err := dir.Stat(); err == nil {
			counted = uint64(st.Size()) // since Linux 6.2 the number of files, before that 0
		}
		files = max(files, counted)
		o.Sockets.unknown = true
		o.Files.unknown = o.Files.unknown || counted == 0
	}
	o.Files.n += files
	if !o.HasSoft {
		withFile(filepath.Join(process, "limits"), func(text []byte) { o.Soft, o.HasSoft = softLimit(text) })
	}
}

// look looks at the open files of a process until there are no more, or none may be looked at any more. It returns how
// many it has seen, and whether these are all.
func (o *OpenFiles) look(dir *os.File) (files uint64, all bool) {
	var target [len("socket")]byte
	for o.left > 0 {
		names, err := dir.Readdirnames(min(o.left, walkChunk))
		for _, name := range names {
			n, _ := unix.Readlinkat(int(dir.Fd()), name, target[:])
			if n == len(target) && string(target[:]) == "socket" {
				o.Sockets.n++
			}
		}
		files += uint64(len(names))
		o.left -= len(names)
		if err != nil {
			return files, true // the end, or the process has ended
		}
	}
	return files, false
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
