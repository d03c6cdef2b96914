package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/kube/client"
	"github.com/nodelet/nodelet/test/bench/figures"
	"github.com/nodelet/nodelet/test/testbed"
)

type bench struct {
	o     options
	tb    *testbed.Testbed
	node  *testbed.Node
	api   *client.Client
	audit *audit

	mu    sync.Mutex
	sides figures.Sides
}

func newBench(tb *testbed.Testbed, o options, a *audit) (*bench, error) {
	cfg, err := client.LoadConfig(tb.Kubeconfig)
	if err != nil {
		return nil, err
	}
	api, err := client.New(cfg, 1000, 2000, "bench")
	if err != nil {
		return nil, err
	}
	return &bench{o: o, tb: tb, node: tb.Nodes[0], api: api, audit: a, sides: figures.Sides{}}, nil
}

func (b *bench) note(side, measure string, value float64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sides.Note(side, measure, value)
}

// all measures the floor before each agent, because the speed of the machine may change.
func (b *bench) all(ctx context.Context) error {
	return b.onAgents(ctx, b.agent, func(round int) error {
		b.announce(round, "floor")
		if err := b.floor(ctx); err != nil {
			return fmt.Errorf("measure the floor: %w", err)
		}
		return nil
	})
}

// onSide measures the agent of that side, which runs.
type onSide func(ctx context.Context, side string) error

// onAgents measures each agent in turn for the requested number of rounds. It calls first before each agent; first
// may be nil.
func (b *bench) onAgents(ctx context.Context, measure onSide, first func(round int) error) error {
	for round := range b.o.rounds {
		for _, side := range b.o.sides {
			if first != nil {
				if err := first(round); err != nil {
					return err
				}
			}
			b.announce(round, string(side))
			if err := b.onAgent(ctx, side, measure); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *bench) announce(round int, what string) {
	fmt.Fprintf(os.Stderr, "==> round %d of %d: %s\n", round+1, b.o.rounds, what)
}

// onAgent starts and measures one agent on a node that is not registered yet.
func (b *bench) onAgent(ctx context.Context, side testbed.AgentKind, measure onSide) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("measure %s: %w", side, err)
		}
	}()
	if err := b.deleteNode(ctx); err != nil {
		return err
	}
	if side == nullSide {
		a, failed := startNull(ctx, b)
		if failed != nil {
			return failed
		}
		defer func() { err = errors.Join(err, a.close()) }()
		return measure(ctx, string(side))
	}
	n, err := b.followNode(ctx)
	if err != nil {
		return err
	}
	defer n.stop()
	began := time.Now()
	if err := b.node.StartAgent(ctx, side); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.node.StopAgent(unix.SIGTERM)) }()
	ready, err := n.wait(ctx)
	if err != nil {
		return err
	}
	b.note(string(side), "start to node Ready, ms", ms(ready.Sub(began)))
	return measure(ctx, string(side))
}

// agent measures an agent at work, and then idle with each load.
func (b *bench) agent(ctx context.Context, side string) error {
	if side == string(nullSide) {
		return b.pods(ctx, side)
	}
	b.binary(side)
	if err := b.pods(ctx, side); err != nil {
		return err
	}
	return (&resting{b}).all(ctx, side)
}

// pods measures the start and deletion of pods, one at a time and all at once.
func (b *bench) pods(ctx context.Context, side string) error {
	if err := b.onePod(ctx, "warm-up", nil); err != nil {
		return err
	}
	before, err := b.audit.requests()
	if err != nil {
		return err
	}
	return accounts{b}.podCosts(side, func() error {
		if err := b.singles(ctx, side, ""); err != nil {
			return err
		}
		after, err := b.audit.requests()
		if err != nil {
			return err
		}
		for what, each := range perPod(before, after, b.o.single) {
			b.note(side, "API requests a pod's life"+what, each)
		}
		return nil
	}, func() error { return b.manyPods(ctx, b.o.burst, side) })
}

func (b *bench) binary(side string) {
	if info, err := os.Stat(fmt.Sprintf("/proc/%d/exe", b.node.AgentPID())); err == nil {
		b.note(side, "binary, MiB", float64(info.Size())/(1<<20))
	}
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
