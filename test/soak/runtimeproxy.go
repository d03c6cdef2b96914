package main

import (
	"context"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nodelet/nodelet/test/criproxy"
)

// runtimeMode is what the proxy does to calls of the agent to the runtime.
type runtimeMode string

// The modes. Each but the first concerns about a third of the calls.
const (
	runtimeNormal runtimeMode = "normal"
	runtimeFails  runtimeMode = "fails"  // the call does not reach the runtime
	runtimeLoses  runtimeMode = "loses"  // the runtime does it, the answer is lost
	runtimeHangs  runtimeMode = "hangs"  // no answer until the caller gives up or the mode changes
	runtimeLate   runtimeMode = "late"   // up to five seconds more, before or after the runtime does it
	runtimeTwice  runtimeMode = "twice"  // the runtime gets the call twice, the second answer counts
	runtimeSilent runtimeMode = "silent" // no events, and the stream of events breaks
)

// runtimeProxy stands between the agent and the runtime. It forwards messages without reading them.
type runtimeProxy struct {
	through *criproxy.Proxy

	mu      sync.Mutex
	mode    runtimeMode
	changed chan struct{} // closed at the next change of mode
}

func startRuntimeProxy(socket, runtime string) (*runtimeProxy, error) {
	p := &runtimeProxy{mode: runtimeNormal, changed: make(chan struct{})}
	var err error
	if p.through, err = criproxy.Start(socket, runtime, p.handle); err != nil {
		return nil, err
	}
	return p, nil
}

func (p *runtimeProxy) close() { p.through.Close() }

func (p *runtimeProxy) set(m runtimeMode) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mode = m
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *runtimeProxy) now() (runtimeMode, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mode, p.changed
}

var errFault = status.Error(codes.Unavailable, "made by the soak test")

// handle passes one call on, or not.
func (p *runtimeProxy) handle(to *criproxy.Proxy, in grpc.ServerStream, method string, request []byte) error {
	if strings.HasSuffix(method, "/GetContainerEvents") {
		return p.events(to, in, method, request)
	}
	mode, changed := p.now()
	if rand.IntN(3) > 0 {
		mode = runtimeNormal
	}
	switch mode {
	case runtimeFails:
		return errFault
	case runtimeLoses:
		_ = to.Pass(context.WithoutCancel(in.Context()), method, request, drop)
		return errFault
	case runtimeHangs:
		select {
		case <-changed:
		case <-in.Context().Done():
		}
		return errFault
	case runtimeLate:
		before := time.Duration(rand.IntN(2500)) * time.Millisecond
		after := time.Duration(rand.IntN(2500)) * time.Millisecond
		time.Sleep(before)
		// The runtime does it whether or not the caller still waits.
		defer time.Sleep(after)
		return to.Pass(context.WithoutCancel(in.Context()), method, request, sendTo(in))
	case runtimeTwice:
		_ = to.Pass(in.Context(), method, request, drop)
	}
	return to.Pass(in.Context(), method, request, sendTo(in))
}

// events passes the runtime's events on until the mode says otherwise.
func (p *runtimeProxy) events(to *criproxy.Proxy, in grpc.ServerStream, method string, request []byte) error {
	ctx, cancel := context.WithCancel(in.Context())
	defer cancel()
	go func() {
		for {
			mode, changed := p.now()
			if mode == runtimeSilent {
				cancel()
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}()
	return to.Pass(ctx, method, request, sendTo(in))
}

// drop loses an answer.
func drop([]byte) error { return nil }

// sendTo sends answers to the agent.
func sendTo(in grpc.ServerStream) func([]byte) error {
	return func(answer []byte) error { return in.SendMsg(&answer) }
}
