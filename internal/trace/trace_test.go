package trace

import (
	"context"
	"encoding/hex"
	"errors"
	"log/slog"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/trace/v1"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/nodelet/nodelet/test/trace/fake"
	"github.com/nodelet/nodelet/test/waittest"
)

// serve starts a collector for a test.
func serve(t *testing.T, c *fake.Collector) (endpoint string) {
	t.Helper()
	endpoint, stop, err := c.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return endpoint
}

// run sends the spans that do makes, and returns when all are sent.
func run(t *testing.T, s *fake.Collector, perMillion int32, do func(*Tracer)) *Tracer {
	tracer := New(Config{
		Endpoint:   serve(t, s),
		PerMillion: perMillion,
		Node:       "node-1",
		Version:    "1.2.3",
		EndTime:    waittest.Limit,
		Log:        slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	do(tracer)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	tracer.Run(ctx)
	return tracer
}

// TestExport checks what a collector gets: a root span, its children, their attributes, errors and the resource.
func TestExport(t *testing.T) {
	s := &fake.Collector{}
	var parent string
	run(t, s, 1_000_000, func(tracer *Tracer) {
		root := tracer.Root("syncPod", "k8s.pod.uid", "uid-1")
		inner, child := Child(root.Context(t.Context()), "CreateSandbox", Internal)
		parent = traceparent(inner)
		child.End(errors.New("no network"))
		root.End(nil)
	})
	methods, requests := s.Requests()
	if len(requests) != 1 || methods[0] != export {
		t.Fatalf("got requests of %v, want one of %s", methods, export)
	}
	r := requests[0].ResourceSpans[0]
	resource := ""
	for _, a := range r.Resource.Attributes {
		resource += a.Key + "=" + a.Value.GetStringValue() + " "
	}
	if want := "service.name=kubelet host.name=node-1 "; resource != want {
		t.Errorf("got the resource %s, want %s", resource, want)
	}
	if sc := r.ScopeSpans[0].Scope; sc.Name != "nodelet" || sc.Version != "1.2.3" {
		t.Errorf("got the scope %v", sc)
	}
	spans := r.ScopeSpans[0].Spans
	if len(spans) != 2 {
		t.Fatalf("got %d spans, want 2", len(spans))
	}
	child, root := spans[0], spans[1]
	if root.Name != "syncPod" || len(root.ParentSpanId) != 0 || root.Status != nil ||
		root.Attributes[0].Key != "k8s.pod.uid" || root.Attributes[0].Value.GetStringValue() != "uid-1" {
		t.Errorf("got the root %v", root)
	}
	if string(child.ParentSpanId) != string(root.SpanId) || string(child.TraceId) != string(root.TraceId) ||
		child.Status.GetCode() != collector.Status_STATUS_CODE_ERROR || child.Status.GetMessage() != "no network" {
		t.Errorf("got the child %v", child)
	}
	if root.Kind != collector.Span_SPAN_KIND_INTERNAL || root.EndTimeUnixNano < child.EndTimeUnixNano ||
		child.StartTimeUnixNano < root.StartTimeUnixNano {
		t.Errorf("got kind %v and times %d to %d around %d to %d", root.Kind, root.StartTimeUnixNano,
			root.EndTimeUnixNano, child.StartTimeUnixNano, child.EndTimeUnixNano)
	}
	want := "00-" + hex.EncodeToString(child.TraceId) + "-" + hex.EncodeToString(child.SpanId) + "-01"
	if parent != want {
		t.Errorf("got traceparent %s, want %s", parent, want)
	}
}

// TestSampling checks that nothing is made without a tracer or a rate, and that a rate of a half samples some.
func TestSampling(t *testing.T) {
	for _, tracer := range []*Tracer{nil, New(Config{})} {
		root := tracer.Root("syncPod")
		ctx := root.Context(t.Context())
		_, child := Child(ctx, "step", Internal)
		if root != nil || child != nil || traceparent(ctx) != "" {
			t.Errorf("got %v and %v, want no spans", root, child)
		}
		root.End(nil)
		if ctx != t.Context() {
			t.Error("got another context without a span")
		}
	}
	half, n := New(Config{PerMillion: 500_000}), 0
	for range 1000 {
		if half.Root("syncPod") != nil {
			n++
		}
	}
	if n < 350 || n > 650 { // ten standard deviations around a half
		t.Errorf("got %d of 1000 traces, want about half", n)
	}
}

// TestDropped checks that spans that no collector takes, or that do not fit into the queue, are counted.
func TestDropped(t *testing.T) {
	refusing := &fake.Collector{}
	refusing.Refuse()
	tracer := run(t, refusing, 1_000_000, func(tracer *Tracer) {
		for range queueSize + 3 {
			tracer.Root("syncPod").End(nil)
		}
	})
	if got, want := tracer.Dropped(), uint64(queueSize+3); got != want {
		t.Errorf("got %d dropped spans, want %d", got, want)
	}
}

// TestErrorWithAnyBytes checks that an error with the name of a file that is not UTF-8 does not cost a batch of spans.
func TestErrorWithAnyBytes(t *testing.T) {
	s := &fake.Collector{}
	tracer := run(t, s, 1_000_000, func(tracer *Tracer) {
		tracer.Root("RemoveDir").End(&os.PathError{Op: "unlinkat", Path: "data/\xff", Err: unix.EPERM})
	})
	_, requests := s.Requests()
	if len(requests) != 1 || tracer.Dropped() != 0 {
		t.Fatalf("got %d requests and %d dropped spans, want one request", len(requests), tracer.Dropped())
	}
	got := requests[0].ResourceSpans[0].ScopeSpans[0].Spans[0].Status.GetMessage()
	if want := "unlinkat data/\uFFFD: operation not permitted"; got != want {
		t.Errorf("got the error %q, want %q", got, want)
	}
}

// TestStopBesideSilentCollector checks that the agent gives up a collector that does not answer when it stops: before
// the limit of the call.
func TestStopBesideSilentCollector(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	var log strings.Builder
	tracer := New(Config{
		Endpoint:   silent.Addr().String(),
		PerMillion: 1_000_000,
		EndTime:    time.Millisecond,
		Log:        slog.New(slog.NewTextHandler(&log, nil)),
	})
	for range queueSize {
		tracer.Root("syncPod").End(nil)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	tracer.Run(ctx)
	if !strings.Contains(log.String(), "code = Canceled") {
		t.Errorf("got the log %q, want that the call was given up", &log)
	}
	if got := tracer.Dropped(); got != queueSize {
		t.Errorf("got %d dropped spans, want %d", got, queueSize)
	}
}

// TestCallInterceptor checks the span of a call, and that the server gets its traceparent.
func TestCallInterceptor(t *testing.T) {
	tracer := New(Config{PerMillion: 1_000_000})
	var headers metadata.MD
	call := func(ctx context.Context) error {
		return CallInterceptor(ctx, "/runtime.v1.RuntimeService/RunPodSandbox", nil, nil, nil,
			func(ctx context.Context, _ string, _, _ any, _ *grpc.ClientConn, _ ...grpc.CallOption) error {
				headers, _ = metadata.FromOutgoingContext(ctx)
				return nil
			})
	}
	if err := call(t.Context()); err != nil || len(headers) != 0 {
		t.Errorf("without a span: got %v and headers %v, want none", err, headers)
	}
	if err := call(tracer.Root("syncPod").Context(t.Context())); err != nil {
		t.Fatal(err)
	}
	s := <-tracer.queue
	if s.name != "runtime.v1.RuntimeService/RunPodSandbox" || s.kind != Client ||
		!strings.Contains(strings.Join(s.attributes, " "), "rpc.method RunPodSandbox") {
		t.Errorf("got the span %+v", s)
	}
	if got := headers.Get("traceparent"); len(got) != 1 || !strings.Contains(got[0], hex.EncodeToString(s.id[:])) {
		t.Errorf("got traceparent %v, want that of the call's span", got)
	}
}

// TestRunSendsBatches checks that spans are sent while Run runs.
func TestRunSendsBatches(t *testing.T) {
	s := &fake.Collector{}
	tracer := New(Config{Endpoint: serve(t, s), PerMillion: 1_000_000, Log: slog.New(slog.DiscardHandler)})
	for range batchSize {
		tracer.Root("syncPod").End(nil)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { tracer.Run(ctx); close(done) }()
	waittest.Until(t, "a batch of spans", func() bool { return len(s.Spans()) > 0 })
	cancel()
	<-done
}
