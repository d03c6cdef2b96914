// Package trace records spans and sends them to an OpenTelemetry collector (OTLP over gRPC).
//
// It owns the sampling, the queue of ended spans, and the encoding. It never blocks a caller: a span that does not fit
// into the queue is dropped. Package agent makes a root span for what it does for a pod, package execute and the client
// of the container runtime add children. Without a Tracer no span is made, and every function is a lookup in a context.
// A crash loses the spans that were not sent yet.
package trace
