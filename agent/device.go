package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/agent/spec"
	"github.com/nodelet/nodelet/cri"
)

// reserveDevices reserves the devices that a newly admitted pod requests. It runs in the supervisor's loop, so that
// pods are served in order. The plugins are called in a goroutine, and only this pod waits for them.
func (s *Supervisor) reserveDevices(ctx context.Context, e *entry) {
	allocate, err := s.backends.Devices.Reserve(e.source, s.devicesUnused)
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
	_, err := os.Lstat(s.backends.Node().PodDir(pod))
	return errors.Is(err, fs.ErrNotExist)
}

// stopped reports whether the pod was observed and none of its containers runs or may run.
func (w *worker) stopped() bool {
	snapshot := w.result.Load().snapshot
	return snapshot != nil && !slices.ContainsFunc(snapshot.Containers, func(c cri.Container) bool {
		return c.State != runtimeapi.ContainerState_CONTAINER_EXITED
	})
}

// devices returns what device plugins and resource claims add to a container that is about to be created.
func (t *task) devices(ctx context.Context, c *corev1.Container) (out spec.Devices, err error) {
	if out, err = t.pluginDevices(ctx, c); err != nil {
		return out, err
	}
	claimed, err := t.backends.Claims.Devices(t.pod, c)
	out.CDI = append(claimed, out.CDI...)
	return out, err
}

func (t *task) pluginDevices(ctx context.Context, c *corev1.Container) (spec.Devices, error) {
	given, err := t.backends.Devices.Container(ctx, t.pod, c)
	if err != nil || given == nil {
		return spec.Devices{}, err
	}
	out := spec.Devices{Annotations: given.Annotations}
	for _, name := range slices.Sorted(maps.Keys(given.Envs)) {
		out.Envs = append(out.Envs, &runtimeapi.KeyValue{Key: name, Value: []byte(given.Envs[name])})
	}
	for _, m := range given.Mounts {
		out.Mounts = append(out.Mounts, spec.DeviceMount{
			HostPath:      m.HostPath,
			ContainerPath: m.ContainerPath,
			ReadOnly:      m.ReadOnly,
		})
	}
	for _, d := range given.Devices {
		out.Devices = append(out.Devices, &runtimeapi.Device{
			ContainerPath: d.ContainerPath,
			HostPath:      d.HostPath,
			Permissions:   d.Permissions,
		})
	}
	for _, d := range given.CdiDevices {
		out.CDI = append(out.CDI, d.Name)
	}
	return out, nil
}
