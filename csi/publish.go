package csi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Publish claims a volume, stages it if its driver wants that, and publishes it for a pod. What is there already stays as
// it is. It may be repeated; Unpublish takes back whatever it came to.
func (c *CSI) Publish(ctx context.Context, pod types.UID, v *Volume) (Published, error) {
	if err := v.check(pod); err != nil {
		return Published{}, err
	}
	unlock, err := c.locks.Lock(ctx, useID(pod, v.Name))
	if err != nil {
		return Published{}, err
	}
	defer unlock()
	there := c.Has(pod, v)
	if there && !v.Republish {
		p := Published{Path: c.target(pod, v), Expands: c.mayExpand(v.Driver), Labelled: c.look(v.key()).SELinux != ""}
		return p, c.Claim(ctx, pod, v)
	}
	d, done, err := c.use(ctx, v.Driver, pod)
	if err != nil {
		return Published{}, err
	}
	defer done()
	if err := c.Claim(ctx, pod, v); err != nil {
		return Published{}, err
	}
	p := Published{Path: c.target(pod, v), Expands: d.can[csipb.NodeServiceCapability_RPC_EXPAND_VOLUME]}
	if !there {
		if err := c.stage(ctx, d, v); err != nil {
			return Published{}, fmt.Errorf("MountVolume.MountDevice failed for volume %q : %w", v.Name, err)
		}
	}
	if err := c.publish(ctx, d, pod, v, there); err != nil {
		return Published{}, fmt.Errorf("MountVolume.SetUp failed for volume %q : %w", v.Name, err)
	}
	p.Changed, p.Labelled = !there, c.look(v.key()).SELinux != ""
	return p, nil
}

// target is where a volume that is claimed for a pod is published.
func (c *CSI) target(pod types.UID, v *Volume) string {
	return c.files.abs(c.look(v.key()).Uses[useID(pod, v.Name)].Target)
}

// Has says whether a volume is surely published for a pod: then Publish needs no secrets, no attachment and no driver, unless
// the driver wants to be asked again.
func (c *CSI) Has(pod types.UID, v *Volume) bool {
	rec := c.look(v.key())
	return rec != nil && rec.Uses[useID(pod, v.Name)] != nil && c.published(pod, v)
}

// published says whether a pod has the volume, by the record and, where there is a mount, by the kernel's word.
func (c *CSI) published(pod types.UID, v *Volume) bool {
	rec := c.look(v.key())
	u := rec.Uses[useID(pod, v.Name)]
	if u.Publish != done || rec.Boot != c.cfg.BootID {
		return false
	}
	if u.Mounted {
		return c.files.mounted(u.Target)
	}
	return c.files.exists(u.Target)
}

// stage makes a volume present on the node once for all pods that use it.
func (c *CSI) stage(ctx context.Context, d *driver, v *Volume) error {
	if v.Ephemeral || !d.can[csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME] {
		return nil
	}
	k := v.key()
	unlock, err := c.locks.Lock(ctx, k.String())
	if err != nil {
		return err
	}
	defer unlock()
	rec := c.look(k)
	if c.staged(k) {
		return nil
	}
	if !c.files.mounted(rec.Staging) {
		if err := layoutOf(v.Driver).beforeStage(c.files, rec, v, c.cfg.NodeName); err != nil {
			return err
		}
	}
	before := rec.Stage
	if err := c.update(k, overPowerCut, func(r *record) { r.Stage, r.StageMounted, r.Boot = intent, false, c.cfg.BootID }); err != nil {
		return err
	}
	err = d.call(ctx, "NodeStageVolume", func(ctx context.Context) error {
		_, err := d.node.NodeStageVolume(ctx, &csipb.NodeStageVolumeRequest{
			VolumeId: v.Handle, PublishContext: v.PublishContext, StagingTargetPath: c.files.abs(rec.Staging),
			VolumeCapability: d.capability(v, rec.SELinux), Secrets: v.StageSecrets, VolumeContext: v.Attributes,
		})
		return err
	})
	mounted := c.files.mounted(rec.Staging)
	if err != nil {
		if before == none && final(err) && !mounted {
			return errors.Join(err, c.removeStaging(rec), c.update(k, overCrash, func(r *record) { r.Stage = none }))
		}
		return err
	}
	if err := c.update(k, overCrash, func(r *record) { r.Stage, r.StageMounted = done, mounted }); err != nil {
		return err
	}
	c.mu.Lock()
	c.volumes[k].fresh = true
	c.mu.Unlock()
	return nil
}

// staged says whether a volume is surely staged. What an earlier life has staged without a mount to show for it is asked for
// again before it is published.
func (c *CSI) staged(k key) bool {
	c.mu.Lock()
	v := c.volumes[k]
	rec, fresh := v.rec, v.fresh
	c.mu.Unlock()
	if rec.Stage != done || rec.Boot != c.cfg.BootID {
		return false
	}
	if rec.StageMounted {
		return c.files.mounted(rec.Staging)
	}
	return fresh
}

// publish shows the volume to one pod.
func (c *CSI) publish(ctx context.Context, d *driver, pod types.UID, v *Volume, again bool) error {
	k, id := v.key(), useID(pod, v.Name)
	rec := c.look(k)
	if err := layoutOf(v.Driver).beforePublish(c.files, rec, rec.Uses[id], v, c.cfg.NodeName); err != nil {
		return err
	}
	if !again {
		if err := c.mark(ctx, k, id, intent); err != nil {
			return err
		}
	}
	target := rec.Uses[id].Target
	err := d.call(ctx, "NodePublishVolume", func(ctx context.Context) error {
		_, err := d.node.NodePublishVolume(ctx, c.publishRequest(d, rec, target, v))
		return err
	})
	if err != nil {
		if rec.Uses[id].Publish == none && final(err) && !c.files.mounted(target) {
			return errors.Join(err, c.removeTarget(rec, rec.Uses[id]), c.mark(ctx, k, id, none))
		}
		return err
	}
	if again {
		return nil
	}
	if v.Prepare != nil && !v.Block && !d.can[csipb.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP] {
		if err := v.Prepare(ctx, c.files.abs(target)); err != nil {
			return err
		}
	}
	return c.mark(ctx, k, id, done)
}

func (c *CSI) publishRequest(d *driver, rec *record, target string, v *Volume) *csipb.NodePublishVolumeRequest {
	r := &csipb.NodePublishVolumeRequest{
		VolumeId: v.Handle, PublishContext: v.PublishContext, TargetPath: c.files.abs(target), VolumeCapability: d.capability(v, rec.SELinux),
		Readonly: v.ReadOnly, Secrets: v.PublishSecrets, VolumeContext: map[string]string{},
	}
	if !v.Ephemeral && d.can[csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME] {
		r.StagingTargetPath = c.files.abs(rec.Staging)
	}
	for _, attributes := range []map[string]string{v.Attributes, v.PublishAttributes} {
		for name, value := range attributes {
			r.VolumeContext[name] = value
		}
	}
	return r
}

// mark notes how far the publishing for one pod has come.
func (c *CSI) mark(ctx context.Context, k key, id string, s state) error {
	// A step that is given up still notes what it has done.
	unlock, err := c.locks.Lock(context.WithoutCancel(ctx), k.String())
	if err != nil {
		return err
	}
	defer unlock()
	must := overCrash
	if s == intent {
		must = overPowerCut
	}
	return c.update(k, must, func(r *record) {
		u := r.Uses[id]
		u.Publish, u.Mounted = s, s == done && c.files.mounted(u.Target)
		r.Boot = c.cfg.BootID
	})
}

// capability is what a call asks of the volume, which is mounted with an SELinux label if there is one.
func (d *driver) capability(v *Volume, selinux string) *csipb.VolumeCapability {
	out := &csipb.VolumeCapability{AccessMode: &csipb.VolumeCapability_AccessMode{Mode: d.accessMode(v.AccessMode)}}
	if v.Block {
		out.AccessType = &csipb.VolumeCapability_Block{Block: &csipb.VolumeCapability_BlockVolume{}}
		return out
	}
	mount := &csipb.VolumeCapability_MountVolume{FsType: v.FSType, MountFlags: v.MountOptions}
	if selinux != "" { // in quotes, as there are commas in labels
		mount.MountFlags = append(slices.Clone(v.MountOptions), fmt.Sprintf("context=%q", selinux))
	}
	if v.FSGroup != nil && d.can[csipb.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP] {
		mount.VolumeMountGroup = strconv.FormatInt(*v.FSGroup, 10)
	}
	out.AccessType = &csipb.VolumeCapability_Mount{Mount: mount}
	return out
}

// accessMode is the CSI mode for a mode of the API. Drivers which do not know the finer modes get the older one.
func (d *driver) accessMode(m corev1.PersistentVolumeAccessMode) csipb.VolumeCapability_AccessMode_Mode {
	fine := d.can[csipb.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER]
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
