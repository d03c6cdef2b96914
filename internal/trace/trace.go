package trace

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"time"
)

// Kind says which side of a call a span is.
type Kind int

// The kinds, with the numbers of OTLP's Span.SpanKind.
const (
	Internal Kind = 1
	Client   Kind = 3
)

// Span is one operation. A nil Span is not sampled; its methods do nothing.
type Span struct {
	tracer     *Tracer
	trace      [16]byte
	id, parent [8]byte
	name       string
	kind       Kind
	// attributes are names and values in turn.
	attributes []string
	began, end time.Time
	err        string
	failed     bool
}

type spanKey struct{}

// Root begins a trace, if the tracer samples it. attributes are names and values in turn. A nil Tracer samples nothing.
// The caller calls End once.
func (t *Tracer) Root(name string, attributes ...string) *Span {
	if t == nil {
		return nil
	}
	var id [16]byte
	binary.BigEndian.PutUint64(id[:8], rand.Uint64())
	binary.BigEndian.PutUint64(id[8:], rand.Uint64())
	if binary.BigEndian.Uint64(id[8:])>>1 >= t.limit {
		return nil
	}
	return begin(&Span{tracer: t, trace: id, name: name, kind: Internal, attributes: attributes})
}

// Child begins a span below that of ctx. It returns nil if ctx has none.
func Child(ctx context.Context, name string, kind Kind, attributes ...string) (context.Context, *Span) {
	parent, _ := ctx.Value(spanKey{}).(*Span)
	if parent == nil {
		return ctx, nil
	}
	s := begin(&Span{
		tracer:     parent.tracer,
		trace:      parent.trace,
		parent:     parent.id,
		name:       name,
		kind:       kind,
		attributes: attributes,
	})
	return s.Context(ctx), s
}

func begin(s *Span) *Span {
	binary.BigEndian.PutUint64(s.id[:], rand.Uint64()|1) // zero is no ID
	s.began = time.Now()
	return s
}

// End ends the span with the error of its operation, which may be nil.
func (s *Span) End(err error) {
	if s == nil {
		return
	}
	s.end = time.Now()
	if err != nil {
		s.failed, s.err = true, err.Error()
	}
	s.tracer.enqueue(s)
}

// Context returns ctx with the span as the parent of further ones. The span of a nil Span is that of ctx.
func (s *Span) Context(ctx context.Context) context.Context {
	if s == nil {
		return ctx
	}
	return context.WithValue(ctx, spanKey{}, s)
}

// traceparent returns the traceparent header (W3C Trace Context) of the span of ctx; empty if there is none.
func traceparent(ctx context.Context) string {
	s, _ := ctx.Value(spanKey{}).(*Span)
	if s == nil {
		return ""
	}
	return "00-" + hex.EncodeToString(s.trace[:]) + "-" + hex.EncodeToString(s.id[:]) + "-01"
}
