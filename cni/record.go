package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/containernetworking/cni/pkg/utils"
	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/host/atomicfile"
	"github.com/nodelet/nodelet/host/machine"
)

// Record describes the networks of a sandbox; it is kept in <dir>/sandboxes/<container ID>/record.json.
type Record struct {
	Sandbox string      `json:"sandbox"` // the ID in the runtime
	NetNS   string      `json:"netns"`
	Pod     Pod         `json:"pod"`
	Args    [][2]string `json:"args,omitempty"` // CNI_ARGS
	// Boot identifies the boot of the machine: namespaces do not survive a reboot.
	Boot string `json:"boot"`
	// Runtime is the process that requested ADD.
	Runtime Process `json:"runtime"`
	// Began is when ADD began, and Uptime how long the machine had run then; see machine.Uptime.
	Began  time.Time     `json:"began"`
	Uptime time.Duration `json:"uptime"` // ns
	// Whole is set after all networks were attached.
	Whole       bool         `json:"whole"`
	Attachments []Attachment `json:"attachments"`
}

// Pod is the pod of a sandbox, according to the runtime.
type Pod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
}

// Process identifies a process, also after its number was reused.
type Process struct {
	PID   int    `json:"pid"`
	Start string `json:"start"` // in clock ticks since the boot: field 22 of /proc/PID/stat
}

// Attachment is one network of a sandbox.
type Attachment struct {
	Network string `json:"network"`
	IfName  string `json:"ifName"`
	// Label is the network's name in the pod's annotation, NAMESPACE/NAME; empty for the node's own network.
	Label string `json:"label,omitempty"`
	// Config is the network's configuration at the time of ADD.
	Config       json.RawMessage `json:"config"`
	Capabilities map[string]any  `json:"capabilities,omitempty"`
	// Result is that of the last plugin, in the version of the configuration; empty before all plugins have run.
	Result json.RawMessage `json:"result,omitempty"`
	Calls  []Call          `json:"calls,omitempty"`
}

const recordFile = "record.json"

// store keeps records, one directory each.
type store struct{ dir string }

func (s store) path(sandbox string) string { return filepath.Join(s.dir, sandbox) }

// addresses is the directory, beside that of the records, in which host-local keeps the addresses of the generated
// network. No other program uses it.
func (s store) addresses() string { return filepath.Join(filepath.Dir(s.dir), addressesDir) }

// lock creates the sandbox's directory and locks it: the agent and a plugin that works without it may handle the same
// sandbox at the same time. The kernel releases the lock when the process ends.
func (s store) lock(sandbox string) (unlock func(), err error) {
	if err := utils.ValidateContainerID(sandbox); err != nil {
		return nil, fmt.Errorf("sandbox %q: %w", sandbox, err)
	}
	for {
		if err := os.MkdirAll(s.path(sandbox), 0o700); err != nil {
			return nil, fmt.Errorf("make directory for the record of sandbox %s: %w", sandbox, err)
		}
		f, err := os.Open(s.path(sandbox))
		if errors.Is(err, fs.ErrNotExist) {
			continue // the previous holder has removed it
		}
		if err != nil {
			return nil, err
		}
		if err := flock(f); err != nil {
			f.Close()
			return nil, fmt.Errorf("lock the record of sandbox %s: %w", sandbox, err)
		}
		if now, err := os.Stat(s.path(sandbox)); err == nil {
			if mine, err := f.Stat(); err == nil && os.SameFile(now, mine) {
				return func() { f.Close() }, nil
			}
		}
		f.Close()
	}
}

func flock(f *os.File) error {
	for {
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// open locks a sandbox and returns its record, nil if there is none.
func (s store) open(sandbox string) (rec *Record, unlock func(), err error) {
	if unlock, err = s.lock(sandbox); err != nil {
		return nil, nil, err
	}
	if rec, err = s.read(sandbox); err != nil {
		unlock()
		return nil, nil, err
	}
	return rec, unlock, nil
}

// read returns the record of a sandbox, nil if there is none. An invalid record is renamed and counts as none: the
// cache of libcni beside it has most of it.
func (s store) read(sandbox string) (*Record, error) {
	path := filepath.Join(s.path(sandbox), recordFile)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the record of sandbox %s: %w", sandbox, err)
	}
	r := &Record{}
	if err := json.Unmarshal(text, r); err != nil || r.Sandbox != sandbox {
		return nil, os.Rename(path, path+".bad")
	}
	return r, nil
}

// write replaces the record of a sandbox atomically.
func (s store) write(r *Record) error {
	text, err := json.Marshal(r)
	if err == nil {
		err = atomicfile.Write(filepath.Join(s.path(r.Sandbox), recordFile), text, 0o600)
	}
	if err != nil {
		return fmt.Errorf("write the record of sandbox %s: %w", r.Sandbox, err)
	}
	return nil
}

// remove removes the record of a sandbox. The caller holds its lock.
func (s store) remove(sandbox string) error { return os.RemoveAll(s.path(sandbox)) }

// removeEmpty removes the directory of a sandbox if it holds no more than an unfinished record and no call uses it: a
// call could neither write the record nor remove the directory. It reports whether the directory is gone.
func (s store) removeEmpty(sandbox string) bool {
	f, err := os.Open(s.path(sandbox))
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	defer f.Close()
	// A call that waits for this lock sees that the directory has gone, and makes another.
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		return false
	}
	if rec, err := s.read(sandbox); rec != nil || err != nil {
		return false
	}
	_ = atomicfile.Remove(filepath.Join(s.path(sandbox), recordFile)) // if it cannot be removed, neither can the directory
	return unix.Rmdir(s.path(sandbox)) == nil
}

// list returns the IDs of all sandboxes with a directory.
func (s store) list() ([]string, error) {
	entries, err := os.ReadDir(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the records of sandboxes: %w", err)
	}
	var all []string
	for _, e := range entries {
		if e.IsDir() {
			all = append(all, e.Name())
		}
	}
	return all, nil
}

// all returns all valid records.
func (s store) all() ([]*Record, error) {
	ids, err := s.list()
	var records []*Record
	for _, id := range ids {
		if r, err := s.read(id); err == nil && r != nil {
			records = append(records, r)
		}
	}
	return records, err
}

// bootID identifies this boot of the machine; it is empty as long as that cannot be read.
func bootID() string {
	id, _ := machine.BootID()
	return id
}

// ofPod reports whether a container runtime has attached a pod. Other programs, such as ctr, cnitool and podman, name
// no namespace of a pod.
func (r *Record) ofPod() bool { return r.Pod.Namespace != "" }

// ofOtherBoot reports whether a record is of an earlier boot. Without an identity it is unknown.
func (r *Record) ofOtherBoot() bool {
	now := bootID()
	return r.Boot != now && r.Boot != "" && now != ""
}

// age returns how long ago the ADD of this boot began. The shorter time counts: the time of day may have been set
// forward meanwhile, and it goes on while the machine is suspended, but ADD does not.
func (r *Record) age() time.Duration { return min(time.Since(r.Began), machine.Uptime()-r.Uptime) }

// processOf identifies a running process; it is the zero value if there is none, or if it cannot be read.
func processOf(pid int) Process {
	p, _ := readProcess(pid)
	return p
}

func readProcess(pid int) (Process, error) {
	start, err := machine.ProcessStat(pid, 22)
	if err != nil {
		return Process{}, err
	}
	return Process{PID: pid, Start: start}, nil
}

// gone reports whether the process does not run any more. If its state cannot be read, it may run; so may a process
// that was not found when the record was made.
func (p Process) gone() bool {
	if p.PID <= 0 {
		return false
	}
	now, err := readProcess(p.PID)
	if err != nil {
		return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH)
	}
	return now != p
}

// isNamespace reports whether path is a network namespace.
func isNamespace(path string) bool {
	if path == "" {
		return false
	}
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return false
	}
	return st.Type == unix.NSFS_MAGIC || st.Type == unix.PROC_SUPER_MAGIC
}
