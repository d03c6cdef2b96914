package trace

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

const (
	// queueSize, batchSize, batchTime and sendTime are the defaults of OpenTelemetry's batch processor.
	queueSize = 2048
	batchSize = 512
	batchTime = 5 * time.Second
	sendTime  = 10 * time.Second
)

// Config is what a Tracer needs.
type Config struct {
	// Endpoint is the collector, as gRPC names it: host:port, or unix:///path. Connections have no TLS, as the kubelet's.
	Endpoint string
	// PerMillion is how many of a million traces are sampled.
	PerMillion int32
	// Node and Version describe the agent.
	Node, Version string
	// EndTime is how long spans are still sent when the agent stops: it must not wait for a collector that hangs. Zero
	// means two seconds.
	EndTime time.Duration
	Log     *slog.Logger
}

// Tracer samples traces and sends their spans. Run does the work. A nil Tracer samples nothing.
type Tracer struct {
	cfg   Config
	limit uint64 // traces whose number is below it are sampled
	queue chan *Span
	// dropped counts spans that were not sent.
	dropped atomic.Uint64
}

// New returns a Tracer.
func New(cfg Config) *Tracer {
	cfg.EndTime = cmp.Or(cfg.EndTime, 2*time.Second)
	return &Tracer{
		cfg:   cfg,
		limit: uint64(cfg.PerMillion) * (1 << 63 / 1_000_000),
		queue: make(chan *Span, queueSize),
	}
}

// Dropped returns how many spans were not sent, because the queue was full or the collector did not take them.
func (t *Tracer) Dropped() uint64 { return t.dropped.Load() }

func (t *Tracer) enqueue(s *Span) {
	select {
	case t.queue <- s:
	default:
		t.dropped.Add(1)
	}
}

// Run sends spans until ctx ends, and then those that are in the queue, but no longer than EndTime.
func (t *Tracer) Run(ctx context.Context) {
	conn, err := grpc.NewClient(t.cfg.Endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{})), grpc.WithDisableServiceConfig())
	if err != nil {
		t.cfg.Log.Error("cannot send spans: fix tracing.endpoint", "endpoint", t.cfg.Endpoint, "err", err)
		return
	}
	defer conn.Close()
	sending, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(t.cfg.EndTime, end) })()
	failing := false
	for {
		batch := t.collect(ctx)
		if len(batch) == 0 {
			return
		}
		err := t.send(sending, conn, batch)
		if err != nil {
			t.dropped.Add(uint64(len(batch)))
		}
		if failed := err != nil; failed != failing {
			failing = failed
			t.logChange(err)
		}
	}
}

// logChange logs the first failure in a row, and the first success after it.
func (t *Tracer) logChange(err error) {
	if err != nil {
		t.cfg.Log.Warn("the trace collector does not accept spans; they are dropped",
			"endpoint", t.cfg.Endpoint, "err", err)
		return
	}
	t.cfg.Log.Info("the trace collector accepts spans again", "dropped", t.Dropped())
}

// collect waits for a span, and then for as many as fit into a batch or come within batchTime. It returns none when ctx
// has ended and the queue is empty.
func (t *Tracer) collect(ctx context.Context) (batch []*Span) {
	select {
	case s := <-t.queue:
		batch = append(batch, s)
	case <-ctx.Done():
	}
	timer := time.NewTimer(batchTime)
	defer timer.Stop()
	for len(batch) < batchSize {
		if ctx.Err() != nil {
			return t.rest(batch)
		}
		select {
		case s := <-t.queue:
			batch = append(batch, s)
		case <-timer.C:
			return batch
		case <-ctx.Done():
		}
	}
	return batch
}

// rest adds what is in the queue.
func (t *Tracer) rest(batch []*Span) []*Span {
	for len(batch) < batchSize {
		select {
		case s := <-t.queue:
			batch = append(batch, s)
		default:
			return batch
		}
	}
	return batch
}

// export is the method of OTLP's TraceService.
const export = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"

func (t *Tracer) send(ctx context.Context, conn *grpc.ClientConn, batch []*Span) error {
	ctx, cancel := context.WithTimeout(ctx, sendTime)
	defer cancel()
	var answer []byte // partial success: the collector has logged what it refused
	if err := conn.Invoke(ctx, export, t.encode(batch), &answer); err != nil {
		return fmt.Errorf("export %d spans: %w", len(batch), err)
	}
	return nil
}

// raw passes encoded messages through.
type raw struct{}

// Marshal implements encoding.Codec.
func (raw) Marshal(v any) ([]byte, error) {
	text, ok := v.([]byte)
	if !ok {
		return nil, fmt.Errorf("encode a message: got %T, want bytes", v)
	}
	return text, nil
}

// Unmarshal implements encoding.Codec.
func (raw) Unmarshal(text []byte, v any) error {
	into, ok := v.(*[]byte)
	if !ok {
		return fmt.Errorf("decode a message: got %T, want bytes", v)
	}
	*into = text
	return nil
}

// Name implements encoding.Codec. It returns no name, because gRPC appends it to the content type: so that is
// application/grpc alone, as the exporters of OpenTelemetry send it.
func (raw) Name() string { return "" }
