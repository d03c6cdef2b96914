package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/utils"
	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/host/atomicfile"
)

// Record is what is kept of a sandbox's networks, in <dir>/sandboxes/<container ID>/record.json.
type Record struct {
	Sandbox string      `json:"sandbox"` // the runtime's ID of it
	NetNS   string      `json:"netns"`
	Pod     Pod         `json:"pod"`
	Args    [][2]string `json:"args,omitempty"` // CNI_ARGS
	// Boot is the boot of the machine in which it was made: its namespace ends with that.
	Boot string `json:"boot"`
	// Runtime is the process that asked for it.
	Runtime Process   `json:"runtime"`
	Began   time.Time `json:"began"`
	// Whole says that all networks were attached and the runtime has been told so.
	Whole       bool         `json:"whole"`
	Attachments []Attachment `json:"attachments"`
}

// Pod is the pod of a sandbox, as the runtime named it.
type Pod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
}

// Process is a process that can be told from a later one with its number.
type Process struct {
	PID   int    `json:"pid"`
	Start string `json:"start"` // in clock ticks since the boot: field 22 of /proc/PID/stat
}

// Attachment is one network of a sandbox.
type Attachment struct {
	Network string `json:"network"`
	IfName  string `json:"ifName"`
	// Label is how the pod's annotation names the network, as NAMESPACE/NAME; empty for the node's own network.
	Label string `json:"label,omitempty"`
	// Config is the network's configuration at the time of ADD.
	Config       json.RawMessage `json:"config"`
	Capabilities map[string]any  `json:"capabilities,omitempty"`
	// Result is the last plugin's, in the configuration's version; empty before all plugins have run.
	Result json.RawMessage `json:"result,omitempty"`
	Calls  []Call          `json:"calls,omitempty"`
}

const recordFile = "record.json"

// store keeps records, one directory each.
type store struct{ dir string }

func (s store) path(sandbox string) string { return filepath.Join(s.dir, sandbox) }

// lock makes the sandbox's directory and takes it for oneself: the agent, and plugins that work without it, may want
// the same sandbox at a time. The kernel gives the lock back when the process ends, however it ends.
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
			continue // removed by the one before us
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

// read gives a sandbox's record, nil if there is none. A record that cannot be read is set aside and counts as none:
// the files that libcni keeps beside it say the most of it as well.
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

// write replaces a sandbox's record; a reader sees the old or the new one, whole.
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

// remove forgets a sandbox. The caller holds its lock.
func (s store) remove(sandbox string) error { return os.RemoveAll(s.path(sandbox)) }

// list gives the IDs of all sandboxes with a directory.
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

// all reads all records that can be read.
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

// BootID names this boot of the machine.
func BootID() string {
	b, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b))
}

// processOf describes a running process; the zero value if there is none.
func processOf(pid int) Process {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Process{}
	}
	after := string(b)[strings.LastIndexByte(string(b), ')')+1:] // the name before it may hold anything
	fields := strings.Fields(after)
	if len(fields) < 20 {
		return Process{}
	}
	return Process{PID: pid, Start: fields[19]}
}

// alive says whether the process still runs.
func (p Process) alive() bool { return p.PID > 0 && processOf(p.PID) == p }

// isNamespace says whether a network namespace is at the path.
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
