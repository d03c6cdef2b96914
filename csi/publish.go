package csi

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Publish records the use of a volume, stages the volume if its driver supports that, and publishes it for a pod. What
// is already done is not repeated. Unpublish undoes whatever Publish has done, even if it failed.
func (c *CSI) Publish(ctx context.Context, pod types.UID, v *Volume) (Published, error) {
	if err := v.check(pod); err != nil {
		return Published{}, err
	}
	unlock, err := c.uses.Lock(ctx, useID(pod, v.Name))
	if err != nil {
		return Published{}, err
	}
	defer unlock()
	published := c.Has(ctx, pod, v)
	if published && !v.Republish {
		return c.keep(ctx, pod, v)
	}
	d, done, err := c.drivers.get(ctx, v.Driver, pod)
	if err != nil {
		return Published{}, err
	}
	defer done()
	if err := c.Use(ctx, pod, v); err != nil {
		return Published{}, err
	}
	p := Published{Path: c.records.target(pod, v), Expands: d.can(csipb.NodeServiceCapability_RPC_EXPAND_VOLUME)}
	if !published {
		if err := c.stage(ctx, d, pod, v); err != nil {
			return Published{}, fmt.Errorf("MountVolume.MountDevice failed for volume %q : %w", v.Name, err)
		}
	}
	if err := c.publish(ctx, d, pod, v, published); err != nil {
		return Published{}, fmt.Errorf("MountVolume.SetUp failed for volume %q : %w", v.Name, err)
	}
	p.Labelled = c.records.get(v.key()).SELinux != ""
	return p, nil
}

// Keep is Publish for a volume that was published, without what its driver would need to be called. If the volume is
// not published any more, Keep returns an error.
func (c *CSI) Keep(ctx context.Context, pod types.UID, v *Volume) (Published, error) {
	unlock, err := c.uses.Lock(ctx, useID(pod, v.Name))
	if err != nil {
		return Published{}, err
	}
	defer unlock()
	if !c.Has(ctx, pod, v) {
		return Published{}, fmt.Errorf("volume %q is no longer published", v.Name)
	}
	return c.keep(ctx, pod, v)
}

// keep updates the use of a published volume. The caller holds the lock of the use.
func (c *CSI) keep(ctx context.Context, pod types.UID, v *Volume) (Published, error) {
	rec := c.records.get(v.key())
	u := rec.Uses[useID(pod, v.Name)]
	if err := c.files.keepHeld(rec, u); err != nil {
		return Published{}, err
	}
	p := Published{Path: c.files.abs(u.Target), Expands: c.drivers.mayExpand(v.Driver), Labelled: rec.SELinux != ""}
	return p, c.Use(ctx, pod, v)
}

// Has reports whether a volume is certainly published for a pod, by the record and, if there is a mount, by the kernel
// and the mounted file system. What a kubelet has published counts if the pod has started since. Then Publish needs no
// secrets, no attachment and no driver, unless the driver requires republishing.
func (c *CSI) Has(ctx context.Context, pod types.UID, v *Volume) bool {
	rec := c.records.get(v.key())
	if rec == nil || rec.Boot != c.cfg.BootID {
		return false
	}
	u := rec.Uses[useID(pod, v.Name)]
	if u == nil || u.Publish != done || u.Found && v.Unstarted {
		return false
	}
	if u.Mounted {
		return c.files.works(ctx, rec, u.Target)
	}
	return c.files.there(u.Target)
}

// stage stages a volume, once for all pods that use it.
func (c *CSI) stage(ctx context.Context, d *driver, pod types.UID, v *Volume) error {
	if v.Ephemeral || !d.can(csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME) {
		return nil
	}
	k := v.key()
	if c.records.staged(ctx, k) && !c.records.get(k).attachedAgain(v, c.cfg.BootID) {
		return nil
	}
	secrets, err := v.stageSecrets(ctx) // which may take long: it must not delay other pods that use the volume
	if err != nil {
		return err
	}
	lock, err := c.calls.lock(ctx, k)
	if err != nil {
		return err
	}
	defer lock.release()
	if err := c.leaveAttachment(ctx, lock, pod, v); err != nil {
		return err
	}
	rec := c.records.get(k)
	if c.records.staged(ctx, k) {
		return nil
	}
	if !c.files.mounted(rec.Staging) {
		if err := layoutOf(v.Driver).beforeStage(c.files, rec, v, c.cfg.NodeName); err != nil {
			return err
		}
	}
	if err := c.stageCall(ctx, lock, d, rec, v, secrets); err != nil {
		return err
	}
	c.records.markFresh(k)
	return nil
}

// stageCall records the intent to stage a volume, makes the call, and records its result.
func (c *CSI) stageCall(ctx context.Context, lock *callLock, d *driver, rec *record, v *Volume,
	secrets map[string]string) error {
	k, before := v.key(), rec.Stage
	err := c.records.update(k, survivePowerLoss, func(r *record) {
		r.Stage, r.StageMounted = intent, false
		r.Boot, r.Attachment = c.cfg.BootID, v.Attachment.UID
	})
	if err != nil {
		return err
	}
	err = change(ctx, lock, d, "NodeStageVolume", d.node.NodeStageVolume, &csipb.NodeStageVolumeRequest{
		VolumeId:          v.Handle,
		PublishContext:    v.Attachment.Context,
		StagingTargetPath: c.files.abs(rec.Staging),
		VolumeCapability:  d.capability(v, rec.SELinux),
		Secrets:           secrets,
		VolumeContext:     v.Attributes,
	})
	mounted := c.files.mounted(rec.Staging)
	if err != nil {
		if before == none && final(err) && !mounted {
			undo := func(r *record) { r.Stage = none }
			return errors.Join(err, c.files.removeStaging(rec), c.records.update(k, surviveCrash, undo))
		}
		return err
	}
	return c.records.update(k, surviveCrash, func(r *record) { r.Stage, r.StageMounted = done, mounted })
}

// staged reports whether a volume is certainly staged. Without a mount that shows it, a volume that an earlier process
// has staged is staged again before it is published.
func (s *store) staged(ctx context.Context, k key) bool {
	rec, fresh := s.state(k)
	if rec.Stage != done || rec.Boot != s.boot {
		return false
	}
	if rec.StageMounted {
		return s.files.works(ctx, rec, rec.Staging)
	}
	return fresh
}

// publish publishes the volume for one pod.
func (c *CSI) publish(ctx context.Context, d *driver, pod types.UID, v *Volume, again bool) error {
	k, id := v.key(), useID(pod, v.Name)
	if err := c.publishCall(ctx, d, k, id, v, again); err != nil {
		return err
	}
	rec := c.records.get(k)
	if err := c.files.hold(rec, rec.Uses[id]); err != nil {
		return err
	}
	if v.Prepare != nil && !v.Block && !d.can(csipb.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP) {
		if err := v.Prepare(ctx, c.records.target(pod, v)); err != nil {
			return err
		}
	}
	if again {
		return nil
	}
	return c.records.mark(k, id, done)
}

func (c *CSI) publishCall(ctx context.Context, d *driver, k key, id string, v *Volume, again bool) error {
	lock, err := c.calls.lock(ctx, k)
	if err != nil {
		return err
	}
	defer lock.release()
	rec := c.records.get(k)
	u := rec.Uses[id]
	// The kubelet has one file about a block volume for all its pods.
	if err := layoutOf(v.Driver).beforePublish(c.files, rec, u, v, c.cfg.NodeName); err != nil {
		return err
	}
	if !again {
		if err := c.records.mark(k, id, intent); err != nil {
			return err
		}
	}
	r := d.publishRequest(c.files, rec, u.Target, v)
	err = change(ctx, lock, d, "NodePublishVolume", d.node.NodePublishVolume, r)
	if err != nil && u.Publish == none && final(err) && !c.files.mounted(u.Target) {
		return errors.Join(err, c.files.removeTarget(rec, u), c.records.mark(k, id, none))
	}
	return err
}

func (d *driver) publishRequest(f files, rec *record, target string, v *Volume) *csipb.NodePublishVolumeRequest {
	r := &csipb.NodePublishVolumeRequest{
		VolumeId:         v.Handle,
		PublishContext:   v.Attachment.Context,
		TargetPath:       f.abs(target),
		VolumeCapability: d.capability(v, rec.SELinux),
		Readonly:         v.ReadOnly,
		Secrets:          v.Secrets.Publish,
		VolumeContext:    map[string]string{},
	}
	if !v.Ephemeral && d.can(csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME) {
		r.StagingTargetPath = f.abs(rec.Staging)
	}
	maps.Copy(r.VolumeContext, v.Attributes)
	maps.Copy(r.VolumeContext, v.PublishAttributes)
	return r
}

// capability describes the volume in a call. It is mounted with an SELinux label if there is one.
func (d *driver) capability(v *Volume, selinux string) *csipb.VolumeCapability {
	mode := &csipb.VolumeCapability_AccessMode{Mode: d.accessMode(v.AccessMode)}
	out := &csipb.VolumeCapability{AccessMode: mode}
	if v.Block {
		out.AccessType = &csipb.VolumeCapability_Block{Block: &csipb.VolumeCapability_BlockVolume{}}
		return out
	}
	mount := &csipb.VolumeCapability_MountVolume{FsType: v.FSType, MountFlags: v.MountOptions}
	if selinux != "" { // in quotes, as there are commas in labels
		mount.MountFlags = append(slices.Clone(v.MountOptions), fmt.Sprintf("context=%q", selinux))
	}
	if v.FSGroup != nil && d.can(csipb.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP) {
		mount.VolumeMountGroup = strconv.FormatInt(*v.FSGroup, 10)
	}
	out.AccessType = &csipb.VolumeCapability_Mount{Mount: mount}
	return out
}

// accessMode returns the CSI mode for a mode of the API. Drivers that lack the finer modes get the older one.
func (d *driver) accessMode(m corev1.PersistentVolumeAccessMode) csipb.VolumeCapability_AccessMode_Mode {
	fine := d.can(csipb.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER)
	switch {
	case m == corev1.ReadOnlyMany:
		return csipb.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	case m == corev1.ReadWriteMany:
		return csipb.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
	case m == corev1.ReadWriteOncePod && fine:
		return csipb.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
	case m == corev1.ReadWriteOnce && fine:
		return csipb.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
	}
	return csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
}
