// Package fake is a collector of spans for tests: it speaks OTLP over gRPC with OpenTelemetry's own types.
//
// It owns its server and the spans that it got. Only tests use it.
package fake

import (
	"errors"
	"net"
	"sync"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
)

// Collector remembers what it gets. Start makes it serve. It is safe for use by many goroutines.
type Collector struct {
	mu       sync.Mutex
	methods  []string
	requests []*tracepb.TracesData // with the fields of ExportTraceServiceRequest
	refuse   bool
}

// Start serves at a free port until stop is called.
func (c *Collector) Start() (endpoint string, stop func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	server := grpc.NewServer(grpc.UnknownServiceHandler(c.handle))
	go func() { _ = server.Serve(l) }()
	return l.Addr().String(), server.Stop, nil
}

func (c *Collector) handle(_ any, stream grpc.ServerStream) error {
	data := &tracepb.TracesData{}
	if err := stream.RecvMsg(data); err != nil {
		return err
	}
	method, _ := grpc.MethodFromServerStream(stream)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refuse {
		return errors.New("no space is left")
	}
	c.methods = append(c.methods, method)
	c.requests = append(c.requests, data)
	return stream.SendMsg(&tracepb.TracesData{}) // an empty answer
}

// Refuse makes it refuse all spans.
func (c *Collector) Refuse() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refuse = true
}

// Requests returns what it got, with the method of each request.
func (c *Collector) Requests() ([]string, []*tracepb.TracesData) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.methods, c.requests
}

// Spans returns all spans.
func (c *Collector) Spans() []*tracepb.Span {
	_, requests := c.Requests()
	var all []*tracepb.Span
	for _, data := range requests {
		for _, r := range data.ResourceSpans {
			for _, s := range r.ScopeSpans {
				all = append(all, s.Spans...)
			}
		}
	}
	return all
}
