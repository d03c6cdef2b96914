package agent

import (
	"context"
	"log/slog"

	"k8s.io/apimachinery/pkg/types"

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
		all, err := c.ReadySandboxes(ctx)
		if err == nil {
			found = map[types.NamespacedName]pods.Running{}
			for _, s := range all {
				running, static := pods.RunningOf(s.Annotations)
				if pod, err := spec.ParsePodLabels(s.Labels); err == nil && static {
					found[pod] = running
				}
			}
			return found
		}
		log.Warn("cannot list the running static pods", "err", err, "retryIn", monitor.RetryInterval)
		if !backoff.Sleep(ctx, monitor.RetryInterval) {
			break
		}
	}
	return nil
}
