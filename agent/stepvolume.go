package agent

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/agent/spec"
	"github.com/nodelet/nodelet/volumes"
)

// Volumes mounts and unmounts the volumes of pods. It is *volumes.Manager, where each method is described.
type Volumes interface {
	Mount(ctx context.Context, r volumes.Request, objects volumes.Objects) (volumes.Mounted, error)
	Unmount(ctx context.Context, pod types.UID, v volumes.OnDisk) error
	List(pod types.UID) ([]volumes.OnDisk, error)
	Pods() ([]types.UID, error)
}

// mount mounts one of the pod's volumes, or refreshes its contents. Fewer sandboxes are created meanwhile. An
// external volume counts for a shorter time: its disk may first have to be attached or provisioned, which does not
// load this node.
func (t *task) mount(ctx context.Context, s podstate.Mount) (m volumes.Mounted, err error) {
	v := volumeOf(t.pod, s.Volume)
	if v == nil {
		return m, fmt.Errorf("volume %q is not in the pod's spec any more", s.Volume)
	}
	countFor := volumeCounts
	if volumes.External(v) {
		countFor = externalVolumeCounts
	}
	err = t.limiters.create.yield(countFor, func() error {
		m, err = t.backends.Volumes.Mount(ctx, t.volumeRequest(v), t.backends.Objects(t.pod))
		return err
	})
	return m, err
}

func volumeOf(pod *corev1.Pod, name string) *corev1.Volume {
	for i := range pod.Spec.Volumes {
		if v := &pod.Spec.Volumes[i]; v.Name == name {
			return v
		}
	}
	return nil
}

func (t *task) volumeRequest(v *corev1.Volume) volumes.Request {
	node := t.backends.Node()
	return volumes.Request{
		Pod:         t.pod,
		Volume:      v,
		Allocatable: node.Allocatable,
		Now:         time.Now(),
		Limit:       t.limiters.publish.do,
		SELinux: volumes.SELinux{
			Enabled:   node.SELinux,
			EveryMode: node.SELinuxMount,
			Labels:    func() ([]string, error) { return spec.VolumeLabels(node, t.pod, v.Name) },
		},
	}
}
