package monitor

import (
	"context"
	"time"

	"github.com/nodelet/nodelet/cri"
	"github.com/nodelet/nodelet/internal/periodic"
)

// statusPoll is the state of the loop that calls Status.
type statusPoll struct {
	*Monitor
	// lost: the last call failed. ready: the runtime and its network were ready at the last answer.
	lost, ready bool
	// knowsVersion: the runtime has not been away since its version was read.
	knowsVersion bool
	// warned is when the log last said that the runtime does not answer.
	warned time.Time
	// quick is the number of calls left of those that CheckSoon requested.
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
	wasLost, wasReady := p.lost, p.ready
	err := p.call(ctx)
	p.lost = err != nil
	switch {
	case p.lost && ctx.Err() == nil && (!wasLost || time.Since(p.warned) >= warnInterval):
		p.warned = time.Now()
		p.cfg.Log.Warn("container runtime does not answer", "err", err, "retryIn", RetryInterval,
			"otherSockets", cri.Sockets("", p.cfg.Endpoint))
	case !p.lost && wasLost:
		p.cfg.Log.Info("container runtime answers again")
		p.ImagesChanged()
	}
	if p.lost {
		return
	}
	p.closeAnswered()
	if p.ready {
		p.closeUsable()
		if wasLost || !wasReady {
			p.cfg.Ready()
		}
	}
	p.syncCIDR.Set()
}

func (p *statusPoll) call(ctx context.Context) error {
	err := p.readVersion(ctx)
	if err != nil {
		p.cfg.Report(nil, nil, err)
		return err
	}
	s, err := p.cfg.Client.Status(ctx)
	if err != nil {
		p.knowsVersion = false // another runtime may come back; until then RuntimeName stays
		p.cfg.Report(p.version.Load(), nil, err)
		return err
	}
	p.status.Store(s)
	p.ready = p.cfg.Report(p.version.Load(), s, nil)
	return nil
}

func (p *statusPoll) readVersion(ctx context.Context) error {
	if p.knowsVersion {
		return nil
	}
	v, err := p.cfg.Client.Version(ctx)
	if err != nil {
		return err
	}
	for _, flaw := range cri.VersionWarnings(v.RuntimeName, v.RuntimeVersion) {
		p.cfg.Log.Warn("container runtime has a known flaw, update it",
			"runtime", v.RuntimeName, "version", v.RuntimeVersion, "flaw", flaw)
	}
	p.version.Store(v)
	p.runs.Add(1)
	p.knowsVersion = true
	return nil
}
