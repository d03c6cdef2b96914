package lifecycle_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/nodelet/nodelet/internal/lifecycle"
)

// TestRun checks the order of the parts, and that an error of the work ends all of them.
func TestRun(t *testing.T) {
	var mu sync.Mutex
	var got []string
	note := func(what string) {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, what)
	}
	var g lifecycle.Group
	g.Start(func(ctx context.Context) {
		<-ctx.Done()
		note("run")
	})
	g.Before(func(context.Context) { note("before") })
	g.AtEnd(func() { note("end") })
	failure := errors.New("no runtime")
	err := g.Run(t.Context(), func(context.Context) error {
		note("work")
		return failure
	})
	if want := []string{"before", "work", "run", "end"}; !errors.Is(err, failure) || !slices.Equal(got, want) {
		t.Errorf("got %v and error %v, want %v and error %v", got, err, want, failure)
	}
}

// TestContextEnds checks that the end of the context is no error.
func TestContextEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var g lifecycle.Group
	g.Start(func(context.Context) { cancel() })
	if err := g.Run(ctx, func(context.Context) error { return nil }); err != nil {
		t.Errorf("got error %v, want none", err)
	}
}
