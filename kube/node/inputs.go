package node

import (
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/internal/latest"
)

// inputs are what other parts of the agent have set. Its methods are those of the Reporter.
type inputs struct {
	wake      latest.Signal // set after a change
	maxImages int           // -1: all

	mu           sync.Mutex
	health       health
	everReady    bool // the node had no problem once since the agent started
	images       []corev1.ContainerImage
	volumesInUse []corev1.UniqueVolumeName
	// reported are the volumes that the API server has in the list: they were in the last one that it has accepted, and in
	// each one that was sent since.
	reported []corev1.UniqueVolumeName
	// devices and healthy are the number of devices, and the number of those that pods may use.
	devices, healthy corev1.ResourceList
}

// RuntimeAnswered sets the last answer of the runtime, and reports whether the runtime and its network are ready. A
// change is sent at once. network returns what the agent itself knows of the pod network: a problem, or nil.
func (in *inputs) RuntimeAnswered(v *runtimeapi.VersionResponse, s *runtimeapi.StatusResponse,
	network func(ready bool) error) bool {
	answer := runtimeOf(v, s)
	answer = answer.withNetwork(network(answer.Network.OK))
	in.setRuntime(answer)
	return answer.Ready.OK && answer.Network.OK
}

func (in *inputs) setRuntime(s Runtime) {
	in.set(func() bool {
		now := time.Now()
		expired := now.Sub(in.health.answered) >= runtimeTimeout // also before the first answer
		changed := expired || !reflect.DeepEqual(in.health.runtime, s)
		if in.health.listed.IsZero() {
			in.health.listed = now
		}
		in.health.runtime, in.health.answered = s, now
		return changed
	})
}

// RuntimeListed notes that the runtime has listed its pods. A runtime that answers but cannot do that makes the node
// not Ready: the agent does not see which containers have ended.
func (in *inputs) RuntimeListed() {
	in.set(func() bool {
		now := time.Now()
		expired := !in.health.listed.IsZero() && now.Sub(in.health.listed) >= listTimeout
		in.health.listed = now
		return expired
	})
}

// SetPressure sets whether each condition that is known holds. The object keeps the others: the scheduler is not to
// send pods to a node that is short because the agent restarts. A change is sent at once. p must not change afterwards.
func (in *inputs) SetPressure(p map[corev1.NodeConditionType]bool) {
	in.set(func() bool {
		changed := !maps.Equal(in.health.pressure, p)
		in.health.pressure = p
		return changed
	})
}

// SetShutdown makes the node not Ready with err in the message, because the node shuts down; nil ends that. The
// change is sent at once.
func (in *inputs) SetShutdown(err error) {
	in.set(func() bool { in.health.shutdown = err; return true })
}

// SetStorage makes the node not Ready with problem in the message, because a storage object that says something about
// the node does not exist yet; nil ends that. The change is sent at once.
func (in *inputs) SetStorage(problem error) {
	in.set(func() bool { in.health.storage = problem; return true })
}

// SetImages sets the list of all images on the node. Before the first call the object keeps its list. A change is sent
// with the next tick: the list is long, and pods that start pull images one after the other.
func (in *inputs) SetImages(images []*runtimeapi.Image) {
	list := imageList(images, in.maxImages)
	in.set(func() bool { in.images = list; return false })
}

// SetVolumesInUse sets the attachable volumes that pods of this node use or may still use, sorted. Before the first
// call the object keeps its list. The controller manager does not detach a volume that is in the list.
func (in *inputs) SetVolumesInUse(v []corev1.UniqueVolumeName) {
	v = append([]corev1.UniqueVolumeName{}, v...)
	in.set(func() bool {
		changed := in.volumesInUse == nil || !slices.Equal(in.volumesInUse, v)
		in.volumesInUse = v
		return changed
	})
}

// InUse reports whether the API server has a volume in the list that SetVolumesInUse has set, so that the volume is not
// detached. volumesInUse of Node does not say that: it may be from before the volume left the list, and came back.
func (in *inputs) InUse(name corev1.UniqueVolumeName) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return slices.Contains(in.reported, name)
}

// SetDevices sets how many devices the node has by resource, and how many of them pods may use. A change is sent at
// once.
func (in *inputs) SetDevices(all, healthy corev1.ResourceList) {
	in.set(func() bool {
		changed := !equality.Semantic.DeepEqual(in.devices, all) || !equality.Semantic.DeepEqual(in.healthy, healthy)
		in.devices, in.healthy = all, healthy
		return changed
	})
}

// set changes the inputs, and wakes report if change reports that something is new.
func (in *inputs) set(change func() bool) {
	in.mu.Lock()
	changed := change()
	in.everReady = in.everReady || in.health.problems(time.Now()) == nil
	in.mu.Unlock()
	if changed {
		in.wake.Set()
	}
}

func (in *inputs) healthNow() health {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.health
}

// setReported sets the volumes that the API server has in the list while no request that changes it is under way. It
// reports whether there are more than before.
func (in *inputs) setReported(now []corev1.UniqueVolumeName) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	before := in.reported
	in.reported = now
	return slices.ContainsFunc(now, func(v corev1.UniqueVolumeName) bool { return !slices.Contains(before, v) })
}
