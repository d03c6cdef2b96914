package monitor

import (
	"context"
	"fmt"
	"time"

	"github.com/nodelet/nodelet/cri"
	"github.com/nodelet/nodelet/internal/backoff"
)

// stuckCall is the age at which an unanswered call to the runtime makes the agent unhealthy.
const stuckCall = 5 * time.Minute

// Health returns an error while the runtime has not answered a call for too long. The error names the call and its
// object.
func (m *Monitor) Health() error {
	now := time.Now()
	for _, c := range m.cfg.Client.InFlight() {
		switch c.Verb {
		case "PullImage", "StopContainer", "ExecSync", "GetContainerEvents":
			continue // may take long
		}
		if took := now.Sub(c.Since); took > stuckCall {
			return fmt.Errorf("%s of %s has not been answered for %s", c.Verb, c.Object, took.Round(time.Second))
		}
	}
	return nil
}

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
