package podfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/host/beneath"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// maxDepth bounds the open descriptors while a tree is walked. No path of the kernel's maximum length is deeper.
const maxDepth = 2048

// groupOwner applies securityContext.fsGroup of the pod to a volume, as the kubelet does: everything gets this group,
// the group may read (and write and enter), and new files inherit the group.
type groupOwner struct {
	gid      *int64 // nil: nothing to do
	readOnly bool   // containers only read the volume: no write bit for the group
	skip     bool   // fsGroupChangePolicy OnRootMismatch: leave the tree alone if its root is right
	log      *slog.Logger
	refused  *error // of the first file that cannot be changed or read; set by apply
}

func (v *FS) ownerOf(pod *corev1.Pod, readOnly bool) groupOwner {
	sc := pod.Spec.SecurityContext
	if sc == nil {
		return groupOwner{}
	}
	policy := sc.FSGroupChangePolicy
	return groupOwner{
		gid:      sc.FSGroup,
		readOnly: readOnly,
		skip:     policy != nil && *policy == corev1.FSGroupChangeOnRootMismatch,
		log:      v.log,
	}
}

// apply changes dir and everything below it. The root comes last: if it has the group, so had everything when apply
// returned. Links are not followed, wherever a container puts them meanwhile. Files that root may not change, and
// directories that root may not read, stay as they are: a server of NFS may let nobody do that, and snapshots of a
// volume cannot be changed.
func (o groupOwner) apply(ctx context.Context, dir *os.File) error {
	if o.gid == nil {
		return nil
	}
	st, err := stat(dir)
	if err != nil {
		return err
	}
	if o.skip && o.right(st) {
		return nil
	}
	o.refused = new(error)
	if err := o.applyBelow(ctx, dir, 0); err != nil {
		return fmt.Errorf("give volume to fsGroup %d: %w", *o.gid, err)
	}
	o.change(dir, st)
	if *o.refused != nil {
		o.log.Warn("cannot give all files of a volume to the pod's fsGroup", "fsGroup", *o.gid, "err", *o.refused)
	}
	return nil
}

// applyBelow changes everything below a directory that root may read.
func (o groupOwner) applyBelow(ctx context.Context, dir *os.File, depth int) error {
	err := o.applyToAll(ctx, dir, depth)
	if errors.Is(err, unix.EACCES) {
		o.note("read", dir, unix.EACCES)
		return nil
	}
	return err
}

func (o groupOwner) applyToAll(ctx context.Context, at *os.File, depth int) error {
	if depth == maxDepth {
		return fmt.Errorf("%s is nested too deep, more than %d directories", at.Name(), maxDepth)
	}
	dir, err := openDir(at, ".")
	if err != nil {
		return err
	}
	defer dir.Close()
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		names, err := dir.Readdirnames(readBatch)
		for _, name := range names {
			if err := o.applyTo(ctx, dir, name, depth); err != nil && !errors.Is(err, unix.ENOENT) {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (o groupOwner) applyTo(ctx context.Context, dir *os.File, name string, depth int) error {
	f, err := beneath.Open(dir, name, unix.O_PATH|unix.O_NOFOLLOW, beneath.SameMount)
	if errors.Is(err, unix.EXDEV) {
		return nil // another mount: not part of the volume
	}
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := stat(f)
	if err != nil {
		return err
	}
	if fileType(st) == unix.S_IFDIR {
		if err := o.applyBelow(ctx, f, depth+1); err != nil {
			return err
		}
	}
	o.change(f, st)
	return nil
}

// change sets group and mode of one open file. A change of the group removes the set-id bits, so the mode comes second.
func (o groupOwner) change(f *os.File, st unix.Statx_t) {
	gid, chowned := int(*o.gid), false
	if int(st.Gid) != gid {
		err := unix.Fchownat(int(f.Fd()), "", -1, gid, unix.AT_EMPTY_PATH)
		chowned = err == nil
		o.note("chown", f, err)
	}
	if fileType(st) == unix.S_IFLNK {
		return // its mode means nothing
	}
	old := uint32(st.Mode) & 0o7777
	mode := old | o.mask(fileType(st))
	if mode != old || chowned && old&(unix.S_ISUID|unix.S_ISGID) != 0 {
		o.note("chmod", f, unix.Chmod(fdPath(f), mode))
	}
}

// note keeps the first error of a change or a read.
func (o groupOwner) note(op string, f *os.File, err error) {
	if err != nil && *o.refused == nil {
		*o.refused = pathError(op, f, "", err)
	}
}

func (o groupOwner) mask(fileType uint32) uint32 {
	mask := uint32(0o660)
	if o.readOnly {
		mask = 0o440
	}
	if fileType == unix.S_IFDIR {
		mask |= unix.S_ISGID | 0o110
	}
	return mask
}

// right reports whether the root of a volume has the group and at least the mode that apply gives it.
func (o groupOwner) right(st unix.Statx_t) bool {
	mask := o.mask(unix.S_IFDIR)
	return fileType(st) == unix.S_IFDIR && int64(st.Gid) == *o.gid && uint32(st.Mode)&mask == mask
}

// singleUser returns the user as which all containers of a pod run, or nil if there are several. This user owns the
// pod's tokens (KEP-2451). Unlike in the kubelet, ephemeral containers do not count: they come later.
func singleUser(pod *corev1.Pod) *int64 {
	var podUser, user *int64
	if sc := pod.Spec.SecurityContext; sc != nil {
		podUser = sc.RunAsUser
	}
	for _, c := range podutil.ContainersWithResources(&pod.Spec) {
		effective := podUser
		if sc := c.SecurityContext; sc != nil && sc.RunAsUser != nil {
			effective = sc.RunAsUser
		}
		if effective == nil || user != nil && *user != *effective {
			return nil
		}
		user = effective
	}
	return user
}
