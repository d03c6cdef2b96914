package testbed

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// mountNS returns the file that keeps the node's mount namespace, or "" if the node uses that of the machine.
func (n *Node) mountNS() string {
	if !n.tb.opts.OwnMounts {
		return ""
	}
	return filepath.Join(n.dir, "ns", "mnt")
}

// setupMounts creates the node's mount namespace. Its mounts propagate within the namespace, but not to the machine.
// Its /etc has containerd's configuration at the usual path.
func (n *Node) setupMounts(ctx context.Context) error {
	file := n.mountNS()
	if file == "" {
		return nil
	}
	etc, work := filepath.Join(n.dir, "etc"), filepath.Join(n.dir, "etc.work")
	for _, d := range []string{filepath.Dir(file), filepath.Join(etc, "containerd"), work} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	if err := os.Symlink(filepath.Join(n.dir, "containerd.toml"),
		filepath.Join(etc, "containerd/config.toml")); err != nil {
		return err
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		return err
	}
	if err := private(filepath.Dir(file)); err != nil {
		return err
	}
	script := fmt.Sprintf(
		"mount --make-rshared / && mount -t overlay -o lowerdir=/etc,upperdir=%s,workdir=%s overlay /etc",
		etc,
		work,
	)
	_, err := run(ctx, "unshare", "--mount="+file, "--propagation=private", "--", "sh", "-c", script)
	return err
}

// private bind-mounts a directory on itself with private propagation. The kernel allows the file of a mount namespace
// only on a private mount.
func private(dir string) error {
	if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s on itself: %w", dir, err)
	}
	if err := unix.Mount("", dir, "", unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make the mount of %s private: %w", dir, err)
	}
	return nil
}
