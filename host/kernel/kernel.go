// Package kernel sets and checks the settings of the machine's kernel that pods rely on. It also says whether SELinux
// is on.
//
// It never touches the settings of pods (their sysctls) or of the network. Command nodelet calls Prepare once, at the
// start; agent/nodefacts and plugins ask for SELinux. What it sets stays until the next boot, as with the kubelet.
package kernel

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// setting is a kernel setting with the value that it must have.
type setting struct {
	name string // as sysctl names it
	want int
}

// settings are those of the kubelet.
func settings() []setting {
	return []setting{
		{"vm.overcommit_memory", 1}, // pods may reserve more memory than there is; limits bound what they use
		{"vm.panic_on_oom", 0},      // the OOM killer ends a process
		{"kernel.panic", 10},        // reboot ten seconds after a panic …
		{"kernel.panic_on_oops", 1}, // … and panic on an oops, since the kernel is damaged after it
		{"kernel.keys.root_maxkeys", 1_000_000},
		{"kernel.keys.root_maxbytes", 25_000_000},
	}
}

func (s setting) file(dir string) string {
	return filepath.Join(dir, filepath.FromSlash(strings.ReplaceAll(s.name, ".", "/")))
}

func (s setting) read(dir string) (int, error) {
	text, err := os.ReadFile(s.file(dir))
	if err != nil {
		return 0, fmt.Errorf("read kernel setting %s: %w", s.name, err)
	}
	got, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, fmt.Errorf("read kernel setting %s: %w", s.name, err)
	}
	return got, nil
}

// apply gives the settings in dir the values that they must have. What cannot be set, as in a container without the
// right to do so, is logged.
func apply(dir string, log *slog.Logger) {
	for _, s := range settings() {
		got, err := s.read(dir)
		if err == nil && got == s.want {
			continue
		}
		if err == nil {
			err = os.WriteFile(s.file(dir), []byte(strconv.Itoa(s.want)), 0)
		}
		if err != nil {
			log.Warn("cannot change a kernel setting, set it in /etc/sysctl.d", "setting", s.name, "want", s.want, "err", err)
			continue
		}
		log.Info("kernel setting changed", "setting", s.name, "from", got, "to", s.want)
	}
}

// Config says what the machine's kernel has to be like.
type Config struct {
	// Protect: the kernel's settings are not changed; wrong ones are an error.
	Protect bool
	// RefuseSwap: it is an error that swap is on.
	RefuseSwap bool
	Log        *slog.Logger
}

// Prepare gives the machine's kernel the settings that pods rely on, or refuses a machine that the configuration does
// not allow.
func Prepare(c Config) error { return c.prepare("/proc/sys", "/proc/swaps") }

// prepare is Prepare with the directory of the kernel's settings and its list of swap devices.
func (c Config) prepare(dir, swaps string) error {
	if c.RefuseSwap && swapOn(swaps) {
		return errors.New("swap is on, and failSwapOn is true: turn it off with swapoff -a, or set failSwapOn: false")
	}
	if !c.Protect {
		apply(dir, c.Log)
		return nil
	}
	if err := Check(dir); err != nil {
		return fmt.Errorf("check the kernel's settings (set them in /etc/sysctl.d, or set protectKernelDefaults: false): %w",
			err)
	}
	return nil
}

// Check returns an error that names the settings in dir, which is /proc/sys, whose values are wrong; nil if there are
// none.
func Check(dir string) error {
	var wrong []error
	for _, s := range settings() {
		got, err := s.read(dir)
		if err == nil && got != s.want {
			err = fmt.Errorf("kernel setting %s is %d, want %d", s.name, got, s.want)
		}
		wrong = append(wrong, err)
	}
	return errors.Join(wrong...)
}

// swapOn reports whether the machine swaps, by the kernel's list of swap devices.
func swapOn(file string) bool {
	text, err := os.ReadFile(file)
	if err != nil {
		return false // the kernel was built without swap
	}
	return strings.Count(strings.TrimSpace(string(text)), "\n") > 0 // below the heading
}
