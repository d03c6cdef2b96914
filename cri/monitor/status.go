package monitor

import (
	"context"
	"slices"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/cri"
	"github.com/nodelet/nodelet/internal/periodic"
)

// statusPoll is the state of the loop that calls Status.
type statusPoll struct {
	*Monitor
	// lost: the last call failed. ready: the last answer was reported, and the runtime and its network were ready.
	lost, ready bool
	// reported is what the last call of Report returned.
	reported bool
	// back is when the version was read over a new connection.
	back time.Time
	// warned is when the log last said that the runtime does not answer.
	warned time.Time
	// quick is the number of calls left of those that CheckSoon requested, or that follow a new connection.
	quick int
}

func (m *Monitor) pollStatus(ctx context.Context) {
	p := &statusPoll{Monitor: m}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.checkSoon:
			p.quick = quickChecks
		case <-timer.C:
		}
		p.check(ctx)
		timer.Reset(p.interval())
	}
}

// interval returns the time until the next call.
func (p *statusPoll) interval() time.Duration {
	switch {
	case p.lost, !p.ready && p.quick == 0:
		return RetryInterval
	case p.quick > 0:
		p.quick--
		return quickFirst << (quickChecks - 1 - p.quick)
	}
	return periodic.Until(statusInterval)
}

// check calls Status once and passes the answer on.
func (p *statusPoll) check(ctx context.Context) {
	wasLost := p.lost
	s, err := p.call(ctx)
	p.lost = err != nil
	if p.lost {
		p.ready = false
		if ctx.Err() == nil && (!wasLost || time.Since(p.warned) >= warnInterval) {
			p.warned = time.Now()
			p.cfg.Log.Warn("container runtime does not answer", "err", err, "retryIn", RetryInterval,
				"otherSockets", cri.Sockets("", p.cfg.Endpoint))
		}
		return
	}
	if wasLost {
		p.cfg.Log.Info("container runtime answers again")
		p.ImagesChanged()
	}
	p.closeAnswered()
	p.syncCIDR.Set()
	if p.settling(s) {
		p.ready = false
		return
	}
	p.report(s)
}

// settling reports whether s may only say that the runtime has just started: it was ready before, the connection is
// new, and some runtimes answer before they have read their network configuration. Other conditions do not count:
// containerd has one that is false while something is deprecated.
func (p *statusPoll) settling(s *runtimeapi.StatusResponse) bool {
	return p.reported && time.Since(p.back) < settleTime && slices.ContainsFunc(s.GetStatus().GetConditions(), unready)
}

// unready reports whether a condition says that the runtime or its network is not ready.
func unready(c *runtimeapi.RuntimeCondition) bool {
	return !c.Status && (c.Type == runtimeapi.RuntimeReady || c.Type == runtimeapi.NetworkReady)
}

func (p *statusPoll) report(s *runtimeapi.StatusResponse) {
	wasReady := p.ready
	p.reported = p.cfg.Report(p.version.Load(), s)
	p.ready = p.reported
	if p.ready && !wasReady {
		p.closeUsable()
		p.cfg.Ready()
	}
}

// call returns the status of the runtime. With a new connection, behind which may be another runtime, it has read the
// version before.
func (p *statusPoll) call(ctx context.Context) (*runtimeapi.StatusResponse, error) {
	s, err := p.cfg.Client.Status(ctx)
	if err != nil {
		return nil, err
	}
	if c := p.cfg.Client.Connections(); c != p.connection.Load() {
		if err := p.readVersion(ctx); err != nil {
			return nil, err
		}
		p.connection.Store(c)
		p.back = time.Now()
		if p.reported {
			p.quick = quickChecks
		}
	}
	p.status.Store(s)
	return s, nil
}

func (p *statusPoll) readVersion(ctx context.Context) error {
	v, err := p.cfg.Client.Version(ctx)
	if err != nil {
		return err
	}
	for _, warning := range cri.VersionWarnings(v.RuntimeName, v.RuntimeVersion) {
		p.cfg.Log.Warn("container runtime has a known vulnerability, update it",
			"runtime", v.RuntimeName, "version", v.RuntimeVersion, "vulnerability", warning)
	}
	p.version.Store(v)
	return nil
}
