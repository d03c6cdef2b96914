package podfs

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/host/mounts"
)

// ShareMounts makes mounts below dir propagate between the node and its containers, as CSI drivers and pods with
// mountPropagation need it. If dir is not on a shared mount, ShareMounts bind-mounts it on itself, with what is mounted
// below, and makes that mount shared. It is idempotent. The mount stays when the agent ends, like those of the pods.
func ShareMounts(dir string, log *slog.Logger) {
	if err := shareMounts(dir); err != nil {
		log.Warn("root directory is not a shared mount, mountPropagation (needed by CSI drivers) will not work: "+
			"run mount --make-rshared on its file system, and restart the agent", "err", err)
	}
}

func shareMounts(dir string) error {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return err
	}
	on, err := mounts.Of(dir)
	if err != nil {
		return err
	}
	if shared(on) {
		return nil
	}
	if on.Mountpoint != dir {
		if err := bindToItself(dir); err != nil {
			return fmt.Errorf("bind %s to itself: %w", dir, err)
		}
	}
	if err := unix.Mount("", dir, "", unix.MS_SHARED|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("share the mounts below %s: %w", dir, err)
	}
	return nil
}

// bindToItself bind-mounts dir on itself, with copies of what is mounted below. The originals are then hidden, but
// their mount points could not be removed, so they are unmounted. If any is shared they stay: copies would go too.
func bindToItself(dir string) error {
	below, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return err
	}
	under, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer under.Close()
	if err := unix.Mount(dir, dir, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	if slices.ContainsFunc(below, shared) {
		return nil
	}
	for _, m := range slices.Backward(below) {
		hidden := fdPath(under) + strings.TrimPrefix(m.Mountpoint, dir)
		_ = unix.Unmount(hidden, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) // dir can be shared even if one stays
	}
	return nil
}

func shared(m *mountinfo.Info) bool {
	for field := range strings.FieldsSeq(m.Optional) {
		if strings.HasPrefix(field, "shared:") {
			return true
		}
	}
	return false
}
