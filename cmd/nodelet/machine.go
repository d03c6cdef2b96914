package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/agent/spec"
	"github.com/nodelet/nodelet/config"
)

// machine is what pods' configurations need to know of the kernel; it stays as it is while the agent runs.
type machine struct {
	cgroupV2       bool
	swapController bool  // the kernel bounds swap by cgroup
	swap           int64 // bytes of swap
	selinux        bool
	appArmor       bool
	// thermalThrottle are the files that tell of the CPUs' throttling, a side channel that containers must not see.
	thermalThrottle []string
}

// lookAtMachine asks the kernel. What cannot be read is not there.
func lookAtMachine(cgroupV2, swapController bool) machine {
	m := machine{cgroupV2: cgroupV2, swapController: swapController, selinux: selinuxEnabled()}
	enabled, _ := os.ReadFile("/sys/module/apparmor/parameters/enabled")
	m.appArmor = bytes.HasPrefix(enabled, []byte("Y"))
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		m.swap = int64(info.Totalswap) * int64(info.Unit)
	}
	m.thermalThrottle, _ = filepath.Glob("/sys/devices/system/cpu/cpu[0-9]*/thermal_throttle") // the pattern is a good one
	return m
}

// selinuxEnabled: the kernel enforces or watches SELinux labels; its file system is mounted then.
func selinuxEnabled() bool {
	var fs unix.Statfs_t
	return unix.Statfs("/sys/fs/selinux", &fs) == nil && fs.Type == unix.SELINUX_MAGIC
}

// selinuxFileLabel is the label of containers' files. As for the runtime, the file of the package container-selinux has
// the first word, then the policy that the file config in a directory names; it has a directory of its own beside that
// file.
func selinuxFileLabel(contexts, policies string) (string, error) {
	text, err := os.ReadFile(contexts)
	if errors.Is(err, os.ErrNotExist) {
		text, err = policyContexts(policies)
	}
	if err != nil {
		return "", err
	}
	return spec.ParseSELinuxContexts(text)
}

func policyContexts(dir string) ([]byte, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	config, err := root.ReadFile("config")
	if err != nil {
		return nil, err
	}
	return root.ReadFile(filepath.Join(spec.SELinuxPolicy(config), "contexts", "lxc_contexts"))
}

// memoryQoS are the settings of the gate MemoryQoS (KEP-2570), nil where it is off.
func memoryQoS(c *config.Config) *spec.MemoryQoS {
	if !c.Gate("MemoryQoS") {
		return nil
	}
	return &spec.MemoryQoS{PageSize: int64(os.Getpagesize()), ThrottlingFactor: *c.Kubelet.MemoryThrottlingFactor,
		Tiered: c.Kubelet.MemoryReservationPolicy == "TieredReservation"}
}

// pidsOfMachine is how many processes and threads the kernel lets be at a time; 0 where it does not tell.
func pidsOfMachine() int64 {
	least := int64(0)
	for _, file := range []string{"/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"} {
		text, _ := os.ReadFile(file)
		n, err := strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64)
		if err == nil && (least == 0 || n < least) {
			least = n
		}
	}
	return least
}
