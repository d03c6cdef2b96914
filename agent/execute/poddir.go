package execute

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/agent/podstate"
)

// podDirs makes and removes what a pod has on the node as a whole: its directories, its cgroup, its IDs.
type podDirs struct {
	*Backends
}

// prepare creates the pod's directory and its cgroup.
func (x *podDirs) prepare(t *Task) (*podstate.Size, error) {
	if err := x.PodFiles.MakePodDir(t.Pod.UID); err != nil {
		return nil, fmt.Errorf("make pod directory: %w", err)
	}
	return x.Cgroups.Prepare(t.Pod)
}

// markReset records how far a reset of the pod is.
func (x *podDirs) markReset(t *Task, s podstate.MarkReset) error {
	if s.Mark == podstate.ResetUnmarked {
		return x.PodFiles.UnmarkReset(t.Pod.UID)
	}
	return x.PodFiles.MarkReset(t.Pod.UID, string(s.Mark))
}

// remove removes what is left on the disk of a pod that is gone. The pod directory goes last, because by it a later
// process finds the rest.
func (x *podDirs) remove(ctx context.Context, t *Task) error {
	if err := x.Logs.RemovePod(&t.Pod.ObjectMeta); err != nil {
		return err
	}
	if err := x.PodFiles.RemovePodDir(ctx, t.Pod.UID); err != nil {
		return err
	}
	x.Devices.Release(t.Pod.UID)
	x.Placement.Release(t.Pod.UID)
	return x.UserNamespaces.Release(t.Pod.UID)
}

// FreeIDs gives back the IDs of the user namespace of a pod of which nothing runs any more: the API may show the pod
// for days, and there may be IDs for maxPods pods only.
func (x *Executor) FreeIDs(pod types.UID) error { return x.backends.UserNamespaces.Release(pod) }
