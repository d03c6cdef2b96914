package volumes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/csi"
	"github.com/nodelet/nodelet/host/mounts"
	"github.com/nodelet/nodelet/kube/pluginname"
	"github.com/nodelet/nodelet/volumes/podfs"
)

// driven is a volume that a driver mounts: a CSI driver, or an in-tree one that csi drives in the same way.
type driven struct {
	*mounting
	driver *storagev1.CSIDriver
	volume *csi.Volume
	pv     *corev1.PersistentVolume // nil: a volume of the pod itself
	// attach waits for the attachment of a volume that needs one, and prepare reads the secrets for publishing. They are
	// called if the driver has to be called.
	attach, prepare func(ctx context.Context) error
}

// mount has the driver mount the volume, unless that is done.
func (d *driven) mount(ctx context.Context) (mounted Mounted, p csi.Published, err error) {
	v := d.volume
	v.Unstarted = d.Unstarted
	published := d.csi.Has(ctx, d.Pod.UID, v)
	if d.pv != nil && !d.csi.Begun(d.Pod.UID, v) {
		if v.SELinux, err = d.seLinux(); err != nil && !published { // a mounted volume keeps its label
			return mounted, p, err
		}
	}
	p, err = d.publish(ctx, published)
	if _, ok := errors.AsType[*csi.LabelError](err); ok && d.pv != nil {
		d.countSELinux(SELinuxConflict, true)
	}
	if err != nil {
		return mounted, p, err
	}
	mounted = Mounted{HostPath: p.Path, ReadOnly: v.ReadOnly, Name: v.Name, MountPoint: mounts.At(p.Path)}
	if mounted.SELinuxRelabel, err = d.mayRelabel(p); err != nil {
		return mounted, p, fmt.Errorf("volume %q: cannot see whether its file system keeps SELinux labels: %w", v.Name, err)
	}
	if v.Block {
		mounted.HostPath, mounted.Device = "", p.Path
		mounted.MountPoint = false
	}
	if d.pv != nil {
		mounted.ExtraGroup = podfs.ExtraGroup(d.pv)
	}
	return mounted, p, nil
}

// publish gives the volume to csi, with what its driver needs to know of the pod.
func (d *driven) publish(ctx context.Context, published bool) (p csi.Published, err error) {
	v, spec := d.volume, d.driver.Spec
	v.Republish = *spec.RequiresRepublish
	if published && !v.Republish {
		return d.callCSI(ctx, d.csi.Keep) // which does not call the driver
	}
	if err := d.mayMount(); err != nil {
		return p, err
	}
	if v.Attachable {
		if err := d.attached(ctx); err != nil {
			return p, err
		}
	}
	defer d.count(ctx, mountOf(v.Block), pluginname.OfDriver(v.Driver), time.Now(), &err)
	if err := d.prepare(ctx); err != nil {
		return p, err
	}
	v.PublishAttributes = map[string]string{}
	if *spec.PodInfoOnMount {
		v.PublishAttributes = podInfo(d.Pod, v.Ephemeral)
	}
	if err := d.addTokens(ctx); err != nil {
		return p, fmt.Errorf("volume %q: %w", v.Name, err)
	}
	if sc := d.Pod.Spec.SecurityContext; sc != nil && sc.FSGroup != nil {
		v.FSGroup = sc.FSGroup
		if setsGroup(v, d.pv, *spec.FSGroupPolicy) {
			v.Prepare = d.own
		}
	}
	return d.callCSI(ctx, d.csi.Publish)
}

// mayMount returns an error if the driver is not for volumes of this kind, or if this node cannot access the volume. It
// does not matter for a published volume: the CSIDriver or the Node may have been deleted, to be created again.
func (d *driven) mayMount() error {
	mode, kind := storagev1.VolumeLifecyclePersistent, "persistent"
	if d.volume.Ephemeral {
		mode, kind = storagev1.VolumeLifecycleEphemeral, "inline"
	}
	if !slices.Contains(d.driver.Spec.VolumeLifecycleModes, mode) {
		return fmt.Errorf("volume %q: CSI driver %s does not serve %s volumes (CSIDriver volumeLifecycleModes)",
			d.volume.Name, d.volume.Driver, kind)
	}
	if d.pv == nil {
		return nil
	}
	return d.cfg.Cluster.CheckAffinity(d.pv)
}

// attached records the use of the volume, and waits until it is attached.
func (d *driven) attached(ctx context.Context) (err error) {
	if err := d.csi.Use(ctx, d.Pod.UID, d.volume); err != nil {
		return err
	}
	defer d.count(ctx, waitForAttachment, pluginname.OfDriver(d.volume.Driver), time.Now(), &err)
	if err := d.attach(ctx); err != nil {
		return fmt.Errorf("MountVolume.WaitForAttach failed for volume %q : %w", d.volume.Name, err)
	}
	return nil
}

// callCSI calls a method of csi with the volume, when few enough calls run.
func (d *driven) callCSI(ctx context.Context,
	call func(context.Context, types.UID, *csi.Volume) (csi.Published, error)) (p csi.Published, err error) {
	err = d.Limit(ctx, func() (err error) {
		p, err = call(ctx, d.Pod.UID, d.volume)
		return err
	})
	return p, err
}

// own gives the files of a published volume to the pod's fsGroup. Pods with different groups take turns: the last one
// has all files.
func (d *driven) own(ctx context.Context, path string) error {
	unlock, err := d.alone.Lock(ctx, string(csi.UniqueName(d.volume.Driver, d.volume.Handle)))
	if err != nil {
		return err
	}
	defer unlock()
	return d.cfg.Pods.Own(ctx, d.Pod, path)
}

// setsGroup reports whether the agent gives the files of a volume to the pod's fsGroup, by the policy of its driver. pv
// is nil for a volume of the pod itself.
func setsGroup(v *csi.Volume, pv *corev1.PersistentVolume, policy storagev1.FSGroupPolicy) bool {
	switch {
	case v.ReadOnly, v.Block, policy == storagev1.NoneFSGroupPolicy:
		return false
	case policy == storagev1.FileFSGroupPolicy:
		return true
	}
	oneNode := pv == nil || slices.Contains(pv.Spec.AccessModes, corev1.ReadWriteOnce) ||
		slices.Contains(pv.Spec.AccessModes, corev1.ReadWriteOncePod)
	return v.FSType != "" && oneNode
}

// podInfo returns the attributes for a driver with podInfoOnMount.
func podInfo(pod *corev1.Pod, ephemeral bool) map[string]string {
	return map[string]string{
		"csi.storage.k8s.io/pod.name":            pod.Name,
		"csi.storage.k8s.io/pod.namespace":       pod.Namespace,
		"csi.storage.k8s.io/pod.uid":             string(pod.UID),
		"csi.storage.k8s.io/serviceAccount.name": pod.Spec.ServiceAccountName,
		"csi.storage.k8s.io/ephemeral":           strconv.FormatBool(ephemeral),
	}
}

// tokenStatus is a token in the form that drivers read: the status of a TokenRequest.
type tokenStatus struct {
	Token   string    `json:"token"`
	Expires time.Time `json:"expirationTimestamp"`
}

const (
	tokensKey = "csi.storage.k8s.io/serviceAccount.tokens"
	// tokenSeconds is the lifetime of a token whose driver names none.
	tokenSeconds = 3600
)

// addTokens adds the service account tokens that the driver asks for.
func (d *driven) addTokens(ctx context.Context) error {
	if len(d.driver.Spec.TokenRequests) == 0 {
		return nil
	}
	all := map[string]tokenStatus{}
	for _, r := range d.driver.Spec.TokenRequests {
		seconds := int64(tokenSeconds)
		if r.ExpirationSeconds != nil {
			seconds = *r.ExpirationSeconds
		}
		key := tokenKey{d.Pod.UID, r.Audience, seconds}
		token, err := d.tokens.get(key, d.Now, func() (string, time.Time, error) {
			return d.objects.Token(ctx, d.Pod, r.Audience, seconds)
		})
		if err != nil {
			return fmt.Errorf("get the service account token that CSI driver %s asks for: %w", d.driver.Name, err)
		}
		all[r.Audience] = token
	}
	text, err := json.Marshal(all)
	if err != nil {
		return err
	}
	to := &d.volume.PublishAttributes
	if *d.driver.Spec.ServiceAccountTokenInSecrets {
		to = &d.volume.Secrets.Publish
	}
	added := map[string]string{}
	maps.Copy(added, *to)
	added[tokensKey] = string(text)
	*to = added
	return nil
}
