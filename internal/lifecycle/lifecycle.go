// Package lifecycle runs the parts of a process together.
//
// It owns only the order: what prepares, then all that runs at once, then what closes. It never restarts a part. The
// wiring of cmd/nodelet fills a Group and runs it once. A crash leaves nothing behind.
package lifecycle

import (
	"context"
	"sync"
)

// Group is the parts of a process. The zero value is empty and ready to use.
type Group struct {
	first []func(context.Context)
	runs  []func(context.Context)
	ends  []func()
}

// Before calls f before anything runs.
func (g *Group) Before(f func(context.Context)) { g.first = append(g.first, f) }

// Start runs f until its context ends.
func (g *Group) Start(f func(context.Context)) { g.runs = append(g.runs, f) }

// AtEnd calls f when all that runs has returned.
func (g *Group) AtEnd(f func()) { g.ends = append(g.ends, f) }

// Run runs all parts until ctx ends, or until work returns an error.
func (g *Group) Run(ctx context.Context, work func(context.Context) error) (failure error) {
	ctx, giveUp := context.WithCancel(ctx)
	defer giveUp()
	for _, f := range g.first {
		f(ctx)
	}
	var all sync.WaitGroup
	for _, f := range g.runs {
		all.Go(func() { f(ctx) })
	}
	all.Go(func() {
		if failure = work(ctx); failure != nil {
			giveUp()
		}
	})
	<-ctx.Done()
	all.Wait()
	for _, f := range g.ends {
		f()
	}
	return failure
}
