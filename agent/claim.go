package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/nodelet/nodelet/csi"
	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/kube/storage"
	"github.com/nodelet/nodelet/volumes"
)

// claimRefresh is about how often a claim is looked at for a new size, its driver for whether the volume is still attached, and
// a volume whose driver wants that is published again. A node may not watch claims; the kubelet looks as often.
const claimRefresh = time.Minute

// mountClaims sets up a volume behind which there is a claim or a CSI driver.
func (t *task) mountClaims(ctx context.Context, v *corev1.Volume) (volumes.Mounted, error) {
	if v.ISCSI != nil {
		return t.mountPodISCSI(ctx, v)
	}
	if t.hands.Storage == nil || t.hands.CSI == nil {
		return volumes.Mounted{}, fmt.Errorf("volume %q needs an API server, which this node does not have", v.Name)
	}
	if v.CSI != nil {
		return t.mountInline(ctx, v)
	}
	claim, err := t.hands.Storage.Claim(ctx, t.pod, v)
	if err != nil {
		return volumes.Mounted{}, fmt.Errorf("MountVolume.SetUp failed for volume %q : %w", v.Name, err)
	}
	if err := t.checkClaim(v, claim); err != nil {
		return volumes.Mounted{}, err
	}
	readOnly := v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ReadOnly
	switch {
	case claim.PV.Spec.CSI != nil:
		return t.mountCSI(ctx, claim, v.Name, readOnly)
	case claim.PV.Spec.ISCSI != nil:
		return t.mountISCSI(ctx, claim, v.Name, readOnly)
	}
	return t.mountPersistent(ctx, claim, readOnly)
}

// mountPersistent sets up a PersistentVolume that is no CSI driver's.
func (t *task) mountPersistent(ctx context.Context, claim *storage.Claim, readOnly bool) (volumes.Mounted, error) {
	p := volumes.Persistent{Pod: t.pod, PV: claim.PV, ReadOnly: readOnly, Block: claim.Block(), Grow: claim.Growth() != nil}
	m, err := t.hands.Volumes.MountPersistent(ctx, p)
	if err != nil || claim.PV.Spec.Local == nil {
		return m, err
	}
	m.RefreshAt = refreshAt()
	return m, t.expandLocal(ctx, claim, p)
}

// checkClaim refuses what the pod must not use, or not in this way.
func (t *task) checkClaim(v *corev1.Volume, claim *storage.Claim) error {
	if claim.PVC.DeletionTimestamp != nil && !slices.Contains(t.hands.CSI.Used(t.pod.UID), claim.PV.Name) {
		return fmt.Errorf("volume %q: PVC %s is being deleted", v.Name, claim.PVC.Name)
	}
	mounts, devices := usedAs(t.pod, v.Name)
	switch {
	case mounts && claim.Block():
		return fmt.Errorf("volume %q has volumeMode Block, but is specified in volumeMounts", v.Name)
	case devices && !claim.Block():
		return fmt.Errorf("volume %q has volumeMode Filesystem, but is specified in volumeDevices", v.Name)
	}
	return nil
}

// usedAs tells in which ways the pod's containers use a volume.
func usedAs(pod *corev1.Pod, volume string) (mounts, devices bool) {
	for _, c := range podutil.Containers(&pod.Spec) {
		mounts = mounts || slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == volume })
		devices = devices || slices.ContainsFunc(c.VolumeDevices, func(d corev1.VolumeDevice) bool { return d.Name == volume })
	}
	return mounts, devices
}

// mountCSI sets up a PersistentVolume of a CSI driver: claimed, attached, staged, published.
func (t *task) mountCSI(ctx context.Context, claim *storage.Claim, volume string, readOnly bool) (volumes.Mounted, error) {
	s := claim.PV.Spec.CSI
	driver, err := t.hands.Storage.Driver(ctx, s.Driver)
	if err != nil {
		return volumes.Mounted{}, err
	}
	if !slices.Contains(driver.Spec.VolumeLifecycleModes, storagev1.VolumeLifecyclePersistent) {
		return volumes.Mounted{}, fmt.Errorf("volume %q: CSI driver %s does not serve persistent volumes (CSIDriver volumeLifecycleModes)",
			claim.PV.Name, s.Driver)
	}
	return t.mountBy(ctx, driver, claim, volume, readOnly)
}

// mountBy sets up a PersistentVolume of a driver that is known.
func (t *task) mountBy(ctx context.Context, driver *storagev1.CSIDriver, claim *storage.Claim, volume string, readOnly bool) (volumes.Mounted, error) {
	v := persistentVolume(claim, driver, readOnly)
	m, p, err := t.mountStaged(ctx, driver, claim.PV, volume, v, func() error { return t.prepareCSI(ctx, v, claim.PV.Spec.CSI) })
	if err != nil {
		return volumes.Mounted{}, err
	}
	if p.Expands || v.Attachable {
		m.RefreshAt = refreshAt()
	}
	if p.Expands {
		err = t.expandCSI(ctx, claim, v)
	}
	return m, err
}

// mountStaged sets up a PersistentVolume that is staged and published. prepare gathers what the driver has to be told, if it has to be
// called.
func (t *task) mountStaged(ctx context.Context, driver *storagev1.CSIDriver, pv *corev1.PersistentVolume, volume string, v *csi.Volume, prepare func() error) (
	m volumes.Mounted, p csi.Published, err error) {
	if !t.hands.CSI.Has(t.pod.UID, v) { // what is mounted keeps its label
		if v.SELinuxLabel, err = t.seLinuxLabel(volume, pv, driver); err != nil {
			return m, p, err
		}
	}
	m, p, err = t.prepareAndPublish(ctx, driver, v, prepare)
	t.seLinuxDone(p, err, v, pv)
	m.ExtraGroup = volumes.ExtraGroup(pv)
	return m, p, err
}

func (t *task) prepareAndPublish(ctx context.Context, driver *storagev1.CSIDriver, v *csi.Volume, prepare func() error) (volumes.Mounted, csi.Published, error) {
	if t.asks(v, driver) {
		if err := prepare(); err != nil {
			return volumes.Mounted{}, csi.Published{}, err
		}
	}
	return t.publish(ctx, v, driver)
}

// asks: the driver has to be called for this volume.
func (t *task) asks(v *csi.Volume, driver *storagev1.CSIDriver) bool {
	return *driver.Spec.RequiresRepublish || !t.hands.CSI.Has(t.pod.UID, v)
}

// prepareCSI gathers what calls to the driver need: the claim, the attachment, the secrets.
func (t *task) prepareCSI(ctx context.Context, v *csi.Volume, s *corev1.CSIPersistentVolumeSource) (err error) {
	if v.Attachable {
		if err := t.hands.CSI.Claim(ctx, t.pod.UID, v); err != nil {
			return err
		}
		if v.PublishContext, err = t.attached(ctx, v); err != nil {
			return fmt.Errorf("MountVolume.WaitForAttach failed for volume %q : %w", v.Name, err)
		}
	}
	if v.StageSecrets, err = t.volumeSecret(ctx, s.NodeStageSecretRef); err != nil {
		return err
	}
	v.PublishSecrets, err = t.volumeSecret(ctx, s.NodePublishSecretRef)
	return err
}

// persistentVolume is a PersistentVolume as csi wants it.
func persistentVolume(claim *storage.Claim, driver *storagev1.CSIDriver, readOnly bool) *csi.Volume {
	pv, s := claim.PV, claim.PV.Spec.CSI
	v := &csi.Volume{
		Driver: s.Driver, Handle: s.VolumeHandle, Name: pv.Name, Block: claim.Block(), Attachable: *driver.Spec.AttachRequired,
		FSType: s.FSType, MountOptions: pv.Spec.MountOptions, AccessMode: corev1.ReadWriteOnce, ReadOnly: readOnly,
		Attributes: s.VolumeAttributes,
	}
	if len(pv.Spec.AccessModes) > 0 {
		v.AccessMode = pv.Spec.AccessModes[0]
	}
	return v
}

// attached waits until a volume is attached.
func (t *task) attached(ctx context.Context, v *csi.Volume) (map[string]string, error) {
	return t.hands.Storage.Attached(ctx, t.pod.UID, csi.UniqueName(v.Driver, v.Handle), v.Driver, v.Handle)
}

func (t *task) volumeSecret(ctx context.Context, ref *corev1.SecretReference) (map[string]string, error) {
	if ref == nil {
		return nil, nil
	}
	return t.hands.Storage.Secret(ctx, ref.Namespace, ref.Name)
}

// mountInline sets up an inline CSI volume, which lives as long as the pod.
func (t *task) mountInline(ctx context.Context, vol *corev1.Volume) (volumes.Mounted, error) {
	s := vol.CSI
	driver, err := t.hands.Storage.Driver(ctx, s.Driver)
	if err != nil {
		return volumes.Mounted{}, err
	}
	if !slices.Contains(driver.Spec.VolumeLifecycleModes, storagev1.VolumeLifecycleEphemeral) {
		return volumes.Mounted{}, fmt.Errorf("volume %q: CSI driver %s does not serve inline volumes (CSIDriver volumeLifecycleModes)",
			vol.Name, s.Driver)
	}
	v := &csi.Volume{
		Driver: s.Driver, Handle: csi.InlineHandle(t.pod.UID, vol.Name), Name: vol.Name, Ephemeral: true,
		AccessMode: corev1.ReadWriteOnce, Attributes: s.VolumeAttributes,
	}
	if s.FSType != nil {
		v.FSType = *s.FSType
	}
	if s.ReadOnly != nil {
		v.ReadOnly = *s.ReadOnly
	}
	if ref := s.NodePublishSecretRef; ref != nil && t.asks(v, driver) {
		v.PublishSecrets, err = t.volumeSecret(ctx, &corev1.SecretReference{Namespace: t.pod.Namespace, Name: ref.Name})
		if err != nil {
			return volumes.Mounted{}, err
		}
	}
	m, _, err := t.publish(ctx, v, driver)
	return m, err
}

// publish hands a volume to csi with what its driver wants to know of the pod.
func (t *task) publish(ctx context.Context, v *csi.Volume, driver *storagev1.CSIDriver) (volumes.Mounted, csi.Published, error) {
	v.Republish = *driver.Spec.RequiresRepublish
	v.PublishAttributes = map[string]string{}
	if *driver.Spec.PodInfoOnMount {
		v.PublishAttributes = podInfo(t.pod, v.Ephemeral)
	}
	if t.asks(v, driver) {
		if err := t.tokens(ctx, v, driver); err != nil {
			return volumes.Mounted{}, csi.Published{}, fmt.Errorf("volume %q: %w", v.Name, err)
		}
	}
	if sc := t.pod.Spec.SecurityContext; sc != nil && sc.FSGroup != nil {
		v.FSGroup = sc.FSGroup
		if setsGroup(v, *driver.Spec.FSGroupPolicy) {
			v.Prepare = func(ctx context.Context, path string) error { return t.hands.Volumes.Own(ctx, t.pod, path) }
		}
	}
	var p csi.Published
	err := t.gates.publish.pass(ctx, func() (err error) {
		p, err = t.hands.CSI.Publish(ctx, t.pod.UID, v)
		return err
	})
	if err != nil {
		return volumes.Mounted{}, p, err
	}
	m := volumes.Mounted{HostPath: p.Path, ReadOnly: v.ReadOnly, SELinuxRelabel: !p.Labelled && !v.ReadOnly, Changed: p.Changed, Name: v.Name}
	if v.Block {
		m.HostPath, m.Device = "", p.Path
	}
	if v.Republish {
		m.RefreshAt = refreshAt()
	}
	return m, p, nil
}

func refreshAt() time.Time { return time.Now().Add(claimRefresh + rand.N(claimRefresh/2)) }

// setsGroup: the agent gives the files of a volume to the pod's fsGroup, by the policy of its driver.
func setsGroup(v *csi.Volume, policy storagev1.FSGroupPolicy) bool {
	switch {
	case v.ReadOnly, v.Block, policy == storagev1.NoneFSGroupPolicy:
		return false
	case policy == storagev1.FileFSGroupPolicy:
		return true
	}
	oneNode := v.AccessMode == corev1.ReadWriteOnce || v.AccessMode == corev1.ReadWriteOncePod
	return v.FSType != "" && oneNode
}

// podInfo is what a driver with podInfoOnMount is told of the pod.
func podInfo(pod *corev1.Pod, ephemeral bool) map[string]string {
	return map[string]string{
		"csi.storage.k8s.io/pod.name":            pod.Name,
		"csi.storage.k8s.io/pod.namespace":       pod.Namespace,
		"csi.storage.k8s.io/pod.uid":             string(pod.UID),
		"csi.storage.k8s.io/serviceAccount.name": pod.Spec.ServiceAccountName,
		"csi.storage.k8s.io/ephemeral":           strconv.FormatBool(ephemeral),
	}
}

// tokenStatus is a token as drivers read it: the status of a TokenRequest.
type tokenStatus struct {
	Token               string    `json:"token"`
	ExpirationTimestamp time.Time `json:"expirationTimestamp"`
}

const (
	tokensKey = "csi.storage.k8s.io/serviceAccount.tokens"
	// tokenSeconds is how long a token lives whose driver does not say.
	tokenSeconds = 3600
)

// tokens adds the service account tokens that a driver asks for. They are fetched anew for each call that carries them.
func (t *task) tokens(ctx context.Context, v *csi.Volume, driver *storagev1.CSIDriver) error {
	if len(driver.Spec.TokenRequests) == 0 {
		return nil
	}
	all := map[string]tokenStatus{}
	for _, r := range driver.Spec.TokenRequests {
		seconds := int64(tokenSeconds)
		if r.ExpirationSeconds != nil {
			seconds = *r.ExpirationSeconds
		}
		token, expires, err := t.hands.Objects(t.pod).Token(ctx, t.pod, r.Audience, seconds)
		if err != nil {
			return fmt.Errorf("get the service account token that CSI driver %s wants: %w", driver.Name, err)
		}
		all[r.Audience] = tokenStatus{token, expires.UTC()}
	}
	text, err := json.Marshal(all)
	if err != nil {
		return err
	}
	if *driver.Spec.ServiceAccountTokenInSecrets {
		v.PublishSecrets = maps.Clone(v.PublishSecrets)
		if v.PublishSecrets == nil {
			v.PublishSecrets = map[string]string{}
		}
		v.PublishSecrets[tokensKey] = string(text)
		return nil
	}
	v.PublishAttributes[tokensKey] = string(text)
	return nil
}
