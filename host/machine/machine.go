// Package machine reads what the kernel and the operating system say about the machine: its identity, its memory and
// its processes.
//
// It reads files below /proc, /sys and /etc, and never writes. It decides nothing. All packages that report these facts
// or mark records with the boot may call it. Package topology reads how CPUs and memory are connected. A crash leaves
// nothing behind.
package machine

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Identity identifies the machine, its boot and its software. A part that is missing is empty.
type Identity struct{ MachineID, SystemUUID, BootID, Kernel, OSImage string }

// bootIDFile is where the kernel identifies this boot, below the root.
const bootIDFile = "proc/sys/kernel/random/boot_id"

// ReadIdentity reads the identity below root, which is "/" outside tests. The fallbacks are those of the kubelet.
func ReadIdentity(root string) Identity {
	at := func(path string) string { return filepath.Join(root, path) }
	return Identity{
		MachineID: firstLine(at("etc/machine-id"), at("var/lib/dbus/machine-id")),
		SystemUUID: firstLine(at("sys/class/dmi/id/product_uuid"), at("proc/device-tree/system-id"),
			at("proc/device-tree/vm,uuid"), at("etc/machine-id")),
		BootID:  firstLine(at(bootIDFile)),
		Kernel:  firstLine(at("proc/sys/kernel/osrelease")),
		OSImage: osImage(at("etc/os-release"), at("usr/lib/os-release")),
	}
}

// boot is what BootID has read.
var boot atomic.Pointer[string]

// BootID identifies this boot of the machine.
func BootID() (string, error) {
	if id := boot.Load(); id != nil {
		return *id, nil
	}
	text, err := os.ReadFile("/" + bootIDFile)
	if err != nil {
		return "", fmt.Errorf("read the boot ID: %w", err)
	}
	id := strings.TrimSpace(string(text))
	boot.Store(&id)
	return id, nil
}

// Uptime returns how long the machine has run since its boot, without the time that it was suspended. The clock of that
// cannot be set.
func Uptime() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // cannot fail for this clock
	return time.Duration(t.Nano())
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
