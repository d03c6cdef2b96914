package execute

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/agent/spec"
	"github.com/nodelet/nodelet/cri/images"
	"github.com/nodelet/nodelet/volumes"
)

// Task is a step with the facts of the pod that it needs, taken when it starts, so that it can run beside the worker.
type Task struct {
	Log  *slog.Logger
	Step podstate.Step
	Pod  *corev1.Pod
	// Sandbox is the pod's current sandbox; nil if there is none.
	Sandbox *podstate.Sandbox
	// Instances are the pod's containers in the runtime.
	Instances []podstate.Container
	// Ending: the pod must not run any more.
	Ending bool

	// made is how the container was created, for PreStop.
	made spec.ContainerFacts
	// begun is the stop of the container that has begun before, for PreStop and StopContainer.
	begun podstate.StopContainer
	// last is what the last mount of the volume has returned, nil if it is not mounted, for Mount.
	last *volumes.Mounted
	// mounts are the mounted volumes by name and image the container's image, for CreateContainer.
	mounts map[string]volumes.Mounted
	image  images.Image
	// pulled are the images that are present, by the keys of their steps, for CreateContainer.
	pulled map[podstate.Key]images.Image
	// services are those read while the sandbox was created, for CreateContainer.
	services *serviceRead
	// onDisk is the volume's directory, for Unmount.
	onDisk volumes.OnDisk
	// has is the size of the pod's cgroup, for ResizePod; the zero value if it is not known.
	has podstate.Size
}

// instance returns the instance with an ID; nil if there is none.
func (t *Task) instance(id string) *podstate.Container {
	for i := range t.Instances {
		if t.Instances[i].ID == id {
			return &t.Instances[i]
		}
	}
	return nil
}

// podIPs returns the addresses of the pod's sandbox.
func (t *Task) podIPs() []string {
	if t.Sandbox == nil {
		return nil
	}
	return t.Sandbox.IPs
}

// Outcome is the result of a step, with what only a Results must remember of it.
type Outcome struct {
	podstate.Result
	Took    time.Duration
	mounted volumes.Mounted
	image   images.Image
}

// Results are what the steps of one pod have left for later ones. The pod's worker owns it: it passes each Outcome to
// Add, and all of them to Executor.Begin before a later step. Losing them costs repeated work only.
type Results struct {
	// mounts are the mounted volumes by name, and pulled the images that are present by the keys of their steps.
	mounts map[string]volumes.Mounted
	pulled map[podstate.Key]images.Image
	// services are those that were read while the sandbox was created.
	services *serviceRead
	// onDisk are the volumes that the end of the pod must unmount, by the names that its plan has for them.
	onDisk map[string]volumes.OnDisk
}

// NewResults returns Results of a pod of which no step has run.
func NewResults() Results {
	return Results{mounts: map[string]volumes.Mounted{}, pulled: map[podstate.Key]images.Image{}}
}

// Add keeps what later steps need of an outcome.
func (r *Results) Add(o *Outcome) {
	if o.Problem != nil {
		return // what an earlier step has left counts
	}
	switch s := o.Step.(type) {
	case podstate.Mount:
		r.mounts[s.Volume] = o.mounted
	case podstate.EnsureImage:
		r.pulled[s.Key()] = o.image
	}
}

// ListVolumes returns the names, for the plan, of the volumes that an ending pod has on the node, and keeps them in r.
func (x *Executor) ListVolumes(pod types.UID, r *Results) (names []string, err error) {
	all, err := x.backends.Volumes.List(pod)
	if err != nil && !errors.Is(err, os.ErrNotExist) { // the directory may be removed at this moment
		return nil, err
	}
	r.onDisk = map[string]volumes.OnDisk{}
	ofPod := map[string]string{} // the names of the pod's volumes, by those of their directories
	for name, m := range r.mounts {
		ofPod[m.Name] = name
	}
	for _, v := range all {
		name := cmp.Or(ofPod[v.Name], v.Name)
		if _, taken := r.onDisk[name]; taken {
			name = v.Plugin + " " + v.Name // a PersistentVolume may have the name of one of the pod's volumes
		}
		r.onDisk[name] = v
		names = append(names, name)
	}
	return names, nil
}

// Paths returns the paths of the mounted volumes, of block volumes those of the devices, by name: the map of the last
// call if nothing has changed.
func (r *Results) Paths(last map[string]string) map[string]string {
	same := len(last) == len(r.mounts)
	for name, m := range r.mounts {
		same = same && last[name] == cmp.Or(m.HostPath, m.Device)
	}
	if same {
		return last
	}
	all := make(map[string]string, len(r.mounts))
	for name, m := range r.mounts {
		all[name] = cmp.Or(m.HostPath, m.Device)
	}
	return all
}

// Begin completes a task with what is remembered of earlier steps and what they have left, and begins to read what
// later ones will need. made returns how an instance was created. It copies maps, as they change while the step runs.
func (x *Executor) Begin(
	ctx context.Context, t *Task, r *Results, memory podstate.Recall, made func(id string) spec.ContainerFacts,
) {
	switch s := t.Step.(type) {
	case podstate.PreStop:
		t.made, t.begun = made(s.ID), memory.Instance(s.ID).Stop
	case podstate.StopContainer:
		t.begun = memory.Instance(s.ID).Stop
	case podstate.CreateSandbox:
		r.services = readServices(ctx, x.backends.Objects(t.Pod), t.Pod)
	case podstate.Mount:
		if _, mounted := memory.Volume(s.Volume); mounted {
			t.last = new(r.mounts[s.Volume])
		}
	case podstate.CreateContainer:
		t.mounts, t.pulled = maps.Clone(r.mounts), maps.Clone(r.pulled)
		t.services = r.services
		t.image = r.pulled[podstate.EnsureImage{Container: s.Name}.Key()]
	case podstate.Unmount:
		t.onDisk = r.onDisk[s.Volume]
	case podstate.ResizePod:
		t.has, _ = memory.PodSize()
	}
}
