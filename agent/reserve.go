package agent

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/agent/podstate"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// reserve gives a newly admitted pod the CPUs, the memory and the devices that it requests for itself. It runs in the
// supervisor's loop, so that pods are served in order. Files are written and plugins are called in a goroutine, and
// only this pod waits for them.
func (a *admitter) reserve(ctx context.Context, e *entry) {
	record, affinity, refusal := a.cfg.Placement.Admit(e.source, a.table.devicesUnused)
	if refusal != nil {
		a.reject(e, &podstate.Rejection{Reason: refusal.Reason, Message: refusal.Message})
		return
	}
	var near func(string, int64) bool
	if len(affinity) > 0 {
		near = func(container string, node int64) bool { return affinity[container].Has(int(node)) }
	}
	allocate, err := a.cfg.Devices.Reserve(e.source, near, a.table.devicesUnused)
	if err != nil {
		a.takeBack(e, err)
		return
	}
	if record == nil && allocate == nil {
		return
	}
	wait := Wait{For: "its devices", Why: "device plugins are preparing them"}
	if allocate == nil {
		wait = Wait{For: "its CPUs and memory", Why: "they are being recorded"}
	}
	a.finish(ctx, e, wait, func(ctx context.Context) error {
		if record != nil {
			if err := record(); err != nil {
				return err
			}
		}
		if allocate == nil {
			return nil
		}
		return allocate(ctx)
	}, func(err error) {
		if err != nil {
			a.takeBack(e, err)
		}
	})
}

// resume lets a pod that an earlier run of the agent has admitted wait for the plugins of its devices, if it has to
// start again, as after a reboot. If they do not register it is refused, so that its controller replaces it. A static
// pod has no controller: its containers wait instead.
func (a *admitter) resume(ctx context.Context, e *entry) {
	pod := e.source
	if e.stop != nil || a.table.listed[pod.UID].Ready || podutil.IsStatic(pod) {
		return
	}
	if wait := a.cfg.Devices.Resume(pod); wait != nil {
		a.finish(ctx, e, Wait{For: "its devices", Why: "their device plugins have not registered again"}, wait,
			func(err error) {
				if err != nil {
					a.takeBack(e, err)
				}
			})
	}
}

// takeBack rejects a pod that cannot get all that it requests for itself.
func (a *admitter) takeBack(e *entry, err error) {
	a.cfg.Placement.Release(e.source.UID)
	a.reject(e, withoutDevices(err))
}

// Ended returns those of the pods of which no process runs any more.
func (s *Supervisor) Ended(ctx context.Context, pods []types.UID) []types.UID {
	var found []types.UID
	if !s.loop.do(ctx, func() {
		for _, uid := range pods {
			if s.table.devicesUnused(uid) {
				found = append(found, uid)
			}
		}
	}) {
		return nil // the loop may still be running the function
	}
	return found
}

// withoutDevices returns the rejection that the kubelet uses when devices cannot be allocated.
func withoutDevices(err error) *podstate.Rejection {
	return &podstate.Rejection{
		Reason:  "UnexpectedAdmissionError",
		Message: fmt.Sprintf("Allocate failed due to %v, which is unexpected", err),
	}
}
