package csi

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Use records that a pod is going to use a volume. From then on the volume counts as in use and is not unstaged;
// Unpublish ends the use. The record reaches the disk with the first call to the driver. For an existing use only
// Attachable and the APIName are updated, and SELinux.Begun is called if an earlier process has begun it.
func (c *CSI) Use(ctx context.Context, pod types.UID, v *Volume) error {
	if err := v.check(pod); err != nil {
		return err
	}
	id := useID(pod, v.Name)
	if rec := c.records.get(v.key()); rec != nil && rec.Uses[id] != nil {
		c.records.begin(v, id)
		return c.records.setAttached(v)
	}
	lock, err := c.calls.lock(ctx, v.key())
	if err != nil {
		return err
	}
	defer lock.release()
	rec := c.records.get(v.key())
	if err := c.checkMode(ctx, lock, rec, v); err != nil {
		return err
	}
	onePod := v.AccessMode == corev1.ReadWriteOncePod
	if rec != nil && (onePod || rec.OnePod) && rec.usedByOther(pod) {
		return fmt.Errorf("MountVolume.SetUp failed for volume %q : volume uses the ReadWriteOncePod access mode "+
			"and is already in use by another pod", v.Name)
	}
	err = c.records.update(v.key(), memoryOnly, func(r *record) {
		r.Block = v.Block
		r.name(v)
		r.Attachable, r.OnePod = v.Attachable, onePod
		r.SELinux = v.SELinux.Mount
		if r.Staging == "" || len(r.Uses) == 0 && r.Stage == none { // the handle may have moved to another PersistentVolume
			r.Staging, r.Size = layoutOf(v.Driver).staging(v), 0
		}
		r.Uses[id] = &use{Pod: pod, Name: v.Name, Target: layoutOf(v.Driver).target(pod, v, r.Staging)}
	})
	if err != nil {
		return err
	}
	if c.records.reveal(id) {
		c.unstageUnused()
	}
	c.records.keepHidden(v)
	c.records.begin(v, id)
	return nil
}

// Begun reports whether this process has begun the use of a volume by a pod, or has gone on with it. Use needs no
// SELinux of such a volume.
func (c *CSI) Begun(pod types.UID, v *Volume) bool {
	return c.records.hasBegun(v.key(), useID(pod, v.Name))
}

// differ reports whether two labels are known and not the same.
func differ(a, b *string) bool { return a != nil && b != nil && *a != *b }

// setAttached updates whether a volume in use has to be attached, and by what name: its CSIDriver may have been
// replaced, and the controller manager detaches nothing that is in volumesInUse.
func (s *store) setAttached(v *Volume) error {
	if rec := s.get(v.key()); rec.Attachable == v.Attachable && rec.named(v) {
		return nil
	}
	return s.update(v.key(), surviveCrash, func(r *record) {
		r.Attachable = v.Attachable
		r.name(v)
	})
}

// checkMode prepares a volume for a new use, which needs it with its SELinux label and volumeMode. The label is a mount
// option: a volume that is staged with another one is unstaged, unless a pod uses it or may do so. The caller holds the
// volume's lock.
func (c *CSI) checkMode(ctx context.Context, lock *callLock, rec *record, v *Volume) error {
	used := !c.records.isUnused(v.key())
	switch {
	case rec == nil, rec.SELinux == v.SELinux.Mount && rec.Block == v.Block:
		return nil
	case used && rec.Block != v.Block:
		return fmt.Errorf("volume %q is in use with another volumeMode on this node", v.Name)
	case used:
		return &LabelError{v.Name, rec.SELinux, v.SELinux.Mount}
	}
	err := c.checkMountedOnce(ctx, rec)
	if err == nil {
		err = c.takeDown(ctx, lock, rec)
	}
	if err != nil {
		return fmt.Errorf("waiting for unmount of volume %q, because it is mounted "+
			"with another SELinux label or volumeMode: %w", v.Name, err)
	}
	return nil
}

// leaveAttachment unstages a volume that was detached from this node and attached again since it was staged, as happens
// to a node that was cut off: the device that is staged has gone. Pods that have the volume from then must have
// ended. The caller holds the volume's lock.
func (c *CSI) leaveAttachment(ctx context.Context, lock *callLock, pod types.UID, v *Volume) error {
	rec := c.records.get(v.key())
	if !rec.attachedAgain(v, c.cfg.BootID) {
		return nil
	}
	for _, u := range rec.Uses {
		if u.Pod != pod && u.Publish != none {
			return fmt.Errorf("volume %q was detached from this node and attached again: "+
				"waiting for pod %s, which has used it before", v.Name, u.Pod)
		}
		if err := c.files.release(rec, u); err != nil {
			return err
		}
	}
	if err := c.takeDown(ctx, lock, rec); err != nil {
		return fmt.Errorf("unstage what was staged before volume %q was attached again: %w", v.Name, err)
	}
	return nil
}
