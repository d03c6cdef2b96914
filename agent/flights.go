package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/nodelet/nodelet/agent/podstate"
)

// flights are the steps in flight, by their keys.
type flights map[podstate.Key]flight

// flight is how to cancel a step, and when it began.
type flight struct {
	cancel context.CancelFunc
	began  time.Time
}

// since returns when the step in flight began that a pod waits for; nil if it waits for something else.
func (f flights) since(awaited fmt.Stringer) *time.Time {
	step, is := awaited.(podstate.Step)
	if !is {
		return nil
	}
	if one, runs := f[step.Key()]; runs {
		return &one.began
	}
	return nil
}
