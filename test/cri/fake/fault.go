package fake

import (
	"context"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	pb "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Fault is something that goes wrong with calls. Give it to Runtime.Inject.
type Fault struct {
	// Verb is the call it waits for, for example RunPodSandbox; empty means any.
	Verb string
	// Object must occur in the call's object (see Call); empty means any.
	Object string
	// Times is how many calls it strikes; 0 means all.
	Times int

	// Lose does the work first and strikes then: the answer is lost.
	Lose bool
	// Inside strikes within the work, after the name is reserved. For RunPodSandbox and CreateContainer only.
	Inside bool

	// Delay is how long a struck call waits.
	Delay time.Duration
	// Hang makes it wait until Release or until its client has gone.
	Hang bool
	// IgnoresCancel makes it hang on although its client has gone, as work does that is stuck in the kernel.
	IgnoresCancel bool
	// Err is what it then answers; with Lose and none set, the connection counts as broken (Unavailable). nil means that
	// the call goes on.
	Err error

	mu       sync.Mutex
	struck   int // calls
	released chan struct{}
	once     sync.Once
}

type faultKey struct{}

// faults strike the calls that arrive at a runtime, and record them.
type faults struct {
	lock     sync.Mutex
	injected []*Fault
	calls    []Call
}

// Inject makes a fault effective and gives it back, for Release and Hits.
func (r *faults) Inject(f *Fault) *Fault {
	f.released = make(chan struct{})
	if f.Lose && !f.Hang && f.Err == nil {
		f.Err = status.Error(codes.Unavailable, "error reading from server: EOF")
	}
	r.lock.Lock()
	defer r.lock.Unlock()
	r.injected = append(r.injected, f)
	return f
}

// Release ends the fault: hanging calls go on, new ones are not struck.
func (r *faults) Release(f *Fault) {
	r.lock.Lock()
	defer r.lock.Unlock()
	f.release()
	for i := range r.injected {
		if r.injected[i] == f {
			r.injected = append(r.injected[:i:i], r.injected[i+1:]...)
			return
		}
	}
}

func (r *faults) releaseAll() {
	r.lock.Lock()
	defer r.lock.Unlock()
	for _, f := range r.injected {
		f.release()
	}
}

func (f *Fault) release() { f.once.Do(func() { close(f.released) }) }

// Hits is how many calls the fault has struck.
func (f *Fault) Hits() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.struck
}

func (f *Fault) takes(verb, object string) bool {
	if f.Verb != "" && f.Verb != verb || !strings.Contains(object, f.Object) {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.Times > 0 && f.struck >= f.Times {
		return false
	}
	f.struck++
	return true
}

// strike waits and gives the fault's error.
func (f *Fault) strike(ctx context.Context) error {
	gone := ctx.Done()
	if f.IgnoresCancel {
		gone = nil
	}
	if f.Delay > 0 {
		timer := time.NewTimer(f.Delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-f.released:
		case <-gone:
			return ctx.Err()
		}
	}
	if f.Hang {
		select {
		case <-f.released:
		case <-gone:
			return ctx.Err()
		}
	}
	return f.Err
}

// inside is where the work of RunPodSandbox and CreateContainer meets a fault that is set to strike there.
func inside(ctx context.Context) error {
	if f, ok := ctx.Value(faultKey{}).(*Fault); ok {
		return f.strike(ctx)
	}
	return nil
}

// Call is a call that arrived.
type Call struct {
	Verb string
	// Object is "namespace/name#attempt" for RunPodSandbox, "name#attempt" of the container for CreateContainer, and the
	// sandbox, container or image otherwise.
	Object string
	At     time.Time
}

// Calls gives the calls that arrived since the start or the last ResetCalls, in order.
func (r *faults) Calls() []Call {
	r.lock.Lock()
	defer r.lock.Unlock()
	return append([]Call(nil), r.calls...)
}

// Verbs counts the calls that arrived, by verb.
func (r *faults) Verbs() map[string]int {
	count := map[string]int{}
	for _, c := range r.Calls() {
		count[c.Verb]++
	}
	return count
}

// ResetCalls forgets the calls so far.
func (r *faults) ResetCalls() {
	r.lock.Lock()
	defer r.lock.Unlock()
	r.calls = nil
}

// arrive records a call and finds the fault that strikes it.
func (r *faults) arrive(verb, object string) *Fault {
	r.lock.Lock()
	defer r.lock.Unlock()
	r.calls = append(r.calls, Call{Verb: verb, Object: object, At: time.Now()})
	for _, f := range r.injected {
		if f.takes(verb, object) {
			return f
		}
	}
	return nil
}

// objectOf is what a request is about.
func objectOf(req any) string {
	switch q := req.(type) {
	case *pb.RunPodSandboxRequest:
		m := q.GetConfig().GetMetadata()
		return m.GetNamespace() + "/" + m.GetName() + "#" + attempt(m.GetAttempt())
	case *pb.CreateContainerRequest:
		m := q.GetConfig().GetMetadata()
		return m.GetName() + "#" + attempt(m.GetAttempt())
	case interface{ GetContainerId() string }:
		return q.GetContainerId()
	case interface{ GetPodSandboxId() string }:
		return q.GetPodSandboxId()
	case interface{ GetImage() *pb.ImageSpec }:
		return q.GetImage().GetImage()
	}
	return ""
}
