package plugins

import (
	"log/slog"
	"os"

	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/host/kernel"
)

// MakeDir makes a directory that plugins use. Where SELinux is on, containers without privileges may use it too.
func MakeDir(dir string, log *slog.Logger) error {
	err := os.MkdirAll(dir, 0o750)
	if err != nil || !kernel.SELinux() {
		return err
	}
	if err := label(dir); err != nil {
		log.Warn("cannot set the SELinux label of a directory of plugins; plugins without privileges may not work",
			"dir", dir, "err", err)
	}
	return nil
}

// label gives a directory the SELinux label of what containers share, as the kubelet does.
func label(dir string) error {
	return unix.Setxattr(dir, "security.selinux", []byte("system_u:object_r:container_file_t:s0"), 0)
}
