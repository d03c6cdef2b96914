package fake

import (
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	pb "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// subscriber is one open event stream.
type subscriber struct {
	events chan *pb.ContainerEventResponse
	// cut ends the stream with a broken connection.
	cut chan struct{}
}

// GetContainerEvents streams the events from now on. Events without a subscriber are lost.
func (r *Runtime) GetContainerEvents(_ *pb.GetEventsRequest, stream pb.RuntimeService_GetContainerEventsServer) error {
	s := &subscriber{events: make(chan *pb.ContainerEventResponse, 1000), cut: make(chan struct{})}
	r.mu.Lock()
	if r.NoEvents {
		r.mu.Unlock()
		return status.Error(codes.Unimplemented, "method GetContainerEvents not implemented")
	}
	if r.EmptyEvents {
		r.mu.Unlock()
		return nil
	}
	if !r.OtherReader {
		r.subscribers[s] = struct{}{}
	}
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.subscribers, s)
	}()
	for {
		select {
		case e := <-s.events:
			if err := stream.Send(e); err != nil {
				return err
			}
		case <-s.cut:
			return status.Error(codes.Unavailable, "error reading from server: EOF")
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

// CutStreams breaks all event streams; events until they are opened again are lost.
func (r *state) CutStreams() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for s := range r.subscribers {
		close(s.cut)
		delete(r.subscribers, s)
	}
}

// Subscribers is how many event streams are open.
func (r *state) Subscribers() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.subscribers)
}

// publish sends an event about a container or sandbox to the subscribers. For a sandbox, both IDs are its own. r.mu is
// held.
func (r *state) publish(id, sandboxID string, kind pb.ContainerEventType) {
	if len(r.subscribers) == 0 {
		return
	}
	e := &pb.ContainerEventResponse{ContainerId: id, ContainerEventType: kind, CreatedAt: time.Now().UnixNano()}
	if s := r.sandboxes[sandboxID]; s != nil {
		e.PodSandboxStatus = proto.CloneOf(s.status)
	}
	for _, c := range r.containers {
		if c.sandboxID == sandboxID {
			e.ContainersStatuses = append(e.ContainersStatuses, proto.CloneOf(c.status))
		}
	}
	for s := range r.subscribers {
		select {
		case s.events <- e:
		default: // a reader that lags by a thousand events loses some
		}
	}
}
