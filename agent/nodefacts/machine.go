package nodefacts

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/agent/spec"
)

// swapBytes returns the size of the machine's swap, 0 if the kernel does not say.
func swapBytes() int64 {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return 0
	}
	return int64(info.Totalswap) * int64(info.Unit)
}

// thermalThrottlePaths returns the files about the throttling of CPUs: a side channel that containers must not see.
func thermalThrottlePaths() []string {
	all, _ := filepath.Glob("/sys/devices/system/cpu/cpu[0-9]*/thermal_throttle") // fails for a bad pattern only
	return all
}

// appArmorEnabled reports whether the kernel enforces AppArmor profiles.
func appArmorEnabled() bool {
	enabled, _ := os.ReadFile("/sys/module/apparmor/parameters/enabled")
	return bytes.HasPrefix(enabled, []byte("Y"))
}

// selinuxFileLabel returns the label of container files. As for the runtime, the file of the package container-selinux
// has precedence over that of the policy. The file config in the directory policies names the policy, whose directory
// is beside it.
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
