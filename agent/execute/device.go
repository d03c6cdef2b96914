package execute

import (
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/agent/spec"
)

// devices returns what device plugins and resource claims add to a container that is about to be created.
func (x *inputs) devices(ctx context.Context, pod *corev1.Pod, c *corev1.Container) (out spec.Devices, err error) {
	if out, err = x.pluginDevices(ctx, pod, c); err != nil {
		return out, err
	}
	claimed, err := x.Claims.Devices(pod, c)
	out.CDI = append(claimed, out.CDI...)
	return out, err
}

func (x *inputs) pluginDevices(ctx context.Context, pod *corev1.Pod, c *corev1.Container) (spec.Devices, error) {
	given, err := x.Devices.Container(ctx, pod, c)
	if err != nil || given == nil {
		return spec.Devices{}, err
	}
	out := spec.Devices{Annotations: given.Annotations}
	for _, name := range slices.Sorted(maps.Keys(given.Envs)) {
		out.Envs = append(out.Envs, &runtimeapi.KeyValue{Key: name, Value: []byte(given.Envs[name])})
	}
	for _, m := range given.Mounts {
		out.Mounts = append(out.Mounts, &runtimeapi.Mount{
			HostPath:      m.HostPath,
			ContainerPath: m.ContainerPath,
			Readonly:      m.ReadOnly,
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
