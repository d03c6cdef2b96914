package testbed

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// foundProc is a process found in /proc.
type foundProc struct {
	Proc
	exe string
	// ours is whether the process belongs to the testbed, so that Down kills it. Others only run in one of its
	// namespaces.
	ours bool
}

// processes lists the running processes that provably belong to the testbed:
// - the root file system is that of a container of this testbed: the upper directory of its overlay is below the
// testbed's, or
//   - the cgroup is below the testbed's, or
//   - the network namespace is the testbed's and the program is one that testbeds start.
func (n names) processes(s state) ([]foundProc, error) {
	all, err := n.inside(s)
	return slices.DeleteFunc(all, func(p foundProc) bool { return !p.ours }), err
}

// inside lists the processes that belong to the testbed or run in one of its network namespaces.
func (n names) inside(s state) ([]foundProc, error) {
	namespaces, err := n.netnsInodes()
	if err != nil {
		return nil, err
	}
	cache, err := OpenCache(nil)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var found []foundProc
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		start, err := startTime(pid)
		if err != nil {
			continue // has exited
		}
		p := foundProc{Proc: Proc{PID: pid, Start: start}}
		p.exe, err = os.Readlink(procFile(pid, "exe"))
		if err != nil {
			continue // a kernel thread or a zombie
		}
		inNetns := slices.Contains(namespaces, netnsInode(procFile(pid, "ns/net")))
		started := below(p.exe, cache.dir) || s.Options.NodeletBin != "" && p.exe == s.Options.NodeletBin
		p.ours = inNetns && started || n.contained(pid)
		if p.ours || inNetns {
			found = append(found, p)
		}
	}
	return found, nil
}

// contained reports whether the process is in a cgroup of the testbed or has the root file system of one of its
// containers.
func (n names) contained(pid int) bool {
	b, _ := os.ReadFile(procFile(pid, "cgroup"))
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) == 3 && (below(f[2], n.cgroup()) || below(f[2], n.slice())) {
			return true
		}
	}
	b, _ = os.ReadFile(procFile(pid, "mountinfo"))
	for line := range bytes.Lines(b) {
		// ID, parent, device, root, mount point: other processes see the mount as well, but not as their root.
		if f := bytes.Fields(line); len(f) > 4 && string(f[4]) == "/" {
			return bytes.Contains(line, []byte("upperdir="+n.dir()+"/"))
		}
	}
	return false
}

func procFile(pid int, name string) string { return filepath.Join("/proc", strconv.Itoa(pid), name) }

func (n names) netnsInodes() ([]uint64, error) {
	all, err := n.allNetns()
	var inodes []uint64
	for _, ns := range all {
		if i := netnsInode(filepath.Join(netnsDir, ns)); i != 0 {
			inodes = append(inodes, i)
		}
	}
	return inodes, err
}

// netnsInode returns the inode number that identifies a network namespace, or 0 if there is none at the path.
func netnsInode(path string) uint64 {
	fi, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return fi.Sys().(*syscall.Stat_t).Ino
}

// remains lists what is left of the testbed on this machine. Down reports it.
func (n names) remains(s state) ([]string, error) {
	var left []string
	add := func(what string, paths ...string) {
		for _, p := range paths {
			left = append(left, what+" "+p)
		}
	}
	procs, err := n.inside(s)
	for _, p := range procs {
		add("process", fmt.Sprintf("%d (%s)", p.PID, p.exe))
	}
	mounts, err2 := n.mounts()
	add("mount", mounts...)
	spaces, err3 := n.allNetns()
	add("network namespace", spaces...)
	groups, err4 := cgroupDirs(n.cgroup())
	inSlice, err5 := cgroupDirs(n.slice())
	add("cgroup", append(groups, inSlice...)...)
	files, err6 := n.outsideFiles()
	add("file", files...)
	for _, p := range []string{n.dir(), n.runDir(), "/sys/class/net/" + n.hostLink()} {
		if _, err := os.Lstat(p); !errors.Is(err, fs.ErrNotExist) {
			add("path", p)
		}
	}
	return left, errors.Join(err, err2, err3, err4, err5, err6)
}
