package usage

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// Local is what a pod takes of the node's own disk. What has not been measured yet is left out.
type Local struct {
	// Layers are the writable layers of the running containers, by container.
	Layers map[string]Amount
	// Logs are those of all containers that have any, by container.
	Logs map[string]Amount
	// Volumes are those that lie on the disk, by their names in the pod.
	Volumes map[string]Amount
	// Files are those that the agent makes for the pod and its containers can write: /etc/hosts and termination logs.
	Files Amount
}

// Directory returns what lies below the directories of the agent: all but the layers.
func (l *Local) Directory() Amount {
	sum := l.Files
	for _, part := range []map[string]Amount{l.Logs, l.Volumes} {
		for _, a := range part {
			sum.add(a)
		}
	}
	return sum
}

// Layer returns what all layers take together.
func (l *Local) Layer() (sum Amount) {
	for _, a := range l.Layers {
		sum.add(a)
	}
	return sum
}

// Total returns everything.
func (l *Local) Total() Amount {
	sum := l.Directory()
	sum.add(l.Layer())
	return sum
}

// Local measures what these pods take of the node's disk, in their order. Directories are walked in the background and
// their sizes are good for a minute; it waits no longer than patience for those that have never been measured. The
// runtime is asked for the layers of those pods alone for which layers returns true; nil stands for none.
func (c *Collector) Local(ctx context.Context, pods []*corev1.Pod, patience time.Duration,
	layers func(*corev1.Pod) bool) ([]Local, error) {
	parts := make([]parts, len(pods))
	var places []place
	for i, p := range pods {
		parts[i] = c.parts(p)
		places = append(places, parts[i].places()...)
	}
	sizes := c.disks.sizesOf(places, patience)
	all := make([]Local, len(pods))
	for i, p := range pods {
		all[i] = parts[i].local(sizes)
		if layers == nil || !layers(p) {
			continue
		}
		stats, err := c.cfg.Runtime.PodContainerStats(ctx, string(p.UID))
		if err != nil {
			return nil, fmt.Errorf("read the size of the writable layers of pod %s/%s: %w", p.Namespace, p.Name, err)
		}
		all[i].Layers = make(map[string]Amount, len(stats))
		for _, one := range stats {
			layer := one.GetWritableLayer()
			all[i].Layers[one.GetAttributes().GetMetadata().GetName()] = Amount{
				Bytes:  layer.GetUsedBytes().GetValue(),
				Inodes: layer.GetInodesUsed().GetValue(),
			}
		}
	}
	return all, nil
}

// parts are the places that count as a pod's local ephemeral storage: the one rule for statistics, limits and eviction.
// The volumes of drivers, hostPaths and the mounts of subPaths are no part of it.
type parts struct {
	logs, volumes map[string]place
	files         []place
}

func (c *Collector) parts(p *corev1.Pod) parts {
	dir := string(p.UID)
	all := parts{
		logs:    map[string]place{},
		volumes: map[string]place{},
		files: []place{
			{base: c.cfg.PodsDir, below: filepath.Join(dir, "etc-hosts")},
			{base: c.cfg.PodsDir, below: filepath.Join(dir, "containers")},
		},
	}
	for _, one := range podutil.Containers(&p.Spec) {
		all.logs[one.Name] = c.logPlace(p, one.Name)
	}
	for i := range p.Spec.Volumes {
		if v := &p.Spec.Volumes[i]; localPlugin(v) != "" && !inMemory(v) {
			all.volumes[v.Name] = c.volumePlace(p, v)
		}
	}
	return all
}

func (p *parts) places() []place {
	all := p.files
	for _, of := range []map[string]place{p.logs, p.volumes} {
		for _, at := range of {
			all = append(all, at)
		}
	}
	return all
}

// local returns what is known of the parts.
func (p *parts) local(sizes map[place]size) Local {
	l := Local{Logs: amounts(sizes, p.logs), Volumes: amounts(sizes, p.volumes)}
	for _, at := range p.files {
		l.Files.add(sizes[at].Amount)
	}
	return l
}

func amounts(sizes map[place]size, places map[string]place) map[string]Amount {
	all := make(map[string]Amount, len(places))
	for name, at := range places {
		if s, known := sizes[at]; known {
			all[name] = s.Amount
		}
	}
	return all
}

// logPlace is where the logs of a container lie.
func (c *Collector) logPlace(p *corev1.Pod, container string) place {
	return place{base: c.cfg.LogsDir, below: filepath.Join(p.Namespace+"_"+p.Name+"_"+string(p.UID), container)}
}
