package node

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Machine has the facts of the hardware and the operating system, from the kernel and files of the system.
type Machine struct {
	CPUs      int             // the number of CPUs that are online
	Memory    int64           // bytes
	Swap      int64           // bytes; 0 without swap
	HugePages map[int64]int64 // page size in bytes → pages
	// These fields go to status.nodeInfo of the Node object.
	MachineID, SystemUUID, BootID, Kernel, OSImage string
}

// readMachine reads /proc, /sys and /etc below root, which is "/" outside tests. It returns an error if it cannot find
// the CPUs or the memory. An identity that is missing stays empty.
func readMachine(root string) (Machine, error) {
	var m Machine
	at := func(path string) string { return filepath.Join(root, path) }
	online, err := os.ReadFile(at("sys/devices/system/cpu/online"))
	if err != nil {
		return m, fmt.Errorf("read the list of CPUs: %w", err)
	}
	if m.CPUs, err = countCPUs(strings.TrimSpace(string(online))); err != nil {
		return m, fmt.Errorf("read the list of CPUs: %w", err)
	}
	memory, err := os.ReadFile(at("proc/meminfo"))
	if err != nil {
		return m, fmt.Errorf("read the size of memory: %w", err)
	}
	if m.Memory, m.Swap, err = parseMeminfo(memory); err != nil {
		return m, fmt.Errorf("read the size of memory: %w", err)
	}
	if m.HugePages, err = readHugePages(at("sys/kernel/mm/hugepages")); err != nil {
		return m, fmt.Errorf("read huge pages: %w", err)
	}
	m.MachineID = firstLine(at("etc/machine-id"), at("var/lib/dbus/machine-id"))
	m.SystemUUID = firstLine(at("sys/class/dmi/id/product_uuid"), at("proc/device-tree/system-id"),
		at("proc/device-tree/vm,uuid"), at("etc/machine-id"))
	m.BootID = firstLine(at("proc/sys/kernel/random/boot_id"))
	m.Kernel = firstLine(at("proc/sys/kernel/osrelease"))
	m.OSImage = osImage(at("etc/os-release"), at("usr/lib/os-release"))
	return m, nil
}

// countCPUs returns the number of CPUs in a list such as "0-3,8".
func countCPUs(list string) (int, error) {
	n := 0
	for part := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(part, "-")
		low, err := strconv.ParseUint(first, 10, 16)
		high := low
		if err == nil && isRange {
			high, err = strconv.ParseUint(last, 10, 16)
		}
		if err != nil || high < low {
			return 0, fmt.Errorf("%q is not a list of CPUs", list)
		}
		n += int(high-low) + 1
	}
	return n, nil
}

// parseMeminfo returns the bytes of memory and of swap.
func parseMeminfo(text []byte) (memory, swap int64, err error) {
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		f := strings.Fields(lines.Text())
		if len(f) < 2 || f[0] != "MemTotal:" && f[0] != "SwapTotal:" {
			continue
		}
		kb, err := strconv.ParseUint(f[1], 10, 53)
		if err != nil {
			return 0, 0, fmt.Errorf("%s is %q", f[0], f[1])
		}
		if f[0] == "MemTotal:" {
			memory = int64(kb) << 10
		} else {
			swap = int64(kb) << 10
		}
	}
	if memory == 0 {
		return 0, 0, errors.New("there is no MemTotal")
	}
	return memory, swap, nil
}

// readHugePages reads the directories below dir, which have names such as hugepages-2048kB. A kernel without huge pages
// has none. The result maps the page size in bytes to the number of pages.
func readHugePages(dir string) (map[int64]int64, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	pages := map[int64]int64{}
	for _, e := range entries {
		kb, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimPrefix(e.Name(), "hugepages-"), "kB"), 10, 43)
		if err != nil {
			continue // not a directory of a page size
		}
		n, err := strconv.ParseUint(firstLine(filepath.Join(dir, e.Name(), "nr_hugepages")), 10, 43)
		if err != nil {
			return nil, fmt.Errorf("read nr_hugepages of %s: %w", e.Name(), err)
		}
		pages[int64(kb)<<10] = int64(n)
	}
	return pages, nil
}

// firstLine returns the first line of the first file that can be read, or "".
func firstLine(files ...string) string {
	for _, f := range files {
		if text, err := os.ReadFile(f); err == nil {
			line, _, _ := strings.Cut(string(bytes.TrimRight(text, "\x00")), "\n")
			return strings.TrimSpace(line)
		}
	}
	return ""
}

// osImage returns PRETTY_NAME of the first os-release file that can be read.
func osImage(files ...string) string {
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			if name, ok := strings.CutPrefix(strings.TrimSpace(line), "PRETTY_NAME="); ok {
				return strings.Trim(name, `"'`)
			}
		}
	}
	return "Linux"
}

// diskSize returns the bytes of the file system that holds dir.
func diskSize(dir string) (int64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, fmt.Errorf("read the size of the file system of %s: %w", dir, err)
	}
	return int64(s.Blocks) * int64(s.Bsize), nil // Bsize has 32 bits on s390x
}
