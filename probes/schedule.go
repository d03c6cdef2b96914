package probes

import (
	"container/heap"
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// How long an attempt counts against Config.Parallel. A longer attempt waits for an answer and costs nothing meanwhile.
// The runtime takes much longer to start a command than the agent to send a request.
const (
	commandTime = 200 * time.Millisecond
	requestTime = 10 * time.Millisecond
)

// together: attempts that are due within this time of each other start together, so that the processor can sleep
// longer.
const together = 10 * time.Millisecond

// probe is a target with its state. Prober.mu guards it.
type probe struct {
	pod    types.UID
	target Target
	status Status
	count  count

	next   time.Time
	index  int                // in the queue; -1 if not there
	cancel context.CancelFunc // of the attempt under way; nil if there is none
	begun  bool               // has had, or waits for, its first attempt
	early  bool               // the next attempt counts only if it succeeds
}

func newProbe(pod types.UID, t Target) *probe {
	pr := &probe{pod: pod, index: -1, status: Status{ContainerID: t.ContainerID, Kind: t.Kind,
		Result: initial(t.Kind, t.Known)}}
	pr.count.held = t.Kind == Startup && t.Known == Success
	return pr
}

// begin schedules the first attempt, unless there was one or it must wait for the container's startup probe.
func (p *Prober) begin(pr *probe, now time.Time) {
	if pr.begun || pr.count.held || p.gated(pr) {
		return
	}
	pr.begun = true
	at := now.Add(firstWait(&pr.target, now))
	pr.early = early(&pr.target, at) // the next one is a period later
	p.schedule(pr, at)
}

// gated reports whether the container has a startup probe that has not succeeded yet.
func (p *Prober) gated(pr *probe) bool {
	if pr.target.Kind == Startup {
		return false
	}
	startup := find(p.pods[pr.pod], pr.target.ContainerID, Startup)
	return startup != nil && startup.status.Result != Success
}

func (p *Prober) schedule(pr *probe, at time.Time) {
	pr.next = at
	heap.Push(&p.due, pr)
	if pr.index == 0 {
		p.wake.Set()
	}
}

// end removes a probe from the schedule and cancels its attempt.
func (p *Prober) end(pr *probe) {
	if pr.index >= 0 {
		heap.Remove(&p.due, pr.index)
	}
	if pr.cancel != nil {
		pr.cancel()
	}
}

// Run probes until ctx ends, then cancels the attempts under way and waits for them.
func (p *Prober) Run(ctx context.Context) {
	var attempts sync.WaitGroup
	defer attempts.Wait()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		timer.Reset(p.dispatch(ctx, &attempts))
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
		case <-timer.C:
		}
	}
}

// dispatch starts the attempts that are due, which may wait for a place, and returns the time until the next one.
func (p *Prober) dispatch(ctx context.Context, attempts *sync.WaitGroup) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	now, started := time.Now(), false
	for len(p.due) > 0 {
		pr := p.due[0]
		if wait := pr.next.Sub(now); wait > together || (wait > 0 && !started) {
			return wait
		}
		heap.Pop(&p.due)
		started = true
		var one context.Context
		one, pr.cancel = context.WithCancel(ctx)
		target := pr.target
		attempts.Go(func() { p.attempt(one, pr, &target) })
	}
	return time.Hour
}

// attempt runs one probe, when there is a place for it, and records its outcome.
func (p *Prober) attempt(ctx context.Context, pr *probe, t *Target) {
	places := p.requests
	if t.Probe.Exec != nil {
		places = p.commands
	}
	a := Attempt{Container: t.Container.Name, Namespace: t.Namespace, Pod: t.Pod, Kind: t.Kind}
	_ = places.Do(ctx, func() error { // fails only with ctx
		start := time.Now()
		outcome, text := p.try(ctx, t)
		a.Outcome, a.Took = outcome, time.Since(start)
		a.Reason, a.Message = describe(t.Kind, outcome, text)
		return nil
	})
	p.finish(ctx, pr, a)
}

// finish counts an attempt, reports it, and schedules the next. An early one that has not succeeded is not counted and
// not reported.
func (p *Prober) finish(ctx context.Context, pr *probe, a Attempt) {
	p.mu.Lock()
	cut := ctx.Err() != nil // the target was removed, or Run ends
	pr.cancel()
	pr.cancel = nil
	if cut {
		p.mu.Unlock()
		return
	}
	now := time.Now()
	ignored := pr.early && a.Outcome != Succeeded && a.Outcome != Warned
	pr.early = false
	changed := !ignored && p.learn(pr, a)
	status := pr.status
	if !pr.count.held {
		p.schedule(pr, following(pr.next, period(pr.target.Probe), now))
	}
	p.mu.Unlock()
	if !ignored {
		p.cfg.Attempt(pr.pod, a)
	}
	if changed {
		p.cfg.Changed(pr.pod, status)
	}
	if changed && a.Kind == Startup {
		p.beginSiblings(pr, now)
	}
}

// beginSiblings schedules the probes of a container that have waited for its startup probe, whose result has been
// reported.
func (p *Prober) beginSiblings(startup *probe, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, sibling := range p.pods[startup.pod] {
		if sibling.target.ContainerID == startup.target.ContainerID {
			p.begin(sibling, now)
		}
	}
}

// learn updates the status and reports whether its result changed.
func (p *Prober) learn(pr *probe, a Attempt) bool {
	v := &pr.status
	v.Message = a.Message
	var found Result
	switch a.Outcome {
	case Succeeded, Warned:
		found = Success
	case Failed:
		found = Failure
	default:
		return false
	}
	result := pr.count.add(pr.target.Kind, pr.target.Probe, v.Result, found)
	if result == v.Result {
		return false
	}
	v.Result = result
	return true
}

// following returns the next time in the rhythm of last and period that is not over: an attempt that took longer than a
// period skips some.
func following(last time.Time, period time.Duration, now time.Time) time.Time {
	late := max(0, now.Sub(last))
	return last.Add((late/period + 1) * period)
}

// queue is a heap of probes by the time at which they are due.
type queue []*probe

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].next.Before(q[j].next) }
func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

// Push implements heap.Interface.
func (q *queue) Push(x any) {
	pr := x.(*probe)
	pr.index = len(*q)
	*q = append(*q, pr)
}

// Pop implements heap.Interface.
func (q *queue) Pop() any {
	last := len(*q) - 1
	pr := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	pr.index = -1
	return pr
}
