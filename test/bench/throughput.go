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

	"golang.org/x/sync/errgroup"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/test/testbed"
)

// signalReady is the pause before a pod of the throughput ends: a process that has just started may not handle SIGTERM
// yet, and would use up its whole grace period.
const signalReady = 50 * time.Millisecond

// churner measures a node at work.
type churner struct{ *bench }

// rate is how many pods a second begin with steady: fewer than any side can start and end on two cores.
const rate = 2

// lifetimes are those of one pod: from create to Ready, from the start of its container until Ready is visible (0: not
// known), and from delete to gone.
type lifetimes struct{ ready, visible, gone time.Duration }

// life creates a pod, waits until it is Ready, deletes it and waits until it is gone.
type life func(name string) (lifetimes, error)

// throughput measures a node at work: first as much of it as the side can do, then the same for each side. The floor
// does it with CRI calls alone.
func (b *churner) throughput(ctx context.Context) error {
	return b.onAgents(ctx, b.agent, func(round int) error {
		b.announce(round, floorSide)
		return onFloor(ctx, b.bench, func(f *floorRun) error {
			bare := func(name string) (lifetimes, error) {
				ready, gone, err := f.run(ctx, b.floorPod(name))
				return lifetimes{ready: ready, gone: gone}, err
			}
			if err := b.churn(floorSide, bare); err != nil {
				return err
			}
			return b.steady(ctx, floorSide, bare)
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
	whole := func(name string) (t lifetimes, err error) {
		began := time.Now()
		if err := b.create(ctx, b.pod(name)); err != nil {
			return t, err
		}
		readyAt, err := f.wait(ctx, "Ready", f.ready, name)
		if err != nil {
			return t, err
		}
		t.ready = readyAt.Sub(began)
		if at, ok := events.at(name); ok {
			t.visible = readyAt.Sub(at)
		}
		if err := pause(ctx, signalReady); err != nil {
			return t, err
		}
		ended := time.Now()
		if err := b.delete(ctx, name); err != nil {
			return t, err
		}
		goneAt, err := f.wait(ctx, "gone", f.gone, name)
		t.gone = goneAt.Sub(ended)
		return t, err
	}
	if err := b.profiled(ctx, side, func() error { return b.churn(side, whole) }); err != nil {
		return err
	}
	return b.steady(ctx, side, whole)
}

// noteLife notes the times of a pod that began and ended under a load.
func (b *churner) noteLife(side, load string, t lifetimes) {
	b.note(side, "create to Ready"+load+", ms", ms(t.ready))
	if t.visible != 0 {
		b.note(side, "container started to Ready visible"+load+", ms", ms(t.visible))
	}
	b.note(side, "delete to gone"+load+", ms", ms(t.gone))
}

// steady begins a pod's life at a fixed rate until the time is over, however long those before it take: each side has
// the same work to do. It notes the times of each.
func (b *churner) steady(ctx context.Context, side string, life life) error {
	next := time.NewTicker(time.Second / rate)
	defer next.Stop()
	var pods errgroup.Group
	for i := range int(b.o.duration.Seconds() * rate) {
		select {
		case <-next.C:
		case <-ctx.Done():
			return errors.Join(ctx.Err(), pods.Wait())
		}
		pods.Go(func() error {
			t, err := life(fmt.Sprintf("steady-%d", i))
			if err == nil {
				b.noteLife(side, fmt.Sprintf(", %d pods a second", rate), t)
			}
			return err
		})
	}
	return pods.Wait()
}

// churn lets b.o.callers callers each run one pod's life after the other until the time is over, so that a side that is
// fast starts more. It notes pods a second and the times of each.
func (b *churner) churn(side string, life life) error {
	began := time.Now()
	var callers sync.WaitGroup
	var pods atomic.Int64
	errs := make([]error, b.o.callers)
	for caller := range b.o.callers {
		callers.Go(func() {
			for i := 0; time.Since(began) < b.o.duration && errs[caller] == nil; i++ {
				t, err := life(fmt.Sprintf("churn-%d-%d", caller, i))
				if errs[caller] = err; err == nil {
					pods.Add(1)
					b.noteLife(side, "", t)
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
