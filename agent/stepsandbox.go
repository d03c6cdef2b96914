package agent

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/agent/spec"
)

// prepare creates the pod's directories and its cgroup.
func (t *task) prepare() (*podstate.Size, error) {
	if err := t.backends.PodFS.MakePodDir(t.pod.UID); err != nil {
		return nil, fmt.Errorf("make pod directory: %w", err)
	}
	return t.preparePodCgroup()
}

// createSandbox runs the pod's sandbox. If the answer is lost, the same attempt collides with itself in the runtime,
// and the next snapshot shows the result.
func (t *task) createSandbox(ctx context.Context, s podstate.CreateSandbox) error {
	cfg, err := t.sandboxConfig(s.Attempt)
	if err != nil {
		return err
	}
	handler := ""
	if class := t.pod.Spec.RuntimeClassName; class != nil && *class != "" {
		if handler, err = t.backends.Objects(t.pod).RuntimeHandler(ctx, *class); err != nil {
			return err
		}
	}
	if ownUsers(t.pod) && !t.backends.handlerOf(&podstate.Sandbox{Handler: handler}).UserNamespaces {
		return noUserNamespaces(handler)
	}
	if err := t.backends.Logs.Make(cfg.LogDirectory); err != nil {
		return fmt.Errorf("make log directory: %w", err)
	}
	return t.limiters.create.do(ctx, func() error {
		_, err := t.backends.Runtime.RunPodSandbox(ctx, cfg, handler)
		return err
	})
}

func (t *task) sandboxConfig(attempt uint32) (*runtimeapi.PodSandboxConfig, error) {
	userNS, err := t.userNS()
	if err != nil {
		return nil, err
	}
	cfg, warnings, err := spec.Sandbox(&spec.SandboxInput{Pod: t.pod, Attempt: attempt, Node: t.backends.Node(),
		UserNS: userNS})
	if err != nil {
		return nil, err
	}
	for _, w := range warnings {
		t.event(corev1.EventTypeWarning, w.Reason, w.Message)
	}
	return cfg, nil
}

// ownUsers reports whether the pod has a user namespace of its own.
func ownUsers(pod *corev1.Pod) bool { return pod.Spec.HostUsers != nil && !*pod.Spec.HostUsers }

// noUserNamespaces returns the error for a pod that needs a user namespace on a runtime without support for them.
func noUserNamespaces(handler string) error {
	if handler != "" {
		return fmt.Errorf("can't set `spec.hostUsers: false`, RuntimeClass handler %q does not support user namespaces",
			handler)
	}
	return errors.New("can't set `spec.hostUsers: false`, runtime does not support user namespaces")
}

// userNS returns the pod's range of user and group IDs on the host; nil if it shares those of the node.
func (t *task) userNS() ([]spec.IDMapping, error) {
	if !ownUsers(t.pod) {
		return nil, nil
	}
	if t.backends.UserNS == nil {
		return nil, noUserNamespaces("")
	}
	r, err := t.backends.UserNS.Of(t.pod.UID)
	if err != nil {
		return nil, err
	}
	return []spec.IDMapping{{ContainerID: 0, HostID: r.First, Length: r.Length}}, nil
}
