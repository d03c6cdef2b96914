package usage

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Local is what a pod takes of the node's own disk, in bytes. What has not been measured yet is left out.
type Local struct {
	// Layers are the writable layers of the running containers, by container.
	Layers map[string]uint64
	// Logs are those of all containers that have any, by container.
	Logs map[string]uint64
	// Volumes are those that lie on the disk, by their names in the pod.
	Volumes map[string]uint64
}

// Total is everything.
func (l *Local) Total() (sum uint64) {
	for _, part := range []map[string]uint64{l.Layers, l.Logs, l.Volumes} {
		for _, bytes := range part {
			sum += bytes
		}
	}
	return sum
}

// Local measures what these pods take of the node's disk, in their order. Directories are walked in the background and their
// sizes are good for a minute, so that a pod with many files holds up nobody who asks again and again. The runtime is asked
// for the layers of those pods alone for which layers says so.
func (c *Collector) Local(ctx context.Context, pods []*corev1.Pod, layers func(*corev1.Pod) bool) ([]Local, error) {
	var places []place
	logs, volumes := make([]map[string]place, len(pods)), make([]map[string]place, len(pods))
	for i, p := range pods {
		logs[i], volumes[i] = c.logPlaces(p), c.diskPlaces(p)
		places = slices.AppendSeq(slices.AppendSeq(places, maps.Values(logs[i])), maps.Values(volumes[i]))
	}
	sizes := c.disks.sizesOf(places)
	all := make([]Local, len(pods))
	for i, p := range pods {
		all[i].Logs, all[i].Volumes = bytesOf(sizes, logs[i]), bytesOf(sizes, volumes[i])
		if !layers(p) {
			continue
		}
		told, err := c.cfg.Runtime.PodContainerStats(ctx, string(p.UID))
		if err != nil {
			return nil, fmt.Errorf("ask what containers have written: %w", err)
		}
		all[i].Layers = make(map[string]uint64, len(told))
		for _, one := range told {
			all[i].Layers[one.GetAttributes().GetMetadata().GetName()] = one.GetWritableLayer().GetUsedBytes().GetValue()
		}
	}
	return all, nil
}

func bytesOf(sizes map[place]size, places map[string]place) map[string]uint64 {
	all := make(map[string]uint64, len(places))
	for name, at := range places {
		if s, known := sizes[at]; known {
			all[name] = s.bytes
		}
	}
	return all
}

// logPlaces are where the logs of a pod's containers lie, by container.
func (c *Collector) logPlaces(p *corev1.Pod) map[string]place {
	all := map[string]place{}
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			all[list[i].Name] = c.logPlace(p, list[i].Name)
		}
	}
	return all
}

// diskPlaces are the volumes of a pod that lie on the node's disk, by name.
func (c *Collector) diskPlaces(p *corev1.Pod) map[string]place {
	all := map[string]place{}
	for i := range p.Spec.Volumes {
		if v := &p.Spec.Volumes[i]; localPlugin(v) != "" && !inMemory(v) {
			all[v.Name] = c.volumePlace(p, v)
		}
	}
	return all
}
