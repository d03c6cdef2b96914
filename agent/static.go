package agent

import (
	"context"
	"log/slog"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/agent/spec"
	"github.com/nodelet/nodelet/cri"
	"github.com/nodelet/nodelet/cri/monitor"
	"github.com/nodelet/nodelet/internal/backoff"
	"github.com/nodelet/nodelet/kube/pods"
)

// RunningStatic returns the static pods that an earlier agent, nodelet or the kubelet, has left running. It waits for
// the runtime; the result is nil if ctx has ended before.
func RunningStatic(ctx context.Context, m *monitor.Monitor, c *cri.Client, log *slog.Logger) (
	found map[types.NamespacedName]pods.Running) {
	for m.AwaitAnswer(ctx) {
		sandboxes, containers, err := c.List(ctx)
		if err == nil {
			return runningStatic(sandboxes, containers)
		}
		log.Warn("cannot list the running static pods", "err", err, "retryIn", monitor.RetryInterval)
		if !backoff.Sleep(ctx, monitor.RetryInterval) {
			break
		}
	}
	return nil
}

// runningStatic returns the static pods with a ready sandbox.
func runningStatic(sandboxes []*runtimeapi.PodSandbox, containers []*runtimeapi.Container) (
	found map[types.NamespacedName]pods.Running) {
	found = map[types.NamespacedName]pods.Running{}
	hashes := map[string]map[string]string{} // by sandbox and name
	for _, s := range sandboxes {
		running, static := pods.RunningOf(s.Annotations)
		pod, err := spec.ParsePodLabels(s.Labels)
		if err == nil && static && s.State == runtimeapi.PodSandboxState_SANDBOX_READY {
			running.Hashes = map[string]string{}
			hashes[s.Id] = running.Hashes
			found[pod] = running
		}
	}
	for _, c := range containers {
		known := hashes[c.PodSandboxId]
		if facts, _ := spec.ParseContainer(c.Labels, c.Annotations); known != nil && facts.Hash != "" {
			known[facts.Name] = facts.Hash
		}
	}
	return found
}
