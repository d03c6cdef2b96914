package execute

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/agent/spec"
	hostmounts "github.com/nodelet/nodelet/host/mounts"
	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/volumes"
	"github.com/nodelet/nodelet/volumes/podfs"
)

// inputs collects the input of a container's configuration: objects, mounted volumes, devices, addresses. It resolves
// sub-paths afterwards.
type inputs struct {
	*Backends
	mounts    *mounts
	sandboxes *sandboxes
	probe     hostmounts.Prober
}

func (x *inputs) collect(ctx context.Context, t *Task, s podstate.CreateContainer) (*spec.ContainerInput, error) {
	_, c := podutil.Container(&t.Pod.Spec, s.Name)
	if c == nil {
		return nil, fmt.Errorf("container %q is no longer in the spec of the pod", s.Name)
	}
	if err := x.lookAtVolumes(ctx, t, c); err != nil {
		return nil, err
	}
	objs, err := x.environment(ctx, t, c)
	if err != nil {
		return nil, err
	}
	in := &spec.ContainerInput{
		Node:              x.Node(),
		Pod:               t.Pod,
		Container:         c,
		Attempt:           s.Attempt,
		Image:             spec.Image{Ref: t.image.ID, UID: t.image.UID, Username: t.image.Username},
		PodIPs:            t.podIPs(),
		Objects:           objs,
		Volumes:           volumeFacts(t),
		TargetID:          s.Target,
		ExtraGroups:       extraGroups(t.mounts),
		RecursiveReadOnly: x.sandboxes.recursiveReadOnly(ctx, t.Pod, t.Sandbox),
		NoImageSubPath:    x.NoImageSubPath(),
	}
	if in.UserNS, err = x.sandboxes.userNS(t.Pod); err != nil {
		return nil, err
	}
	in.CPUs, in.MemoryNodes = x.Placement.Created(t.Pod.UID, c.Name)
	if in.Devices, err = x.devices(ctx, t.Pod, c); err != nil {
		return nil, err
	}
	return in, nil
}

// lookAtVolumes mounts volumes of a container again that may have changed since they were mounted. A refresh would not
// fail if the claim of a volume cannot be used. What the first mount has returned still counts.
func (x *inputs) lookAtVolumes(ctx context.Context, t *Task, c *corev1.Container) error {
	for _, m := range c.VolumeMounts {
		v := podutil.Volume(&t.Pod.Spec, m.Name)
		if v == nil || !x.mayHaveChanged(ctx, t, v) {
			continue
		}
		if _, err := x.Volumes.Mount(ctx, x.mounts.request(t, v, nil), x.Objects(t.Pod)); err != nil {
			return fmt.Errorf("volume %q: %w", v.Name, err)
		}
	}
	return nil
}

// mayHaveChanged reports whether a mounted volume has to be looked at before a container starts. The path of a hostPath
// volume may not be of its type any more: the runtime makes a directory of a path that has gone, and a socket could not
// come back there. The mount of another volume may have gone, or the daemon that serves the file system of a CSI driver
// may have restarted. A server that does not answer is not waited for: it may only be slow.
func (x *inputs) mayHaveChanged(ctx context.Context, t *Task, v *corev1.Volume) bool {
	if v.HostPath != nil {
		return ptr.Deref(v.HostPath.Type, corev1.HostPathUnset) != corev1.HostPathUnset
	}
	m := t.mounts[v.Name]
	return m.MountPoint && !hostmounts.At(m.HostPath) ||
		podfs.External(v) && m.HostPath != "" && x.probe.Broken(ctx, m.HostPath)
}

// environment reads the objects that the environment of a container refers to, each once and side by side: an API
// server that does not answer delays the container once, not once for each object. A missing object is left out: spec
// knows what is optional.
func (x *inputs) environment(ctx context.Context, t *Task, c *corev1.Container) (out spec.Objects, err error) {
	objects := x.Objects(t.Pod)
	refs := podutil.EnvironmentReferences(c, nil)
	out.ConfigMaps, out.Secrets = map[string]*corev1.ConfigMap{}, map[string]*corev1.Secret{}
	var mu sync.Mutex
	var reads sync.WaitGroup
	errs := make([]error, len(refs))
	begun := map[podutil.Reference]bool{}
	for i, r := range refs {
		r.Path = nil // whatever field names it
		if begun[r] {
			continue
		}
		begun[r] = true
		reads.Go(func() {
			if r.Kind == "Secret" {
				errs[i] = read(ctx, &mu, out.Secrets, r, t.Pod.Namespace, objects.Secret)
			} else {
				errs[i] = read(ctx, &mu, out.ConfigMaps, r, t.Pod.Namespace, objects.ConfigMap)
			}
		})
	}
	var noServices error
	reads.Go(func() { out.Services, noServices = podServices(ctx, t, objects) })
	reads.Wait()
	if err := cmp.Or(errs...); err != nil {
		return out, err
	}
	if noServices != nil {
		return out, fmt.Errorf("list services for environment variables: %w", noServices)
	}
	out.EnvFiles, err = envFiles(t, c)
	return out, err
}

// read puts an object of the pod's namespace into all, unless it does not exist. mu guards all.
func read[T any](ctx context.Context, mu *sync.Mutex, all map[string]T, r podutil.Reference, namespace string,
	get func(ctx context.Context, namespace, name string) (T, error)) error {
	obj, err := get(ctx, namespace, r.Name)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("get %s %q: %w", r.Kind, r.Name, err)
	}
	mu.Lock()
	defer mu.Unlock()
	all[r.Name] = obj
	return nil
}

// volumeFacts returns the mounted volumes in the form of package spec.
func volumeFacts(t *Task) map[string]spec.Volume {
	out := make(map[string]spec.Volume, len(t.mounts))
	for i := range t.Pod.Spec.Volumes {
		vol := &t.Pod.Spec.Volumes[i]
		if vol.Image != nil {
			if image, ok := t.pulled[podstate.EnsureImage{Volume: vol.Name}.Key()]; ok {
				out[vol.Name] = spec.Volume{Image: &runtimeapi.ImageSpec{
					Image:              image.ID,
					UserSpecifiedImage: vol.Image.Reference,
					Annotations:        t.Pod.Annotations,
				}}
			}
			continue
		}
		if m, ok := t.mounts[vol.Name]; ok {
			out[vol.Name] = spec.Volume{HostPath: m.HostPath, Device: m.Device, ReadOnly: m.ReadOnly, Relabel: m.SELinuxRelabel}
		}
	}
	return out
}

// extraGroups returns the supplemental groups of the pod's PersistentVolumes.
func extraGroups(mounts map[string]volumes.Mounted) (groups []int64) {
	for _, m := range mounts {
		if m.ExtraGroup != nil && !slices.Contains(groups, *m.ExtraGroup) {
			groups = append(groups, *m.ExtraGroup)
		}
	}
	slices.Sort(groups)
	return groups
}

// subPaths resolves the sub-paths that a container mounts, each beneath the root of its volume.
func (x *inputs) subPaths(ctx context.Context, t *Task, c *corev1.Container, wanted []spec.SubPath) (
	map[int]string, error) {
	out := make(map[int]string, len(wanted))
	for _, w := range wanted {
		m := t.mounts[w.Volume]
		p, err := x.PodFiles.Subpath(ctx, volumes.SubPath{
			PodUID:    t.Pod.UID,
			Container: c.Name,
			Volume:    cmp.Or(m.Name, w.Volume),
			Mount:     w.Volume,
			Index:     w.Index,
			HostPath:  m.HostPath,
			Path:      w.Path,
		})
		if err != nil {
			return nil, err
		}
		out[w.Index] = p
	}
	return out, nil
}

// hostsFile returns the content of the pod's hosts file; with the host network it includes the node's own.
func hostsFile(pod *corev1.Pod, node *spec.Node, podIPs []string) ([]byte, error) {
	var own []byte
	if pod.Spec.HostNetwork {
		text, err := os.ReadFile("/etc/hosts")
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("read the node's hosts file: %w", err)
		}
		own = text
	}
	return spec.HostsFile(pod, node, podIPs, own)
}
