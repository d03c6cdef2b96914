package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/nodelet/nodelet/agent/plan"
	"github.com/nodelet/nodelet/volumes"
)

// mount sets up one of the pod's volumes, or refreshes its content.
func (t *task) mount(ctx context.Context, s plan.Mount) (volumes.Mounted, error) {
	for i := range t.pod.Spec.Volumes {
		if v := &t.pod.Spec.Volumes[i]; v.Name == s.Volume {
			r := volumes.Request{Pod: t.pod, Volume: v, Allocatable: t.hands.Node().Allocatable, Now: time.Now()}
			return t.hands.Volumes.Mount(ctx, r, t.hands.Objects(t.pod))
		}
	}
	return volumes.Mounted{}, fmt.Errorf("volume %q is not in the pod's spec any more", s.Volume)
}
