package main

import (
	"context"
	"fmt"
	"time"
)

// settle is the pause before the usage of an idle agent is measured.
const settle = 15 * time.Second

const secondsOfDay = 24 * 60 * 60

// resting measures what an idle agent uses.
type resting struct{ *bench }

// all measures the agent with each load.
func (b *resting) all(ctx context.Context, side string) error {
	for _, load := range b.o.loads {
		if err := b.atRest(ctx, side, load); err != nil {
			return err
		}
	}
	return b.deletePods(ctx)
}

// atRest measures memory and CPU with a number of pods that only run.
func (b *resting) atRest(ctx context.Context, side string, load int) error {
	if err := b.fill(ctx, side, load); err != nil {
		return err
	}
	if err := pause(ctx, settle); err != nil {
		return err
	}
	pid := b.node.AgentPID()
	before, err := usageOf(pid)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := pause(ctx, b.o.rest); err != nil {
		return err
	}
	after, err := usageOf(pid)
	if err != nil {
		return err
	}
	seconds := time.Since(began).Seconds()
	cpu := (after.cpu - before.cpu).Seconds() / seconds
	rss, private, err := memory(pid)
	if err != nil {
		return err
	}
	name := b.loadName(load)
	b.note(side, fmt.Sprintf("CPU at rest, %s, millicores", name), 1000*cpu)
	b.note(side, fmt.Sprintf("wake-ups at rest, %s, a second", name), float64(after.wakeUps-before.wakeUps)/seconds)
	b.note(side, fmt.Sprintf("written at rest, %s, MiB a day", name),
		float64(after.written-before.written)/(1<<20)*secondsOfDay/seconds)
	b.note(side, fmt.Sprintf("RSS, %s, MiB", name), rss)
	b.note(side, fmt.Sprintf("private dirty, %s, MiB", name), private)
	return b.scrapes(ctx, side, name, cpu)
}

func (b *bench) loadName(load int) string {
	if b.o.probes {
		return fmt.Sprintf("%d pods with three probes each", load)
	}
	return fmt.Sprintf("%d pods", load)
}
