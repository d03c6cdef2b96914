package execute

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/agent/spec"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// sandboxes creates, stops and removes the sandboxes of pods.
type sandboxes struct {
	*Backends
	limiters *limiters
}

// create runs the pod's sandbox and returns its ID. If the answer is lost, the same attempt collides with itself in the
// runtime, and the next snapshot shows the result.
func (x *sandboxes) create(ctx context.Context, t *Task, s podstate.CreateSandbox) (id string, err error) {
	node, err := x.FreshNode()
	if err != nil {
		return "", err
	}
	cfg, err := x.config(t.Pod, s.Attempt, node)
	if err != nil {
		return "", err
	}
	handler, err := x.handler(ctx, t.Pod)
	if err != nil {
		return "", err
	}
	if podutil.HasUserNamespace(&t.Pod.Spec) && !x.HandlerFeatures(handler).GetUserNamespaces() {
		return "", noUserNamespaces(handler)
	}
	if err := x.Logs.Make(cfg.LogDirectory); err != nil {
		return "", fmt.Errorf("make log directory: %w", err)
	}
	if err := x.Cgroups.Restore(t.Pod); err != nil {
		return "", err
	}
	err = x.limiters.create.Do(ctx, func() (err error) {
		began := time.Now()
		id, err = x.Runtime.RunPodSandbox(ctx, cfg, handler)
		x.Metrics.SandboxRun(handler, time.Since(began), err)
		return err
	})
	return id, err
}

// stop stops a sandbox. If that is the current one, or there is none, and the pod goes on, another one follows.
func (x *sandboxes) stop(ctx context.Context, t *Task, s podstate.StopSandbox) error {
	if !t.Ending && (t.Sandbox == nil || t.Sandbox.ID == s.ID) {
		x.Events.PodEvent(t.Pod, "", corev1.EventTypeNormal, "SandboxChanged", podutil.MessageSandboxChanged)
	}
	return x.limiters.stop.Do(ctx, func() error { return x.Runtime.StopPodSandbox(ctx, s.ID) })
}

func (x *sandboxes) remove(ctx context.Context, s podstate.RemoveSandbox) error {
	return x.limiters.remove.Do(ctx, func() error { return x.Runtime.RemovePodSandbox(ctx, s.ID) })
}

// config returns the configuration of a sandbox, and records its warnings as events.
func (x *sandboxes) config(pod *corev1.Pod, attempt uint32, node *spec.Node) (*runtimeapi.PodSandboxConfig, error) {
	userNS, err := x.userNS(pod)
	if err != nil {
		return nil, err
	}
	in := &spec.SandboxInput{Pod: pod, Attempt: attempt, Node: node, UserNS: userNS}
	cfg, warnings, err := spec.Sandbox(in)
	if err != nil {
		return nil, err
	}
	for _, w := range warnings {
		x.Events.PodEvent(pod, "", corev1.EventTypeWarning, w.Reason, w.Message)
	}
	return cfg, nil
}

// handler returns the name of the runtime handler that the runtime class of the pod names; "" for the default one.
func (x *sandboxes) handler(ctx context.Context, pod *corev1.Pod) (string, error) {
	if class := ptr.Deref(pod.Spec.RuntimeClassName, ""); class != "" {
		return x.Objects(pod).RuntimeHandler(ctx, class)
	}
	return "", nil
}

// knownHandler returns the runtime handler of a pod without a request, and whether it is known: that of its sandbox,
// which may be nil, or else the one that its runtime class had when it was last read. CRI-O reports none of a sandbox.
func (x *sandboxes) knownHandler(pod *corev1.Pod, sandbox *podstate.Sandbox) (handler string, known bool) {
	class := ptr.Deref(pod.Spec.RuntimeClassName, "")
	if class == "" {
		return "", true
	}
	if sandbox != nil {
		handler = sandbox.Handler
	}
	if handler == "" {
		handler = x.Objects(pod).KnownHandler(class)
	}
	return handler, handler != "" // a class names one
}

// RecursiveReadOnly reports whether the runtime handler of a pod supports recursive read-only mounts; nil if it is not
// known yet. It makes no request. sandbox may be nil.
func (x *Executor) RecursiveReadOnly(pod *corev1.Pod, sandbox *podstate.Sandbox) *bool {
	handler, known := x.sandboxes.knownHandler(pod, sandbox)
	if !known {
		return nil
	}
	return new(x.sandboxes.HandlerFeatures(handler).GetRecursiveReadOnlyMounts())
}

// recursiveReadOnly reports whether the runtime handler supports them: not if it is not known and the runtime class
// cannot be read.
func (x *sandboxes) recursiveReadOnly(ctx context.Context, pod *corev1.Pod, sandbox *podstate.Sandbox) bool {
	handler, known := x.knownHandler(pod, sandbox)
	if !known {
		var err error
		if handler, err = x.handler(ctx, pod); err != nil {
			return false
		}
	}
	return x.HandlerFeatures(handler).GetRecursiveReadOnlyMounts()
}

// noUserNamespaces returns the error for a pod that needs a user namespace on a runtime without support for them.
func noUserNamespaces(handler string) error {
	if handler != "" {
		return fmt.Errorf("can't set `spec.hostUsers: false`, RuntimeClass handler %q does not support user namespaces",
			handler)
	}
	return errors.New("can't set `spec.hostUsers: false`, runtime does not support user namespaces")
}

// userNS returns the pod's range of user and group IDs on the host; nil if it shares those of the node.
func (x *sandboxes) userNS(pod *corev1.Pod) ([]*runtimeapi.IDMapping, error) {
	if !podutil.HasUserNamespace(&pod.Spec) {
		return nil, nil
	}
	r, err := x.UserNamespaces.Of(pod.UID)
	if err != nil {
		return nil, err
	}
	return []*runtimeapi.IDMapping{{ContainerId: 0, HostId: r.First, Length: r.Length}}, nil
}
