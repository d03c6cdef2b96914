package execute

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/agent/spec"
	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/volumes"
	"github.com/nodelet/nodelet/volumes/podfs"
)

// mounts mounts and unmounts the volumes of pods.
type mounts struct {
	*Backends
	limiters *limiters
}

// mount mounts one of the pod's volumes, or refreshes its contents. Fewer sandboxes are created meanwhile. An
// external volume counts for a shorter time: its disk may first have to be attached or provisioned, which does not
// load this node.
func (x *mounts) mount(ctx context.Context, t *Task, s podstate.Mount) (m volumes.Mounted, err error) {
	v := podutil.Volume(&t.Pod.Spec, s.Volume)
	if v == nil {
		return m, fmt.Errorf("volume %q is no longer in the spec of the pod", s.Volume)
	}
	countFor := volumeCountFor
	if podfs.External(v) {
		countFor = externalVolumeCountFor
	}
	err = x.limiters.create.Yield(countFor, func() error {
		m, err = x.Volumes.Mount(ctx, x.request(t, v, t.last), x.Objects(t.Pod))
		return err
	})
	if _, ok := errors.AsType[*volumes.ExpansionError](err); t.last != nil && ok { // the pod has the volume
		err = &spec.Reason{Reason: "VolumeResizeFailed", Message: err.Error()}
	}
	return m, err
}

func (x *mounts) unmount(ctx context.Context, t *Task) error {
	return x.Volumes.Unmount(ctx, t.Pod.UID, t.onDisk)
}

// request returns the request to mount a volume, or to refresh it if last is what its last mount has returned.
func (x *mounts) request(t *Task, v *corev1.Volume, last *volumes.Mounted) volumes.Request {
	node := x.Node()
	return volumes.Request{
		Request: podfs.Request{
			Pod:         t.Pod,
			Volume:      v,
			Allocatable: node.Allocatable,
			Now:         time.Now(),
			Refresh:     last != nil,
		},
		Mounted:   ptr.Deref(last, volumes.Mounted{}),
		Unstarted: len(t.Instances) == 0,
		Limit:     x.limiters.publish.Do,
		SELinux: volumes.SELinux{
			Enabled:   node.SELinux,
			EveryMode: node.SELinuxMount,
			Labels:    func() ([]string, error) { return spec.VolumeLabels(node, t.Pod, v.Name) },
		},
	}
}
