package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/test/testbed"
)

// signalReady is the pause before a pod of the throughput ends: a process that has just started may not handle SIGTERM
// yet, and would use up its whole grace period.
const signalReady = 50 * time.Millisecond

// churner measures a node at work.
type churner struct{ *bench }

// throughput measures a node at work: callers create pods, wait until each is Ready, delete it, wait until it is gone,
// and create the next, until the time is over. The floor does the same with CRI calls alone.
func (b *churner) throughput(ctx context.Context) error {
	return b.onAgents(ctx, b.agent, func(round int) error {
		b.announce(round, floorSide)
		return onFloor(ctx, b.bench, func(f *floorRun) error {
			return b.churn(ctx, floorSide, func(name string) (ready, gone time.Duration, err error) {
				return f.run(ctx, b.floorPod(name))
			})
		})
	})
}

func (b *churner) agent(ctx context.Context, side string) error {
	if err := b.onePod(ctx, "warm-up", nil); err != nil {
		return err
	}
	f, err := b.follow(ctx)
	if err != nil {
		return err
	}
	defer f.stop()
	events, err := b.followStarts(ctx)
	if err != nil {
		return err
	}
	defer events.stop()
	cycle := func(name string) (ready, gone time.Duration, err error) {
		began := time.Now()
		if err := b.create(ctx, b.pod(name)); err != nil {
			return 0, 0, err
		}
		readyAt, err := f.wait(ctx, "Ready", f.ready, name)
		if err != nil {
			return 0, 0, err
		}
		if at, ok := events.at(name); ok {
			b.note(side, "container started to Ready visible, ms", ms(readyAt.Sub(at)))
		}
		if err := pause(ctx, signalReady); err != nil {
			return 0, 0, err
		}
		ended := time.Now()
		if err := b.delete(ctx, name); err != nil {
			return 0, 0, err
		}
		goneAt, err := f.wait(ctx, "gone", f.gone, name)
		return readyAt.Sub(began), goneAt.Sub(ended), err
	}
	return b.profiled(ctx, side, func() error { return b.churn(ctx, side, cycle) })
}

// churn lets b.o.callers callers run cycle again and again, and notes pods a second and the times of each.
func (b *churner) churn(
	ctx context.Context,
	side string,
	cycle func(name string) (ready, gone time.Duration, err error),
) error {
	began := time.Now()
	var callers sync.WaitGroup
	var pods atomic.Int64
	errs := make([]error, b.o.callers)
	for caller := range b.o.callers {
		callers.Go(func() {
			for i := 0; time.Since(began) < b.o.duration && errs[caller] == nil; i++ {
				ready, gone, err := cycle(fmt.Sprintf("churn-%d-%d", caller, i))
				if errs[caller] = err; err == nil {
					pods.Add(1)
					b.note(side, "create to Ready, ms", ms(ready))
					b.note(side, "delete to gone, ms", ms(gone))
				}
			}
		})
	}
	callers.Wait()
	b.note(side, fmt.Sprintf("pods a second, %d at a time", b.o.callers), float64(pods.Load())/time.Since(began).Seconds())
	return errors.Join(errs...)
}

// profiled calls work and writes nodelet's CPU profile of that time, if one is wanted.
func (b *churner) profiled(ctx context.Context, side string, work func() error) error {
	if b.o.profile == "" || side != string(testbed.Nodelet) {
		return work()
	}
	var profile []byte
	var failed error
	var done sync.WaitGroup
	done.Go(func() {
		seconds := strconv.Itoa(int(b.o.duration.Seconds()))
		profile, failed = b.api.Core.Get().
			Resource("nodes").
			Name(b.node.Name).
			SubResource("proxy", "debug", "pprof", "profile").
			Param("seconds", seconds).
			DoRaw(ctx)
	})
	err := work()
	done.Wait()
	if failed != nil {
		return errors.Join(err, fmt.Errorf("read nodelet's CPU profile: %w", failed))
	}
	return errors.Join(err, os.WriteFile(filepath.Clean(b.o.profile), profile, 0o644))
}

// starts has the time at which the runtime reported the start of each pod's container.
type starts struct {
	stop func()
	mu   sync.Mutex
	seen map[string]time.Time
}

// followStarts follows the events of the runtime.
func (b *churner) followStarts(ctx context.Context) (*starts, error) {
	rt, hangUp, err := b.node.Runtime.CRI()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	s := &starts{seen: map[string]time.Time{}, stop: func() { cancel(); _ = hangUp() }}
	stream, err := rt.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	if err != nil {
		s.stop()
		return nil, err
	}
	go func() {
		for {
			e, err := stream.Recv()
			if err != nil {
				return
			}
			s.note(e)
		}
	}()
	return s, nil
}

func (s *starts) note(e *runtimeapi.ContainerEventResponse) {
	box := e.PodSandboxStatus
	if e.ContainerEventType != runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT || box == nil ||
		e.ContainerId == box.Id {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen[box.Metadata.GetName()] = time.Now()
}

func (s *starts) at(pod string) (time.Time, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, ok := s.seen[pod]
	return at, ok
}
