package instruments

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/metrics/usage"
)

// Volumes knows the volumes of pods: *volumes.Manager, where the methods are described.
type Volumes interface {
	Plugin(pod *corev1.Pod, v *corev1.Volume, mounted string) string
	Usage(pod *corev1.Pod, mounted map[string]string) map[string]usage.Volume
}

// Cgroups knows the cgroups of pods: *podcgroups.Cgroups, or podcgroups.None.
type Cgroups interface {
	// Path returns the path of the pod's cgroup; empty if it has none.
	Path(pod *corev1.Pod) string
}

// UsagePods returns the pods of which there is something to measure.
func UsagePods(ctx context.Context, pods Pods, volumes Volumes, cgroups Cgroups) ([]usage.Pod, error) {
	all, err := pods.SyncedPods(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]usage.Pod, 0, len(all))
	for _, s := range all {
		id := s.ReadySandbox()
		if id == "" || s.Rejected {
			continue
		}
		p := usage.Pod{
			Pod:      s.Pod,
			Cgroup:   cgroups.Path(s.Pod),
			Orphaned: s.Stop.Is(podstate.StopOrphaned),
			Images:   map[string]string{},
			Volumes:  volumes.Usage(s.Pod, s.Mounted),
		}
		for _, c := range s.Running() {
			p.Images[c.Id] = c.GetImage().GetImage()
		}
		for _, sandbox := range s.Runtime.Sandboxes {
			if sandbox.Id == id {
				p.Started = time.Unix(0, sandbox.CreatedAt)
			}
		}
		out = append(out, p)
	}
	return out, nil
}
