package agent

import (
	"context"
	"fmt"
	"os"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/agent/plan"
	"github.com/nodelet/nodelet/agent/spec"
)

// prepare makes the pod's directories and its cgroup.
func (t *task) prepare() error {
	if err := t.hands.Volumes.MakePodDir(t.pod.UID); err != nil {
		return fmt.Errorf("make pod directory: %w", err)
	}
	return t.makeCgroup()
}

// createSandbox runs the pod's sandbox. After a lost answer the same attempt collides with itself in the runtime, and the
// next look finds what became of it.
func (t *task) createSandbox(ctx context.Context, s plan.CreateSandbox) error {
	cfg, err := t.sandboxConfig(s.Attempt)
	if err != nil {
		return err
	}
	handler := ""
	if class := t.pod.Spec.RuntimeClassName; class != nil && *class != "" {
		if handler, err = t.hands.Objects(t.pod).RuntimeHandler(ctx, *class); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(cfg.LogDirectory, 0o755); err != nil {
		return fmt.Errorf("make log directory: %w", err)
	}
	return t.gates.create.pass(ctx, func() error {
		_, err := t.hands.Runtime.RunPodSandbox(ctx, cfg, handler)
		return err
	})
}

func (t *task) sandboxConfig(attempt uint32) (*runtimeapi.PodSandboxConfig, error) {
	cfg, warnings, err := spec.Sandbox(&spec.SandboxInput{Pod: t.pod, Attempt: attempt, Node: t.hands.Node()})
	if err != nil {
		return nil, err
	}
	for _, w := range warnings {
		t.event(corev1.EventTypeWarning, w.Reason, w.Message)
	}
	return cfg, nil
}
