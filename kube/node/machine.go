package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/nodelet/nodelet/host/machine"
	"github.com/nodelet/nodelet/host/topology"
)

// Machine has the facts of the hardware and the operating system, from the kernel and files of the system.
type Machine struct {
	CPUs      int               // the number of CPUs that are online
	Memory    int64             // bytes
	Swap      int64             // bytes; 0 without swap
	HugePages map[uint64]uint64 // page size → all pages of this size, both in bytes
	// UserNamespace is whether this process has other user IDs than the machine.
	UserNamespace bool
	machine.Identity
}

// readMachine reads /proc, /sys and /etc below root, which is "/" outside tests. It returns an error if it cannot find
// the CPUs or the memory. An identity that is missing stays empty.
func readMachine(root string) (Machine, error) {
	m := Machine{Identity: machine.ReadIdentity(root)}
	files := os.DirFS(root)
	online, err := topology.Online(files)
	if err != nil {
		return m, fmt.Errorf("read the list of CPUs: %w", err)
	}
	if m.CPUs = online.Size(); m.CPUs == 0 {
		return m, errors.New("the kernel reports no CPU that is online")
	}
	memory, err := fs.ReadFile(files, "proc/meminfo")
	if err == nil {
		err = machine.ParseMeminfo(memory, map[string]*int64{"MemTotal": &m.Memory, "SwapTotal": &m.Swap})
	}
	if err != nil {
		return m, fmt.Errorf("read the size of memory: %w", err)
	}
	if m.Memory == 0 {
		return m, errors.New("read the size of memory: there is no MemTotal")
	}
	if m.HugePages, err = topology.HugePages(files, "sys/kernel/mm/hugepages"); err != nil {
		return m, fmt.Errorf("read huge pages: %w", err)
	}
	// Without the file, the kernel has no user namespaces.
	if ids, err := fs.ReadFile(files, "proc/self/uid_map"); err == nil {
		m.UserNamespace = !slices.Equal(strings.Fields(string(ids)), []string{"0", "0", "4294967295"})
	}
	return m, nil
}
