package podsapi

import (
	"crypto/sha256"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	api "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
)

// sent is what a client knows of a pod.
type sent struct {
	namespace, name string
	sum             [sha256.Size]byte
}

// stream sends events to one client and remembers what the client knows.
type stream struct {
	grpc.ServerStreamingServer[api.WatchPodsEvent]
	known map[types.UID]sent
}

// WatchPods sends all pods, a mark that these were all, and then each change. A slow client gets the newest state of a
// pod, not each state between. If maxChanged pods have changed before a client reads again, its watch ends.
func (s *Server) WatchPods(_ *api.WatchPodsRequest, to grpc.ServerStreamingServer[api.WatchPodsEvent]) error {
	if err := s.allow(); err != nil {
		return err
	}
	ctx := to.Context()
	w, end := s.begin()
	defer end()
	out := &stream{ServerStreamingServer: to, known: map[types.UID]sent{}}
	pods, err := s.pods(ctx)
	if err != nil {
		return err
	}
	for _, pod := range pods {
		if err := out.update(pod); err != nil {
			return err
		}
	}
	if err := out.Send(&api.WatchPodsEvent{Type: api.EventType_INITIAL_SYNC_COMPLETE}); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.wake:
		}
		changed, err := s.take(w)
		if err != nil {
			return err
		}
		pods, err := s.pods(ctx)
		if err != nil {
			return err
		}
		if err := out.sync(pods, changed); err != nil {
			return err
		}
	}
}

// sync sends what is new about the changed pods.
func (o *stream) sync(pods []*corev1.Pod, changed map[types.UID]struct{}) error {
	for _, pod := range pods {
		if _, ok := changed[pod.UID]; !ok {
			continue
		}
		delete(changed, pod.UID)
		if err := o.update(pod); err != nil {
			return err
		}
	}
	for uid := range changed { // they are gone
		if err := o.remove(uid); err != nil {
			return err
		}
	}
	return nil
}

// update sends a pod unless the client has it already.
func (o *stream) update(pod *corev1.Pod) error {
	text, err := encode(pod)
	if err != nil {
		return err
	}
	now := sent{namespace: pod.Namespace, name: pod.Name, sum: sha256.Sum256(text)}
	before, known := o.known[pod.UID]
	if known && before == now {
		return nil
	}
	o.known[pod.UID] = now
	kind := api.EventType_ADDED
	if known {
		kind = api.EventType_MODIFIED
	}
	return o.Send(&api.WatchPodsEvent{Type: kind, Pod: text})
}

// remove sends that a pod is gone, if the client knows it.
func (o *stream) remove(uid types.UID) error {
	was, known := o.known[uid]
	if !known {
		return nil
	}
	delete(o.known, uid)
	text, err := encode(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: was.namespace, Name: was.name, UID: uid}})
	if err != nil {
		return err
	}
	return o.Send(&api.WatchPodsEvent{Type: api.EventType_DELETED, Pod: text})
}
