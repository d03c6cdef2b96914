package podsapi

import (
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/flowcontrol"
	api "k8s.io/kubelet/pkg/apis/pods/v1alpha1"

	"github.com/nodelet/nodelet/internal/latest"
	"github.com/nodelet/nodelet/internal/listener"
)

const (
	dirName    = "pods-api"
	socketName = "pods-api.sock"
	dirMode    = 0o750
	// qps and burst bound the calls of all clients together.
	qps, burst = 100, 10
	// maxStreams bounds the calls that one client has open.
	maxStreams = 100
	// maxChanged bounds the pods that a watch has to look at. No node has as many at a time.
	maxChanged = 10_000
)

// socketPath returns where the socket is below the agent's root directory.
func socketPath(root string) string { return filepath.Join(root, dirName, socketName) }

// Config says where the socket is and where pods come from.
type Config struct {
	// Root is the agent's root directory, absolute.
	Root string
	// Pods returns the pods that the sources have, with their newest status. Their order does not matter.
	Pods func(ctx context.Context) ([]*corev1.Pod, error)
	// Asked is called after each call, with the API's version, such as v1alpha1, the name of the call, and that of the
	// gRPC code of its answer.
	Asked func(version, call, code string)
	Log   *slog.Logger
}

// Server answers clients. Create it with New. It is safe for concurrent use.
type Server struct {
	api.UnimplementedPodsServer
	cfg     Config
	limiter flowcontrol.RateLimiter

	synced atomic.Bool // every source has delivered its pods

	mu      sync.Mutex
	watches map[*watch]struct{}
}

// New returns a Server that listens when Run is called.
func New(c Config) *Server {
	return &Server{
		cfg:     c,
		limiter: flowcontrol.NewTokenBucketRateLimiter(qps, burst),
		watches: map[*watch]struct{}{},
	}
}

// Run serves the socket until ctx ends. If it fails, it is opened again.
func (s *Server) Run(ctx context.Context) {
	server := grpc.NewServer(append(s.counting(), grpc.MaxConcurrentStreams(maxStreams))...)
	api.RegisterPodsServer(server, s)
	stop := context.AfterFunc(ctx, server.Stop)
	defer stop()
	listener.Serve(ctx, func() (net.Listener, error) { return listener.Unix(socketPath(s.cfg.Root), dirMode, 0) },
		server.Serve, func(err error, retryIn time.Duration) {
			s.cfg.Log.Error("cannot serve the local pods API, remove what is in the place of its socket",
				"err", err, "retryIn", retryIn)
		})
}

// Changed tells the watches that a pod is new, has another spec or status, or is gone. It never blocks.
func (s *Server) Changed(pod types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.watches {
		if len(w.changed) < maxChanged {
			w.changed[pod] = struct{}{}
		}
		w.wake.Set()
	}
}

// Synced says that every source has delivered its pods. Calls before it fail.
func (s *Server) Synced() { s.synced.Store(true) }

// ListPods returns all pods of the node.
func (s *Server) ListPods(ctx context.Context, _ *api.ListPodsRequest) (*api.ListPodsResponse, error) {
	if err := s.allow(); err != nil {
		return nil, err
	}
	pods, err := s.pods(ctx)
	if err != nil {
		return nil, err
	}
	out := &api.ListPodsResponse{}
	for _, pod := range pods {
		text, err := encode(pod)
		if err != nil {
			return nil, err
		}
		out.Pods = append(out.Pods, text)
	}
	return out, nil
}

// GetPod returns the pod with a UID.
func (s *Server) GetPod(ctx context.Context, r *api.GetPodRequest) (*api.GetPodResponse, error) {
	if err := s.allow(); err != nil {
		return nil, err
	}
	pods, err := s.pods(ctx)
	if err != nil {
		return nil, err
	}
	for _, pod := range pods {
		if string(pod.UID) == r.GetPodUID() {
			text, err := encode(pod)
			return &api.GetPodResponse{Pod: text}, err
		}
	}
	return nil, status.Errorf(codes.NotFound, "pod with UID %s not found", r.GetPodUID())
}

// allow returns an error if there are too many calls.
func (s *Server) allow() error {
	if !s.limiter.TryAccept() {
		return status.Error(codes.ResourceExhausted, "rejected by rate limit") // the text of the kubelet
	}
	return nil
}

// pods returns the pods, or an error before every source has delivered: a list would lack pods.
func (s *Server) pods(ctx context.Context) ([]*corev1.Pod, error) {
	if !s.synced.Load() {
		return nil, status.Error(codes.FailedPrecondition, "nodelet is starting: not every source of pods has answered yet")
	}
	pods, err := s.cfg.Pods(ctx)
	if err != nil {
		return nil, status.FromContextError(err).Err()
	}
	return pods, nil
}

func encode(pod *corev1.Pod) ([]byte, error) {
	text, err := pod.Marshal()
	if err != nil {
		return nil, status.Errorf(codes.Internal, "encode pod %s/%s: %v", pod.Namespace, pod.Name, err)
	}
	return text, nil
}

// watch is one call of WatchPods. changed are the pods to look at; it is guarded by Server.mu.
type watch struct {
	wake    latest.Signal
	changed map[types.UID]struct{}
}

// begin registers a watch. The caller calls end when the call has ended.
func (s *Server) begin() (w *watch, end func()) {
	w = &watch{wake: latest.NewSignal(), changed: map[types.UID]struct{}{}}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watches[w] = struct{}{}
	return w, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.watches, w)
	}
}

// take returns the pods that have changed since the last call. It is an error if there may be more: the client has not
// read for too long.
func (s *Server) take(w *watch) (map[types.UID]struct{}, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := w.changed
	if len(changed) == maxChanged {
		return nil, status.Errorf(codes.ResourceExhausted, "the client did not read while %d pods changed: watch again",
			maxChanged)
	}
	w.changed = map[types.UID]struct{}{}
	return changed, nil
}
