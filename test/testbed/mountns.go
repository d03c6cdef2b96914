package testbed

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

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
	return keepMountNS(ctx, file, script)
}

// keepMountNS creates a mount namespace, which the file keeps, and runs a shell script in it. The file of a mount
// namespace can only be mounted in one with a smaller ID. Since Linux 6.18 each CPU takes IDs from a range of its own,
// so unless the caller is in the first mount namespace, the kernel may answer EINVAL. It does not on the CPU that
// created the caller's: so each CPU is tried.
func keepMountNS(ctx context.Context, file, script string) error {
	var cpus unix.CPUSet
	if err := unix.SchedGetaffinity(0, &cpus); err != nil {
		return fmt.Errorf("get the CPUs of this process: %w", err)
	}
	var err error
	for cpu, left := 0, cpus.Count(); left > 0; cpu++ {
		if !cpus.IsSet(cpu) {
			continue
		}
		left--
		if _, err = run(ctx, "taskset", "-c", strconv.Itoa(cpu),
			"unshare", "--mount="+file, "--propagation=private", "--", "sh", "-c", script); err == nil {
			return nil
		}
	}
	return err
}

// The paths that the kubelet knows whatever its configuration says: where device plugins register, and where its
// cAdvisor looks for containerd.
const (
	kubeletPlugins    = "/var/lib/kubelet/device-plugins"
	cadvisorDirectory = "/run/containerd"
)

// CadvisorMount is a shell script that shows the socket $1, unless it is empty, where cAdvisor looks for containerd. It
// is for a mount namespace of its own.
const CadvisorMount = `mkdir -p ` + cadvisorDirectory + `
mount -t tmpfs -o mode=711 tmpfs ` + cadvisorDirectory + `
[ -z "$1" ] || ln -s "$1" ` + cadvisorDirectory + `/containerd.sock
`

// kubeletPaths is a shell script that has these paths lead to the node, for a mount namespace of its own: $0 is the
// node's directory of device plugins, $1 the socket of its containerd or "". It executes the arguments after these.
const kubeletPaths = `set -e
mkdir -p "$0" ` + kubeletPlugins + ` ` + cadvisorDirectory + `
for path in ` + kubeletPlugins + ` ` + cadvisorDirectory + `; do
	mount --make-slave "$(findmnt -nro TARGET -T $path)"
done
mount --bind "$0" ` + kubeletPlugins + `
` + CadvisorMount + `shift
exec "$@"`

// asUsual returns a command that runs the kubelet with kubeletPaths, in the node's mount namespace or a copy of it. The
// root directory becomes a shared mount, by which the runtime sees the kubelet's mounts.
func (n *Node) asUsual(ctx context.Context, argv []string) ([]string, error) {
	const share = `mountpoint -q "$0" || mount --rbind "$0" "$0"; mount --make-shared "$0"`
	if out, err := n.Command(ctx, n.dir, "sh", "-c", share, n.RootDir).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("share the mounts below %s: %w: %s", n.RootDir, err, out)
	}
	socket := ""
	if !n.tb.opts.crio() {
		socket = n.Runtime.socket()
	}
	return append([]string{"unshare", "--mount", "--propagation=unchanged", "--", "sh", "-c", kubeletPaths,
		filepath.Join(n.RootDir, "device-plugins"), socket}, argv...), nil
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
