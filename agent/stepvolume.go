package agent

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/agent/plan"
	"github.com/nodelet/nodelet/volumes"
	"github.com/nodelet/nodelet/volumes/iscsi"
)

// mount sets up one of the pod's volumes, or refreshes its content. Sandboxes stand back for it, less long where it is behind a claim:
// that may have to be attached or made first, which takes its time elsewhere.
func (t *task) mount(ctx context.Context, s plan.Mount) (m volumes.Mounted, err error) {
	for i := range t.pod.Spec.Volumes {
		v := &t.pod.Spec.Volumes[i]
		if v.Name != s.Volume {
			continue
		}
		patience, set := aheadPatience, t.mountContent
		if volumes.Claims(v) {
			patience, set = claimPatience, t.mountClaims
		}
		err = t.gates.create.goAhead(patience, func() (err error) {
			m, err = set(ctx, v)
			return err
		})
		return m, err
	}
	return volumes.Mounted{}, fmt.Errorf("volume %q is not in the pod's spec any more", s.Volume)
}

// mountContent sets up a volume that is made on this node.
func (t *task) mountContent(ctx context.Context, v *corev1.Volume) (volumes.Mounted, error) {
	r := volumes.Request{Pod: t.pod, Volume: v, Allocatable: t.hands.Node().Allocatable, Now: time.Now()}
	return t.hands.Volumes.Mount(ctx, r, t.hands.Objects(t.pod))
}

// unmount takes a volume of the pod down.
func (t *task) unmount(ctx context.Context) error {
	if !staged(t.onDisk) {
		return t.hands.Volumes.Unmount(ctx, t.pod.UID, t.onDisk)
	}
	if err := t.hands.Volumes.UnmountSubpaths(ctx, t.pod.UID, t.onDisk.Name); err != nil {
		return err
	}
	err := t.hands.CSI.Unpublish(ctx, t.pod.UID, t.onDisk.Name)
	if err != nil || t.onDisk.Plugin == volumes.PluginCSI {
		return err
	}
	return t.hands.Volumes.Unmount(ctx, t.pod.UID, t.onDisk) // what a kubelet may have left that csi does not know
}

// staged: the volume is the csi room's.
func staged(v volumes.OnDisk) bool { return v.Plugin == volumes.PluginCSI || v.Plugin == iscsi.Plugin }

// withClaims adds the CSI volumes that a pod has a claim on to those that have a directory.
func (h *Hands) withClaims(pod types.UID, onDisk []volumes.OnDisk) []volumes.OnDisk {
	if h.CSI == nil {
		return onDisk
	}
	seen := map[string]bool{}
	for _, v := range onDisk {
		if staged(v) {
			seen[v.Name] = true
		}
	}
	for _, name := range h.CSI.Used(pod) {
		if !seen[name] {
			onDisk = append(onDisk, volumes.OnDisk{Plugin: volumes.PluginCSI, Name: name})
		}
	}
	return onDisk
}
