package cri

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	minReopen = 100 * time.Millisecond
	maxReopen = 10 * time.Second
	// atOnce is how soon a stream ends that was never to carry anything.
	atOnce = time.Second
)

// errNoEvents is what becomes of a runtime that takes the call and has nothing to tell.
var errNoEvents = errors.New("GetContainerEvents: the container runtime ends each stream at once; " +
	"CRI-O does so unless its configuration has enable_pod_events = true in [crio.runtime]")

// Watch follows the runtime's container events until ctx ends and then returns its error. An event is a hint that the
// facts of a pod may have moved, nothing more: onPod gets the UID and takes a new Snapshot when it likes. Only the end
// of a container or sandbox is such a hint: that one was created, started or removed is what the answer to the caller's
// own call says at the same moment, and two looks for one change hold up the next step.
//
// onConnect is called whenever hints may have been missed, so that the caller relists: at each new stream (the runtime
// does not confirm that it has subscribed us, so an event within that moment may still be lost: a slow relist stays
// necessary), and for events that name no pod.
//
// Both are called from one goroutine and must return at once: containerd holds up its containers' starts and exits for
// a reader that lags. To the first stream after a while without any, containerd sends the events of the last five
// minutes in one burst, so an event may be about a pod that is long gone: nothing may be concluded from it but that a
// look is due.
//
// A runtime that has no events makes Watch return an error while ctx goes on; the caller then relists more often. Such
// a runtime does not know the call, or ends each stream at once without an error. One such end may as well be a runtime
// that is just shutting down, two in a row are not.
func (c *Client) Watch(ctx context.Context, onPod func(uid types.UID), onConnect func()) error {
	wait, empty := minReopen, 0
	for {
		opened := time.Now()
		events, err := c.follow(ctx, onPod, onConnect)
		if errors.Is(err, io.EOF) && !events && time.Since(opened) < atOnce {
			empty++
		} else {
			empty = 0
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case IsUnimplemented(err):
			return err
		case empty == 2:
			return errNoEvents
		}
		if events {
			wait = minReopen
		}
		c.log.Info("the container runtime's event stream ended; opening it again", "err", err, "in", wait)
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-timer.C:
		}
		wait = min(2*wait, maxReopen)
	}
}

// follow reads one stream to its end and tells whether it carried any event. Opening it waits for a connection, which
// gRPC makes with its own back-off.
func (c *Client) follow(ctx context.Context, onPod func(types.UID), onConnect func()) (events bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.runtime.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return false, &Error{Verb: "GetContainerEvents", Err: err}
	}
	onConnect()
	for {
		event, err := stream.Recv()
		if err != nil {
			return events, &Error{Verb: "GetContainerEvents", Err: fmt.Errorf("receive: %w", err)}
		}
		events = true
		if event.ContainerEventType != runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT {
			continue
		}
		if uid := eventPod(event); uid != "" {
			onPod(uid)
		} else {
			onConnect()
		}
	}
}

// eventPod is the pod an event is about, empty where the event does not tell: containerd leaves the sandbox out when
// that is gone already.
func eventPod(e *runtimeapi.ContainerEventResponse) types.UID {
	if uid := e.GetPodSandboxStatus().GetMetadata().GetUid(); uid != "" {
		return types.UID(uid)
	}
	for _, s := range e.GetContainersStatuses() {
		if uid := s.GetLabels()[labelPodUID]; uid != "" {
			return types.UID(uid)
		}
	}
	return ""
}
