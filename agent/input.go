package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/agent/spec"
	"github.com/nodelet/nodelet/kube/objects"
	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/volumes/podfs"
)

// containerInput collects the input of a container's configuration: objects, mounted volumes, sub-paths, addresses.
func (t *task) containerInput(ctx context.Context, s podstate.CreateContainer) (*spec.ContainerInput, error) {
	_, c := podutil.Container(&t.pod.Spec, s.Name)
	if c == nil {
		return nil, fmt.Errorf("container %q is no longer in the spec of the pod", s.Name)
	}
	objs, err := t.environment(ctx, c)
	if err != nil {
		return nil, err
	}
	in := &spec.ContainerInput{
		Node:        t.backends.Node(),
		Pod:         t.pod,
		Container:   c,
		Attempt:     s.Attempt,
		Image:       spec.Image{Ref: t.image.ID, UID: t.image.UID, Username: t.image.Username},
		PodIPs:      t.sandbox.IPs,
		Objects:     objs,
		Volumes:     t.volumeFacts(),
		TargetID:    t.target(c.Name),
		ExtraGroups: t.extraGroups(),
	}
	in.RecursiveReadOnly = t.backends.handlerOf(t.sandbox).RecursiveReadOnly
	if in.UserNS, err = t.userNS(); err != nil {
		return nil, err
	}
	if in.SubPaths, err = t.subPaths(ctx, in); err != nil {
		return nil, err
	}
	if in.Devices, err = t.devices(ctx, c); err != nil {
		return nil, &spec.Reason{Reason: spec.ReasonCreateContainerConfig, Message: err.Error()}
	}
	return in, nil
}

// environment reads the objects that the environment of a container refers to, side by side: an API server that does
// not answer delays the container once, not once for each object. A missing object is left out: spec knows what is
// optional.
func (t *task) environment(ctx context.Context, c *corev1.Container) (out spec.Objects, err error) {
	refs := environmentRefs(c)
	objs, errs := make([]any, len(refs)), make([]error, len(refs))
	var noServices error
	var reads sync.WaitGroup
	for i, r := range refs {
		reads.Go(func() { objs[i], errs[i] = t.object(ctx, r) })
	}
	reads.Go(func() { out.Services, noServices = t.podServices(ctx) })
	reads.Wait()
	if err := cmp.Or(errs...); err != nil {
		return out, err
	}
	if noServices != nil {
		return out, fmt.Errorf("list services for environment variables: %w", noServices)
	}
	out.ConfigMaps, out.Secrets = map[string]*corev1.ConfigMap{}, map[string]*corev1.Secret{}
	for i, r := range refs {
		switch obj := objs[i].(type) {
		case *corev1.ConfigMap:
			out.ConfigMaps[r.name] = obj
		case *corev1.Secret:
			out.Secrets[r.name] = obj
		}
	}
	out.EnvFiles, err = t.envFiles(c)
	return out, err
}

// object reads a ConfigMap or Secret of the pod's namespace; nil if it does not exist.
func (t *task) object(ctx context.Context, r namedRef) (obj any, err error) {
	if r.kind == objects.Secret {
		obj, err = t.backends.Objects(t.pod).Secret(ctx, t.pod.Namespace, r.name)
	} else {
		obj, err = t.backends.Objects(t.pod).ConfigMap(ctx, t.pod.Namespace, r.name)
	}
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("get %s %q: %w", r.kind, r.name, err)
	}
	return obj, nil
}

// volumeFacts returns the mounted volumes in the form of package spec.
func (t *task) volumeFacts() map[string]spec.Volume {
	out := make(map[string]spec.Volume, len(t.mounts))
	for i := range t.pod.Spec.Volumes {
		vol := &t.pod.Spec.Volumes[i]
		if vol.Image != nil {
			if image, ok := t.pulled[podstate.EnsureImage{Volume: vol.Name}.Key()]; ok {
				out[vol.Name] = spec.Volume{Image: &runtimeapi.ImageSpec{Image: image.Ref, UserSpecifiedImage: vol.Image.Reference}}
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
func (t *task) extraGroups() (groups []int64) {
	for _, m := range t.mounts {
		if m.ExtraGroup != nil && !slices.Contains(groups, *m.ExtraGroup) {
			groups = append(groups, *m.ExtraGroup)
		}
	}
	slices.Sort(groups)
	return groups
}

// subPaths resolves the sub-paths that the container mounts, each beneath the root of its volume.
func (t *task) subPaths(ctx context.Context, in *spec.ContainerInput) (map[int]string, error) {
	wanted, err := spec.SubPaths(in)
	if err != nil || len(wanted) == 0 {
		return nil, err
	}
	out := make(map[int]string, len(wanted))
	for _, w := range wanted {
		m := t.mounts[w.Volume]
		p, err := t.backends.PodFS.Subpath(ctx, podfs.SubPath{PodUID: t.pod.UID, Container: in.Container.Name,
			Volume: cmp.Or(m.Name, w.Volume), Mount: w.Volume, Index: w.Index, HostPath: m.HostPath, Path: w.Path})
		if err != nil {
			return nil, err
		}
		out[w.Index] = p
	}
	return out, nil
}

// target returns the ID of the running instance of the target of an ephemeral container.
func (t *task) target(ephemeral string) string {
	target := podutil.Target(&t.pod.Spec, ephemeral)
	if target == "" {
		return ""
	}
	for _, c := range t.instances {
		if c.Name == target && c.State == podstate.ContainerRunning {
			return c.ID
		}
	}
	return ""
}

// containerFiles creates the files of an instance in its pod's directory, the hosts file and the termination message,
// and the log directory.
func (t *task) containerFiles(s podstate.CreateContainer) error {
	node := t.backends.Node()
	if err := t.backends.Logs.Make(filepath.Dir(t.logPath(s.Name, s.Attempt))); err != nil {
		return fmt.Errorf("make log directory: %w", err)
	}
	var own []byte
	if t.pod.Spec.HostNetwork {
		text, err := os.ReadFile("/etc/hosts")
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("read the node's hosts file: %w", err)
		}
		own = text
	}
	hosts, err := spec.HostsFile(t.pod, node, t.sandbox.IPs, own)
	if err != nil {
		return err
	}
	if _, err := t.backends.PodFS.WriteHosts(t.pod.UID, hosts); err != nil {
		return err
	}
	log := filepath.Base(node.TerminationLogPath(t.pod.UID, s.Name, s.Attempt))
	_, err = t.backends.PodFS.TerminationLog(t.pod.UID, s.Name, log)
	return err
}
