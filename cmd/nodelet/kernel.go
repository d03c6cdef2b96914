package main

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/nodelet/nodelet/config"
	"github.com/nodelet/nodelet/host/kernel"
)

// errCgroupV1 is the error on a machine with cgroup v1 that the configuration refuses.
var errCgroupV1 = errors.New("the machine has cgroup v1, and failCgroupV1 is true: " +
	"boot it with cgroup v2, or set failCgroupV1: false")

// prepareKernel gives the kernel the settings that pods rely on, or refuses a machine that the configuration does not
// allow. dir has the kernel's settings, swaps is its list of swap devices.
func prepareKernel(k config.Kernel, dir, swaps string, log *slog.Logger) error {
	if k.RefuseSwapOn && kernel.SwapOn(swaps) {
		return errors.New("swap is on, and failSwapOn is true: turn it off with swapoff -a, or set failSwapOn: false")
	}
	if !k.Protect {
		kernel.Apply(dir, log)
		return nil
	}
	if err := kernel.Check(dir); err != nil {
		return fmt.Errorf("check the kernel's settings (set them in /etc/sysctl.d, or set protectKernelDefaults: false): %w",
			err)
	}
	return nil
}
