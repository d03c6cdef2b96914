package volumes

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/kube/pluginname"
	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/kube/storage"
	"github.com/nodelet/nodelet/volumes/podfs"
)

// refreshInterval is about how often a mounted volume is checked for a new size of its claim and for whether it is
// still attached, and published again if its driver requires that, which may change while it is mounted. A node may not
// watch claims; the kubelet checks as often.
const refreshInterval = time.Minute

// Request names one volume of one pod.
type Request struct {
	podfs.Request
	SELinux SELinux
	// Mounted is what the last call has returned, for Refresh.
	Mounted Mounted
	// Unstarted: the runtime has no container of the pod.
	Unstarted bool
	// Limit runs a call that mounts, when few enough of them run.
	Limit func(ctx context.Context, call func() error) error
}

// mounting is one call of Mount.
type mounting struct {
	*Manager
	Request
	objects Objects
}

// Mount mounts a volume, or refreshes its contents. Its errors are worded like the kubelet's FailedMount events.
func (m *Manager) Mount(ctx context.Context, r Request, objects Objects) (mounted Mounted, err error) {
	if !podfs.External(r.Volume) {
		defer m.count(ctx, mountOf(false), pluginname.Of(r.Volume), time.Now(), &err)
		return m.cfg.Pods.Mount(ctx, r.Request, objects)
	}
	return (&mounting{m, r, objects}).mount(ctx)
}

func (m *mounting) mount(ctx context.Context) (Mounted, error) {
	v := m.Volume
	switch {
	case v.ISCSI != nil:
		return m.mountPodISCSI(ctx)
	case v.CSI != nil:
		return m.mountInline(ctx)
	}
	claim, readOnly, err := m.claim(ctx)
	if err == nil {
		err = m.checkClaim(claim)
	}
	switch {
	case err != nil && m.Refresh && ctx.Err() == nil:
		return m.keep(err), nil
	case err != nil:
		return Mounted{}, err
	}
	mounted, err := m.mountClaim(ctx, claim, readOnly)
	mounted.ReadOnly = mounted.ReadOnly || asksReadOnly(v)
	return mounted, err
}

// mountClaim mounts the PersistentVolume of a claim, once for all volumes of the pod with this claim.
func (m *mounting) mountClaim(ctx context.Context, claim *storage.Claim, readOnly bool) (Mounted, error) {
	if claim.PV.Spec.CSI != nil { // its driver reads the mount options
		return m.mountCSI(ctx, claim, readOnly)
	}
	readOnly = readOnly || hasReadOnlyOption(claim.PV)
	if claim.PV.Spec.ISCSI != nil {
		return m.mountISCSI(ctx, claim, readOnly)
	}
	return m.mountPersistent(ctx, claim, readOnly)
}

// hasReadOnlyOption reports whether a PersistentVolume is read-only by its mount options. Then nothing may be written
// to its device, not even by a repair: another node may use it.
func hasReadOnlyOption(pv *corev1.PersistentVolume) bool {
	options := strings.Join(podfs.MountOptions(pv), ",")
	return slices.Contains(strings.Split(options, ","), "ro")
}

// claimProtection is a finalizer of claims: a claim that is being deleted stays until the pods that use it have ended.
const claimProtection = "kubernetes.io/pvc-protection"

// checkClaim returns an error if the pod must not use a claim, or not in the way its containers do.
func (m *mounting) checkClaim(claim *storage.Claim) error {
	if claim.PVC.DeletionTimestamp != nil && !slices.Contains(claim.PVC.Finalizers, claimProtection) {
		return fmt.Errorf("volume %q: PVC %s is being deleted", m.Volume.Name, claim.PVC.Name)
	}
	mounts, devices := podutil.VolumeUse(&m.Pod.Spec, m.Volume.Name)
	switch {
	case mounts && claim.Block():
		return fmt.Errorf("volume %q has volumeMode Block, but is specified in volumeMounts", m.Volume.Name)
	case devices && !claim.Block():
		return fmt.Errorf("volume %q has volumeMode Filesystem, but is specified in volumeDevices", m.Volume.Name)
	}
	return nil
}

// keep leaves a mounted volume as it is until the next refresh, because its claim cannot be used. The API server may
// not answer for a while, and the claim or its PersistentVolume may be deleted under a pod that runs.
func (m *mounting) keep(err error) Mounted {
	m.log().Warn("cannot refresh a mounted volume without its claim", "volume", m.Volume.Name, "err", err)
	kept := m.Mounted
	kept.RefreshAt = refreshAt()
	return kept
}

// mountPersistent mounts a PersistentVolume that no driver mounts.
func (m *mounting) mountPersistent(ctx context.Context, claim *storage.Claim, readOnly bool) (
	mounted Mounted, err error) {
	if !m.Refresh {
		defer m.count(ctx, mountOf(claim.Block()), pluginname.OfPersistent(claim.PV), time.Now(), &err)
		if err := m.cfg.Cluster.CheckAffinity(claim.PV); err != nil {
			return mounted, err
		}
	}
	p := podfs.Persistent{
		Pod:      m.Pod,
		PV:       claim.PV,
		ReadOnly: readOnly,
		Block:    claim.Block(),
		Grow:     claim.Growth() != nil,
	}
	mounted, err = m.cfg.Pods.MountPersistent(ctx, p)
	if err != nil || claim.PV.Spec.Local == nil {
		return mounted, err
	}
	mounted.RefreshAt = refreshAt()
	return mounted, m.unlessInUse(claim.PV.Name, m.expandLocal(ctx, claim, p))
}

func refreshAt() time.Time { return time.Now().Add(refreshInterval + rand.N(refreshInterval/2)) }

func (m *mounting) log() *slog.Logger {
	return m.cfg.Log.With("pod", podutil.Name(m.Pod), "podUID", m.Pod.UID)
}
