package usage

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/kube/poddir"
)

// Local is the usage of the node's own disk by a pod.
type Local struct {
	// Late reports that no directory has been measured in time. One that has not been measured is missing in Logs, Volumes
	// or Files.
	Late bool
	// Layers are the writable layers of the running containers, by container.
	Layers map[string]Amount
	// Logs are the logs of all containers that have any, by container.
	Logs map[string]Amount
	// Volumes are the volumes on the disk, by their names in the pod.
	Volumes map[string]Amount
	// Files are the files that the agent creates for the pod and that its containers can write: /etc/hosts and
	// termination logs.
	Files Amount
}

// directory returns the usage in the directories of the agent: all parts except the layers.
func (l *Local) directory() Amount {
	sum := l.Files
	for _, part := range []map[string]Amount{l.Logs, l.Volumes} {
		for _, a := range part {
			sum.add(a)
		}
	}
	return sum
}

// Layer returns the sum of all layers.
func (l *Local) Layer() (sum Amount) {
	for _, a := range l.Layers {
		sum.add(a)
	}
	return sum
}

// Total returns the sum of all parts.
func (l *Local) Total() Amount {
	sum := l.directory()
	sum.add(l.Layer())
	return sum
}

// Local returns the usage of the node's disk by these pods, in their order. Directories are walked in the background
// and their sizes are valid for a minute; it waits at most timeout for those that are unknown, and oldTimeout for those
// that are older. It has only the layers of pods for which layers returns true; nil means none. With an error, layers
// are missing.
func (c *Collector) Local(ctx context.Context, pods []*corev1.Pod, timeout time.Duration,
	layers func(*corev1.Pod) bool) ([]Local, error) {
	parts := make([]parts, len(pods))
	var places []place
	for i, p := range pods {
		parts[i] = c.parts(p)
		places = append(places, parts[i].places()...)
	}
	sizes := c.disks.sizesOf(ctx, places, timeout)
	all := make([]Local, len(pods))
	for i := range pods {
		all[i] = parts[i].local(sizes)
	}
	if layers == nil || !slices.ContainsFunc(pods, layers) {
		return all, nil
	}
	return all, c.addLayers(ctx, pods, all, layers, timeout)
}

// addLayers adds the writable layers of the pods for which wanted returns true. It leaves out those of a pod for which
// the runtime has no statistics, so that the usage of the others is known. It is an error if no pod has any, or if the
// runtime answers for two pods not in time: with each further pod the caller would wait as long again.
func (c *Collector) addLayers(ctx context.Context, pods []*corev1.Pod, all []Local,
	wanted func(*corev1.Pod) bool, timeout time.Duration) error {
	running, err := c.running(ctx)
	if err == nil && c.walks() {
		var walked bool
		if walked, err = c.addWalked(ctx, pods, all, wanted, running, timeout); walked {
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("read the size of writable layers: %w", err)
	}
	measured, failed := false, error(nil)
	late := 0
	for i, p := range pods {
		if !wanted(p) {
			continue
		}
		if all[i].Layers, err = c.layers(ctx, p, running); err == nil {
			measured = true
			continue
		}
		failed = fmt.Errorf("read the size of the writable layers of pod %s/%s: %w", p.Namespace, p.Name, err)
		if status.Code(err) == codes.DeadlineExceeded {
			late++
		}
		if late > 1 || ctx.Err() != nil {
			return failed
		}
		c.cfg.Log.Warn("the disk usage of a pod is counted without its writable layers",
			"pod", podutil.Name(p), "podUID", p.UID, "err", err)
	}
	if measured {
		return nil
	}
	return failed
}

// running returns the running containers of all pods, by ID. It forgets where the layers of others are.
func (c *Collector) running(ctx context.Context) (map[string]*runtimeapi.Container, error) {
	_, containers, err := c.cfg.Runtime.List(ctx)
	if err != nil {
		return nil, err
	}
	running := map[string]*runtimeapi.Container{}
	for _, one := range containers {
		if one.State == runtimeapi.ContainerState_CONTAINER_RUNNING {
			running[one.Id] = one
		}
	}
	c.layerDirs.Range(func(id, _ any) bool {
		if running[id.(string)] == nil {
			c.layerDirs.Delete(id)
		}
		return true
	})
	return running, nil
}

// layers asks the runtime for the writable layers of the running containers of a pod. Runtimes name those of ended
// instances, too.
func (c *Collector) layers(ctx context.Context, p *corev1.Pod, running map[string]*runtimeapi.Container) (
	map[string]Amount, error) {
	stats, err := c.cfg.Runtime.PodContainerStats(ctx, string(p.UID))
	if err != nil {
		return nil, err
	}
	all := make(map[string]Amount, len(stats))
	for _, one := range stats {
		if running[one.GetAttributes().GetId()] == nil {
			continue
		}
		all[one.GetAttributes().GetMetadata().GetName()] = amountOf(one.GetWritableLayer())
	}
	return all, nil
}

// parts are the places that count as a pod's local ephemeral storage, for statistics, limits and eviction. They do not
// include the volumes of drivers, hostPaths and the mounts of subPaths.
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
			{base: c.cfg.PodsDir, below: filepath.Join(dir, poddir.Hosts)},
			{base: c.cfg.PodsDir, below: filepath.Join(dir, poddir.Containers)},
		},
	}
	for _, one := range podutil.Containers(&p.Spec) {
		all.logs[one.Name] = c.logPlace(p, one.Name)
	}
	for i := range p.Spec.Volumes {
		if v := &p.Spec.Volumes[i]; isLocal(v) && !inMemory(v) {
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

// local returns the sizes of the parts. One that does not exist has none.
func (p *parts) local(sizes map[place]size) Local {
	l := Local{Logs: amounts(sizes, p.logs), Volumes: amounts(sizes, p.volumes)}
	l.Late = !slices.ContainsFunc(p.places(), func(at place) bool {
		_, measured := sizes[at]
		return measured
	})
	for _, at := range p.files {
		l.Files.add(sizes[at].Amount)
	}
	return l
}

func amounts(sizes map[place]size, places map[string]place) map[string]Amount {
	all := make(map[string]Amount, len(places))
	for name, at := range places {
		if s := sizes[at]; s.known {
			all[name] = s.Amount
		}
	}
	return all
}

// logPlace returns the directory of the logs of a container.
func (c *Collector) logPlace(p *corev1.Pod, container string) place {
	return place{base: c.cfg.LogsDir, below: filepath.Join(poddir.Logs(p.Namespace, p.Name, p.UID), container)}
}
