package agent_test

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/nodelet/nodelet/internal/trace"
	"github.com/nodelet/nodelet/test/trace/fake"
	"github.com/nodelet/nodelet/test/waittest"
)

// TestTraces starts and deletes a pod, and checks its spans at a collector: the start is one trace with steps, in which
// the calls of the runtime are, and so is the end.
func TestTraces(t *testing.T) {
	collector := &fake.Collector{}
	endpoint, stop, err := collector.Start()
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	tracer := trace.New(trace.Config{
		Endpoint:   endpoint,
		PerMillion: 1_000_000,
		EndTime:    waittest.Limit,
		Log:        slog.New(slog.DiscardHandler),
	})
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.tracer = tracer
		w.begin()
		pod := apiPod("web")
		w.run(pod)
		w.sleep(time.Second)
		w.delete(pod, time.Second)
		w.sleep(time.Minute)
	})
	sent, cancel := context.WithCancel(t.Context())
	cancel()
	tracer.Run(sent) // sends what is in the queue; the connection does not belong to the fake time
	byID := map[string]*tracepb.Span{}
	for _, s := range collector.Spans() {
		byID[string(s.SpanId)] = s
	}
	for _, want := range [][]string{
		{"syncPod", "CreateSandbox", "runtime.v1.RuntimeService/RunPodSandbox"},
		{"syncPod", "StartContainer", "runtime.v1.RuntimeService/StartContainer"},
		{"syncTerminatingPod", "StopContainer", "runtime.v1.RuntimeService/StopContainer"},
		{"syncTerminatedPod", "RemoveDir"},
	} {
		if !hasChain(byID, want) {
			t.Errorf("got no spans %v among %d", want, len(byID))
		}
	}
	starts := map[string]bool{}
	for _, s := range byID {
		if s.Name == "syncPod" {
			starts[string(s.TraceId)] = true
		}
	}
	if len(starts) != 1 {
		t.Errorf("got %d traces of the start of the pod, want 1", len(starts))
	}
}

// hasChain reports whether there is a span with the last of these names, whose parents have those before it.
func hasChain(byID map[string]*tracepb.Span, names []string) bool {
	for _, s := range byID {
		i := len(names) - 1
		for ; s != nil && i >= 0 && s.Name == names[i]; i-- {
			s = byID[string(s.ParentSpanId)]
		}
		if i < 0 && s == nil {
			return true
		}
	}
	return false
}
