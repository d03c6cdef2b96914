package agent

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/agent/podstate"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// preparation is what is left to do when a pod has what it requests for itself: files are written and plugins are
// called in a goroutine, and only this pod waits for them. Nil: nothing.
type preparation struct {
	awaited Wait
	run     func(context.Context) error
}

// reserve gives a newly admitted pod the CPUs, the memory and the devices that it requests for itself, or refuses it.
// It runs in the supervisor's loop, so that pods are served in order.
func (d *dispatcher) reserve(e *entry) (rest *preparation, reserved bool) {
	record, affinity, rejection := d.cfg.Placement.Admit(e.source)
	if rejection != nil {
		d.reject(e, rejection)
		return nil, false
	}
	var near func(string, int64) bool
	if len(affinity) > 0 {
		near = func(container string, node int64) bool { return affinity[container].Has(int(node)) }
	}
	allocate, err := d.cfg.Devices.Reserve(e.source, near)
	if err != nil {
		d.takeBack(e, err)
		return nil, false
	}
	if record == nil && allocate == nil {
		return nil, true
	}
	wait := Wait{For: "its devices", Why: "device plugins have not prepared " + extended(e.source) +
		" yet, for it or for an earlier pod"}
	if allocate == nil {
		wait = Wait{For: "its CPUs and memory", Why: "they are being recorded"}
	}
	return &preparation{wait, func(ctx context.Context) error { return recordAndAllocate(ctx, record, allocate) }}, true
}

// extended returns the names of the resources that a pod requests and that device plugins provide.
func extended(pod *corev1.Pod) string {
	names := map[string]bool{}
	for _, c := range podutil.ContainersWithResources(&pod.Spec) {
		for name := range c.Resources.Limits {
			if strings.Contains(string(name), "/") {
				names[string(name)] = true
			}
		}
	}
	return strings.Join(slices.Sorted(maps.Keys(names)), ", ")
}

// recordAndAllocate calls both functions; either may be nil. allocate has to be called also after an error, because it
// ends the reservation: then it finds its context ended.
func recordAndAllocate(ctx context.Context, record func() error, allocate func(context.Context) error) (err error) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	if record != nil {
		err = record()
	}
	if err != nil {
		end()
	}
	if allocate != nil {
		err = cmp.Or(err, allocate(ctx))
	}
	return err
}

// preparedAgain is how long a refused static pod waits after files could not be written or plugins have failed. What
// changes that, such as free space on the disk, is not seen.
const preparedAgain = time.Minute

// prepare does what is left to do for a pod, and refuses the pod if that fails.
func (d *dispatcher) prepare(ctx context.Context, e *entry, rest *preparation) {
	if rest == nil {
		return
	}
	pod := e.source.UID // the loop alone may read the entry
	d.await(ctx, e, rest.awaited, func(ctx context.Context) error {
		err := rest.run(ctx)
		if err != nil && ctx.Err() == nil { // else the pod has to end, or the next run of the agent goes on
			d.cfg.Devices.Release(pod)
		}
		return err
	}, func(err error) {
		if err == nil || shownEnded(e.pod()) || e.worker.hasEnded() { // what had ended before a reboot needs nothing
			return
		}
		d.takeBack(e, err)
		if !e.retryAt.IsZero() {
			e.retryAt = e.retryAt.Add(preparedAgain)
		}
	})
}

// resume goes on with a pod that an earlier run of the agent has admitted. If it has to start again, as after a reboot,
// it waits for the plugins of its devices, and its worker gets orders meanwhile. If they do not register it is refused,
// so that its controller replaces it. A static pod has no controller: its containers wait instead.
func (d *dispatcher) resume(ctx context.Context, e *entry) {
	if e.stop != nil {
		return
	}
	d.cfg.Placement.Resume(e.pod())
	pod := e.source
	if d.table.listed[pod.UID].Ready || podutil.IsStatic(pod) {
		return
	}
	if wait := d.cfg.Devices.Resume(pod); wait != nil {
		awaited := Wait{For: "its devices", Why: "the device plugins of " + extended(pod) +
			" have not registered again, or report devices of the pod as unhealthy"}
		d.prepare(ctx, e, &preparation{awaited, wait})
		e.admitting.resumed = true
	}
}

// takeBack rejects a pod that cannot get all that it requests for itself.
func (d *dispatcher) takeBack(e *entry, err error) {
	d.cfg.Placement.Release(e.source.UID)
	d.reject(e, podstate.Rejected(err))
}

// WithEnded calls f in the supervisor's loop, where no pod is admitted meanwhile. ended reports whether no process of a
// pod runs any more.
func (s *Supervisor) WithEnded(ctx context.Context, f func(ended func(types.UID) bool)) {
	s.loop.do(ctx, func() { f(s.table.ended) })
}
