package monitor

import (
	"context"

	"github.com/nodelet/nodelet/cri"
	"github.com/nodelet/nodelet/internal/backoff"
)

// CgroupDriver returns the cgroup driver of the runtime, which the agent has to use too (KEP-4033). It is the
// configured one if the runtime does not say. It waits for an answer and fails only when ctx ends.
func (m *Monitor) CgroupDriver(ctx context.Context, configured string) (string, error) {
	for logged := ""; ; {
		answer, err := m.cfg.Client.RuntimeConfig(ctx)
		switch {
		case cri.IsUnimplemented(err):
			m.cfg.Log.Info("the runtime does not report its cgroup driver; using the configured one", "driver", configured)
			return configured, nil
		case err == nil:
			linux := answer.GetLinux()
			if linux == nil {
				return configured, nil
			}
			driver := cri.CgroupDriver(linux)
			if driver != configured {
				m.cfg.Log.Info("using the cgroup driver of the runtime instead of the configured one",
					"driver", driver, "configured", configured)
			}
			return driver, nil
		}
		if text := err.Error(); text != logged && ctx.Err() == nil {
			logged = text
			m.cfg.Log.Warn("cannot ask the container runtime for its cgroup driver; no pod starts until it answers",
				"err", err, "retryIn", RetryInterval)
		}
		if !backoff.Sleep(ctx, RetryInterval) {
			return "", ctx.Err()
		}
	}
}

// AwaitAnswer waits for the runtime's first answer and reports whether there was one before ctx ended.
func (m *Monitor) AwaitAnswer(ctx context.Context) bool {
	select {
	case <-m.Answered():
		return true
	case <-ctx.Done():
		return false
	}
}
