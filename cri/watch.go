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

	"github.com/nodelet/nodelet/internal/backoff"
)

const (
	// The back-off of the stream; a restart of the runtime takes some seconds.
	minReopen = 100 * time.Millisecond
	maxReopen = 10 * time.Second
	// atOnce is the time within which a stream ends if the runtime never sends events.
	atOnce = time.Second
)

// errNoEvents is the error for a runtime that accepts the call but sends no events.
var errNoEvents = errors.New("GetContainerEvents: the container runtime ends each stream at once; " +
	"CRI-O does so unless its configuration has enable_pod_events = true in [crio.runtime]")

// errOneReader is the error for a runtime whose events go to one reader only; see oneReader.
var errOneReader = errors.New("GetContainerEvents: containerd has events for more than one reader since version 2.0")

// Watch follows the runtime's container events until ctx ends and then returns its error. An event is only a hint that
// an instance may be in another state: onEnd receives the UID of its pod and the instance, for the next Update of the
// pod's snapshot. Only the end of a container or sandbox is such a hint. That one was created, started or removed is
// also the answer to the caller's own call, and to ask twice for one change would delay the next step.
//
// onConnect is called whenever hints may have been missed, so that the caller relists: for each new stream, and for
// events that name no pod. The runtime does not confirm a subscription, so that an event in this moment may still be
// lost: a slow relist remains necessary.
//
// Both are called from one goroutine and must return at once: containerd delays starts and exits of containers for a
// slow reader. In the first stream after a while without one, containerd sends the events of the last five minutes at
// once, so an event may be about a pod that is long gone. Conclude nothing from an event but that an update is due.
//
// If the runtime has no events, Watch returns an error before ctx ends; the caller then relists more often. Such a
// runtime does not support the call, gives each event to one reader only, or ends each stream at once without an error.
// One such end may also be a runtime that is shutting down, two in a row are not.
func (c *Client) Watch(ctx context.Context, onEnd func(types.UID, Instance), onConnect func()) error {
	wait, empty := minReopen, 0
	for {
		opened := time.Now()
		events, err := c.follow(ctx, onEnd, onConnect)
		if errors.Is(err, io.EOF) && !events && time.Since(opened) < atOnce {
			empty++
		} else {
			empty = 0
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case IsUnimplemented(err), errors.Is(err, errOneReader):
			return err
		case empty == 2:
			return errNoEvents
		}
		if events {
			wait = minReopen
		}
		c.log.Info("the container runtime's event stream ended; opening it again", "err", err, "in", wait)
		if !backoff.Sleep(ctx, wait) {
			return ctx.Err()
		}
		wait = min(2*wait, maxReopen)
	}
}

// follow reads one stream to its end and reports whether it had any event. Before that it waits for a connection, which
// gRPC makes with its own back-off. It opens no stream that would take the events of others: a reader that has gone
// still takes one.
func (c *Client) follow(
	ctx context.Context, onEnd func(types.UID, Instance), onConnect func(),
) (events bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	v, err := c.runtime.Version(ctx, &runtimeapi.VersionRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return false, &Error{Verb: "Version", Err: err}
	}
	if oneReader(v.RuntimeName, v.RuntimeVersion) {
		return false, errOneReader
	}
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
		sandbox := event.GetPodSandboxStatus()
		uid, ended := types.UID(sandbox.GetMetadata().GetUid()), Instance{Sandbox: sandbox.GetId()}
		if event.ContainerId != ended.Sandbox {
			ended.Container = event.ContainerId
		}
		if uid != "" {
			onEnd(uid, ended)
		} else {
			onConnect() // containerd leaves the sandbox out when that is gone already
		}
	}
}
