package execute

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nodelet/nodelet/internal/trace"
)

// traced runs a step within a span that has the name of the step.
func (x *Executor) traced(ctx context.Context, t *Task) *Outcome {
	name := strings.TrimPrefix(fmt.Sprintf("%T", t.Step), "podstate.")
	ctx, span := trace.Child(ctx, name, trace.Internal)
	out := x.run(ctx, t)
	span.End(out.failure())
	return out
}

// failure returns the problem of a step as an error; nil if it succeeded.
func (o *Outcome) failure() error {
	if o.Problem == nil {
		return nil
	}
	return errors.New(o.Problem.Message)
}
