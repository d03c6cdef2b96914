package plan

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent/podstate"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// shortOfDisk reports whether the node can be short of disk space in this run: its images may be removed, and what is
// left of the pod once it has ended. In all other runs each image is always there. The choice is not random, so that
// the other runs do not change; the seeds that once broke a rule are among those.
func (l *simRun) shortOfDisk() bool { return l.seed%9 == 4 }

// freeDisk removes all images from the node, also while a container is waiting for something else, or asks for the
// removal of what is left of the pod. Like the supervisor it does that only when the API shows the end of the pod.
func (l *simRun) freeDisk() {
	if !l.shortOfDisk() {
		return
	}
	switch ended := l.plan.Released && podutil.IsTerminal(l.desired.Pod.Status.Phase); {
	case !chance(l.r, 4):
	case ended && !l.desired.Reclaim:
		l.note("what is left of the pod is to be removed")
		l.desired.Reclaim = true
	default:
		l.note("all images are removed from the node")
		clear(l.images)
	}
}

// evictedFor returns the reason and the message of an eviction: pods are also preempted on a node short of disk space.
func (l *simRun) evictedFor() (reason, message string) {
	if l.shortOfDisk() && chance(l.r, 2) {
		return podutil.ReasonPreempting, podutil.MessagePreempted
	}
	return "Evicted", "memory"
}

// reclaimed checks that a pod counts as reclaimed only when it has ended and the runtime has nothing left of it.
func (ru *rules) reclaimed(p *Plan) {
	if l := ru.l; p.Reclaimed && (!p.Released || len(l.sandboxes) > 0 || len(l.containers) > 0) {
		ru.breaks("reclaimed with %d sandboxes and %d containers; released: %t", len(l.sandboxes), len(l.containers),
			p.Released)
	}
}

// reclaimedAtRest checks that at rest nothing is left of an ended pod that is to be reclaimed.
func (ru *rules) reclaimedAtRest() {
	if d := &ru.l.desired; d.Reclaim && !d.Stop.Is(podstate.StopOrphaned) && !ru.l.plan.Reclaimed {
		ru.breaks("at rest, and the pod is not reclaimed")
	}
}

// imageEffect brings an image to the node, or only looks whether it is there.
func (w *world) imageEffect(s podstate.EnsureImage) *podstate.Problem {
	switch {
	case w.images == nil || w.images[s.Image]:
	case s.Look:
		return &podstate.Problem{Message: "no such image"}
	default:
		w.images[s.Image] = true
	}
	return nil
}

// lacksImage reports whether the node does not have the image of a container that is to be created.
func (w *world) lacksImage(by *call) bool { return w.images != nil && !w.images[by.image] }

// pullsAlways reports whether all images of this run have the pull policy Always. The choice is as that of shortOfDisk.
func (l *simRun) pullsAlways() bool { return l.seed%16 == 7 }

// imageAnswered records which images this run of the agent has ensured. A failed creation may mean that the image is
// not there any more.
func (ru *rules) imageAnswered(c *call) {
	switch s := c.step.(type) {
	case podstate.EnsureImage:
		if c.problem == nil {
			ru.imaged[s.Container] = podstate.Image{Attempt: s.Attempt, Image: s.Image, At: ru.l.now}
		}
	case podstate.CreateContainer:
		if c.problem != nil && !c.problem.Cancelled {
			delete(ru.imaged, s.Name)
		}
	}
}

// imageFirst checks that no container is created before its image has been ensured for this attempt, again after a
// failed creation, and with the policy Always not long ago.
func (ru *rules) imageFirst(s podstate.CreateContainer) {
	_, spec := podutil.Container(&ru.l.desired.Pod.Spec, s.Name)
	if spec == nil {
		return
	}
	have := ru.imaged[s.Name]
	if have.Attempt != s.Attempt || have.Image != spec.Image {
		ru.breaks("%s before its image %s has been ensured for this attempt", s, spec.Image)
	}
	if age := ru.l.now.Sub(have.At); spec.ImagePullPolicy == corev1.PullAlways && age > podstate.PullAgainAfter {
		ru.breaks("%s with an image that was pulled %s ago", s, age)
	}
}

// delayed is a status on its way to the API.
type delayed struct {
	status *corev1.PodStatus
	at     time.Time
}

// onCRIO reports whether the runtime of this run removes an instance that fails to start, as CRI-O does. In all others
// the instance stays as it is. The choice is as that of shortOfDisk.
func (l *simRun) onCRIO() bool { return l.seed%13 == 6 }

// apiLags reports whether statuses take a while to reach the API in this run. In all others the API has each status at
// once, or none for a while. The choice is as that of shortOfDisk.
func (l *simRun) apiLags() bool { return l.seed%11 == 4 }

// sendStatus sends the newest status to the API, if none is on its way and the API does not have it.
func (l *simRun) sendStatus() {
	newest := l.memory.Reported
	if !l.lagging || l.apiBehind || l.sent.status != nil || l.apiHas(newest) {
		return
	}
	l.sent = delayed{newest, l.now.Add(l.within(2 * time.Second))}
}

// statusArrives brings the status that is on its way to the API.
func (l *simRun) statusArrives() {
	if l.sent.status != nil && !l.apiBehind {
		l.note("a status arrives")
		l.setStatus(l.sent.status)
	}
	l.sent = delayed{}
}

// statusLost decides what becomes of a status that is on its way when its agent is killed.
func (l *simRun) statusLost() {
	if l.sent.status != nil && chance(l.r, 2) {
		l.statusArrives()
	}
	l.sent = delayed{}
}
