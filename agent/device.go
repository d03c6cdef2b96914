package agent

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/cri"
)

// reserveDevices reserves the devices that a newly admitted pod requests. It runs in the supervisor's loop, so that
// pods are served in order. The plugins are called in a goroutine, and only this pod waits for them.
func (s *Supervisor) reserveDevices(ctx context.Context, e *entry) {
	allocate, err := s.cfg.Devices.Reserve(e.source, s.devicesUnused)
	if err != nil {
		s.reject(e, withoutDevices(err))
		return
	}
	if allocate == nil {
		return
	}
	wait := Wait{For: "its devices", Why: "device plugins are preparing them"}
	s.finishAdmission(ctx, e, wait, allocate, func(err error) {
		if err != nil {
			s.reject(e, withoutDevices(err))
		}
	})
}

// stopAsking cancels the rest of the pod's admission.
func (e *entry) stopAsking() {
	if e.asking != nil {
		e.asking()
		e.asking = nil
	}
}

// withoutDevices returns the rejection that the kubelet uses when devices cannot be allocated.
func withoutDevices(err error) *podstate.Rejection {
	return &podstate.Rejection{
		Reason:  "UnexpectedAdmissionError",
		Message: fmt.Sprintf("Allocate failed due to %v, which is unexpected", err),
	}
}

// devicesUnused reports whether no process of the pod can use a device any more. The status of an evicted pod is
// Failed while it still runs. For an ended pod it does not wait for the rest, such as volumes: the scheduler already
// counts its devices as free.
func (s *Supervisor) devicesUnused(pod types.UID) bool {
	if e := s.workers[pod]; e != nil {
		return e.worker.isReleased() || finished(e.pod()) && e.worker.stopped()
	}
	if _, runs := s.listed[pod]; runs || s.listed == nil || !s.unwanted(pod) {
		return false
	}
	onDisk, err := s.cfg.PodFiles.HasPodDir(pod)
	return !onDisk && err == nil
}

// stopped reports whether the pod was observed and none of its containers runs or may run.
func (w *worker) stopped() bool {
	snapshot := w.result.Load().snapshot
	return snapshot != nil && !slices.ContainsFunc(snapshot.Containers, func(c cri.Container) bool {
		return c.State != runtimeapi.ContainerState_CONTAINER_EXITED
	})
}
