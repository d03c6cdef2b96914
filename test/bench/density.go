package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/test/testbed"
)

// setDensities reads the numbers of pods of a density run, in growing order. An empty text is none.
func (o *options) setDensities(text string) error {
	if text == "" {
		return nil
	}
	for _, number := range strings.Split(text, ",") {
		n, err := strconv.Atoi(number)
		if err != nil || n <= 0 || len(o.densities) > 0 && n <= o.densities[len(o.densities)-1] {
			return fmt.Errorf("flag -density: got %q, want growing numbers of pods such as 250,500", text)
		}
		o.densities = append(o.densities, n)
	}
	o.loads = o.densities
	return nil
}

// crowd measures a node with many pods.
type crowd struct{ *bench }

// density measures each agent with each number of pods: at rest, one more pod, and a restart of the agent.
func (b *crowd) density(ctx context.Context) error {
	return b.onAgents(ctx, func(ctx context.Context, side string) error {
		if err := b.singles(ctx, side, ""); err != nil {
			return err
		}
		for _, n := range b.o.densities {
			if err := (&resting{b.bench}).atRest(ctx, side, n); err != nil {
				return err
			}
			name := b.loadName(n)
			if err := b.singles(ctx, side, ", beside "+name); err != nil {
				return err
			}
			if err := b.restart(ctx, side, name); err != nil {
				return err
			}
		}
		began := time.Now()
		err := b.deletePods(ctx)
		b.note(side, fmt.Sprintf("delete to gone, all of %d at once, ms", slices.Max(b.o.loads)), ms(time.Since(began)))
		return err
	}, nil)
}

// restart kills the agent, starts it again, and measures how long it takes until the next pod is Ready, and the CPU
// time of that. No container may have restarted.
func (b *crowd) restart(ctx context.Context, side, name string) error {
	if err := b.node.StopAgent(unix.SIGKILL); err != nil {
		return err
	}
	f, err := b.follow(ctx)
	if err != nil {
		return err
	}
	defer f.stop()
	if err := b.create(ctx, b.pod("after-restart")); err != nil {
		return err
	}
	began := time.Now()
	if err := b.node.StartAgent(ctx, testbed.AgentKind(side)); err != nil {
		return err
	}
	ready, err := f.wait(ctx, "Ready", f.ready, "after-restart")
	if err != nil {
		return err
	}
	used, err := cpuTime(b.node.AgentPID())
	if err != nil {
		return err
	}
	b.note(side, "agent killed and started, to the next pod Ready, "+name+", ms", ms(ready.Sub(began)))
	b.note(side, "CPU of that start, "+name+", ms", ms(used))
	if err := b.delete(ctx, "after-restart"); err != nil {
		return err
	}
	if _, err := f.wait(ctx, "gone", f.gone, "after-restart"); err != nil {
		return err
	}
	return b.noRestarts(ctx)
}

// noRestarts returns an error if a container of any pod has restarted.
func (b *crowd) noRestarts(ctx context.Context) error {
	var pods corev1.PodList
	if err := b.api.Core.Get().Namespace(namespace).Resource("pods").Do(ctx).Into(&pods); err != nil {
		return err
	}
	var errs []error
	for i := range pods.Items {
		for _, s := range pods.Items[i].Status.ContainerStatuses {
			if s.RestartCount > 0 {
				errs = append(errs, fmt.Errorf("container %s of pod %s has restarted", s.Name, pods.Items[i].Name))
			}
		}
	}
	return errors.Join(errs...)
}
