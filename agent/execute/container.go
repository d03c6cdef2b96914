package execute

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/agent/spec"
)

// containers creates and starts instances of containers with their files, and removes those that have exited.
type containers struct {
	*Backends
	inputs    *inputs
	sandboxes *sandboxes
	limiters  *limiters
}

// create creates an instance of a container and returns its ID. The large ones of a pod take turns, but not while they
// wait for their volumes.
func (x *containers) create(ctx context.Context, t *Task, s podstate.CreateContainer) (id string, err error) {
	defer func() {
		if err != nil {
			x.Placement.NotCreated(t.Pod.UID, s.Name)
		}
	}()
	in, err := x.inputs.collect(ctx, t, s)
	if err != nil {
		return "", err
	}
	turn := func(call func() error) error { return call() }
	if spec.Large(in) {
		turn = func(call func() error) error { return x.limiters.doLarge(ctx, t.Pod.UID, call) }
	}
	var parts []spec.SubPath
	if err := turn(func() (err error) {
		parts, err = spec.SubPaths(in)
		return err
	}); err != nil {
		return "", err
	}
	if in.SubPaths, err = x.inputs.subPaths(ctx, t, in.Container, parts); err != nil {
		return "", err
	}
	err = turn(func() (err error) {
		id, err = x.createFrom(ctx, t, s, in)
		return err
	})
	return id, err
}

func (x *containers) createFrom(
	ctx context.Context, t *Task, s podstate.CreateContainer, in *spec.ContainerInput,
) (id string, err error) {
	cfg, err := spec.Container(in)
	if err != nil {
		return "", err
	}
	sandbox, err := x.sandboxes.config(t.Pod, t.Sandbox.Attempt, x.Node())
	if err != nil {
		return "", err
	}
	if err := x.makeFiles(t, s); err != nil {
		return "", err
	}
	if err := x.Cgroups.Restore(t.Pod); err != nil {
		return "", err
	}
	id, err = x.Runtime.CreateContainer(ctx, s.SandboxID, cfg, sandbox)
	if err != nil {
		return "", err
	}
	x.Events.PodEvent(t.Pod, s.Name, corev1.EventTypeNormal, "Created", "Container created")
	return id, nil
}

func (x *containers) start(ctx context.Context, t *Task, s podstate.StartContainer) error {
	x.Placement.Starting(t.Pod, s.Name)
	if err := x.Runtime.StartContainer(ctx, s.ID); err != nil {
		return err
	}
	x.Placement.Started(t.Pod.UID, s.Name)
	x.Events.PodEvent(t.Pod, s.Name, corev1.EventTypeNormal, "Started", "Container started")
	return nil
}

// remove removes an exited instance and, unless its log is kept, the log and the link to it. They go first: once the
// instance is gone, nothing leads to them before the pod is removed.
func (x *containers) remove(ctx context.Context, t *Task, s podstate.RemoveContainer) error {
	var noLog error
	if !s.KeepLog {
		noLog = x.removeLog(t, s.Name, s.ID)
	}
	return errors.Join(x.Runtime.RemoveContainer(ctx, s.ID), noLog)
}

// makeFiles creates the files of an instance: the hosts file, the termination message, and the log directory.
func (x *containers) makeFiles(t *Task, s podstate.CreateContainer) error {
	if err := x.Logs.Make(filepath.Dir(x.logPath(t.Pod, s.Name, s.Attempt))); err != nil {
		return fmt.Errorf("make log directory: %w", err)
	}
	hosts, err := hostsFile(t.Pod, x.Node(), t.podIPs())
	if err != nil {
		return err
	}
	if err := x.PodFiles.WriteHosts(t.Pod.UID, hosts); err != nil {
		return err
	}
	log := filepath.Base(x.Node().TerminationLogPath(t.Pod.UID, s.Name, s.Attempt))
	return x.PodFiles.TerminationLog(t.Pod.UID, s.Name, log)
}

// LinkLog links the log of an instance for log collectors; the name of the link identifies the container. It may be
// repeated.
func (x *Executor) LinkLog(pod *corev1.Pod, c *podstate.Container) error {
	return x.backends.Logs.Link(x.containers.logPath(pod, c.Name, c.Attempt), linkName(pod, c.Name, c.ID))
}

func (x *containers) removeLog(t *Task, container, id string) error {
	c := t.instance(id)
	if c == nil {
		return nil
	}
	if err := x.Logs.RemoveLog(x.logPath(t.Pod, container, c.Attempt), linkName(t.Pod, container, id)); err != nil {
		return fmt.Errorf("remove log: %w", err)
	}
	return nil
}

// logPath returns the path of the log of one instance.
func (x *containers) logPath(pod *corev1.Pod, container string, attempt uint32) string {
	return filepath.Join(x.Node().PodLogDir(pod), spec.LogPath(container, attempt))
}

// linkName returns the name of the link to the log of one instance. A name that is too long for a file is cut, as the
// kubelet does.
func linkName(pod *corev1.Pod, container, id string) string {
	const end = ".log"
	name := fmt.Sprintf("%s_%s_%s-%s", pod.Name, pod.Namespace, container, id)
	return name[:min(len(name), unix.NAME_MAX-len(end))] + end
}
