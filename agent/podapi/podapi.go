package podapi

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/agent"
	"github.com/nodelet/nodelet/config"
	"github.com/nodelet/nodelet/cri"
	"github.com/nodelet/nodelet/cri/logs"
	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/kube/server"
)

const (
	// syncTimeout bounds the wait for the first sync of a pod after the start of the agent.
	syncTimeout = 10 * time.Second
	// urlTime is how long the runtime keeps the URL of a stream that is not used.
	urlTime = time.Minute
)

// Pods returns all pods of the node; *agent.Supervisor is one.
type Pods interface {
	PodViews(ctx context.Context) ([]agent.PodView, error)
}

// Runtime is what the server needs of the container runtime; *cri.Client is one. The first three methods return the URL
// at which the runtime serves a stream.
type Runtime interface {
	Exec(ctx context.Context, req *runtimeapi.ExecRequest) (url string, err error)
	Attach(ctx context.Context, req *runtimeapi.AttachRequest) (url string, err error)
	PortForward(ctx context.Context, req *runtimeapi.PortForwardRequest) (url string, err error)
	ExecSync(ctx context.Context, id string, cmd []string, timeout time.Duration) (cri.ExecResult, error)
	CheckpointContainer(ctx context.Context, id, location string, timeout time.Duration) error
}

// Config is what a Server needs. Checkpoints may be empty.
type Config struct {
	Pods    Pods
	Runtime Runtime
	// Logs is the directory of the containers' logs.
	Logs *logs.Dir
	// Checkpoints is the directory for checkpoints; empty: checkpoints are off.
	Checkpoints string
	// Allocated turns the list of allocated pods on.
	Allocated bool
}

// Settings returns what a Server needs of the configuration. The caller adds the rest.
func Settings(c *config.Config) Config {
	out := Config{Allocated: c.Gate("KubeletAllocatedPodsEndpoint")}
	if c.Gate("ContainerCheckpoint") {
		out.Checkpoints = filepath.Join(c.Paths.Root, "checkpoints")
	}
	return out
}

// Server answers requests about pods. It implements server.Agent. Create it with New.
type Server struct {
	cfg Config
	// checkpoint is held while a checkpoint is made: it is as big as the memory of its container.
	checkpoint chan struct{}
}

var _ server.Agent = (*Server)(nil)

// New returns a Server.
func New(c Config) *Server { return &Server{cfg: c, checkpoint: make(chan struct{}, 1)} }

// list returns what of makes of each pod, except nil. Without pods the list is empty, in JSON as well, and not null.
func (s *Server) list(ctx context.Context, of func(v agent.PodView) *corev1.Pod) ([]*corev1.Pod, error) {
	views, err := s.cfg.Pods.PodViews(ctx)
	all := make([]*corev1.Pod, 0, len(views))
	for _, v := range views {
		if pod := of(v); pod != nil {
			all = append(all, pod)
		}
	}
	return all, err
}

// Pods returns the pods that a source has, with their newest status.
func (s *Server) Pods(ctx context.Context) ([]*corev1.Pod, error) { return s.list(ctx, current) }

// current returns a pod with its newest status; nil if no source has it.
func current(v agent.PodView) *corev1.Pod {
	if !v.Desired {
		return nil
	}
	pod := *v.Source
	pod.Status = v.Status
	return &pod
}

// Allocated returns the pods that are admitted and have not ended, with the resources that they have.
func (s *Server) Allocated(ctx context.Context) ([]*corev1.Pod, error) {
	if !s.cfg.Allocated {
		return nil, server.NotFound("404: Page Not Found")
	}
	return s.list(ctx, func(v agent.PodView) *corev1.Pod {
		if !v.Desired || !v.Admitted() || podutil.IsTerminal(v.Status.Phase) {
			return nil
		}
		return v.Pod
	})
}

// LocalPods is Pods for the local pods API (KEP-4188): a pod that this process has not looked at yet has a phase and is
// not Ready, whatever the API server says.
func (s *Server) LocalPods(ctx context.Context) ([]*corev1.Pod, error) {
	return s.list(ctx, func(v agent.PodView) *corev1.Pod {
		pod := current(v)
		if pod != nil && v.Runtime == nil {
			pod.Status = unseen(&v.Status)
		}
		return pod
	})
}

// unseen returns the status of a pod that this process has not looked at yet.
func unseen(known *corev1.PodStatus) corev1.PodStatus {
	st := *known.DeepCopy()
	st.Phase = cmp.Or(st.Phase, corev1.PodPending)
	for i := range st.Conditions {
		if c := &st.Conditions[i]; c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			c.Status = corev1.ConditionFalse
			c.Reason, c.Message = "ContainersNotReady", "nodelet is starting"
		}
	}
	return st
}

// Running returns the pods of which a sandbox or a container runs: names and containers only.
func (s *Server) Running(ctx context.Context) ([]*corev1.Pod, error) {
	return s.list(ctx, func(v agent.PodView) *corev1.Pod {
		meta := metav1.ObjectMeta{Namespace: v.Pod.Namespace, Name: v.Pod.Name, UID: v.Pod.UID}
		pod := &corev1.Pod{ObjectMeta: meta}
		for _, c := range v.Running() {
			pod.Spec.Containers = append(pod.Spec.Containers,
				corev1.Container{Name: c.GetMetadata().GetName(), Image: c.GetImage().GetImage()})
		}
		if len(pod.Spec.Containers) == 0 && v.ReadySandbox() == "" {
			return nil
		}
		return pod
	})
}

// find returns the pod with the name, and the UID if one is given: the pod's own, or that of its mirror pod. If several
// pods have the name, one that a source has is preferred to one that is being removed.
func (s *Server) find(ctx context.Context, c server.Container) (agent.PodView, error) {
	views, err := s.cfg.Pods.PodViews(ctx)
	if err != nil {
		return agent.PodView{}, err
	}
	var found agent.PodView
	for _, v := range views {
		if v.Pod.Namespace != c.Namespace || v.Pod.Name != c.Pod || !hasUID(v, c.UID) {
			continue
		}
		if found.Pod == nil || standing(v) > standing(found) {
			found = v
		}
	}
	if found.Pod == nil {
		return found, server.NotFound("pod %q does not exist on this node", c.Namespace+"/"+c.Pod)
	}
	return synced(ctx, found)
}

// standing is higher for a pod that a source has, and highest if that pod is not being deleted.
func standing(v agent.PodView) int {
	switch {
	case !v.Desired:
		return 0
	case v.Pod.DeletionTimestamp != nil:
		return 1
	}
	return 2
}

// hasUID reports whether uid is empty, or that of the pod or its mirror pod.
func hasUID(v agent.PodView, uid types.UID) bool {
	return uid == "" || v.Pod.UID == uid || v.Mirror != nil && v.Mirror.UID == uid
}

// synced waits for the first sync of a pod and returns what is known then.
func synced(ctx context.Context, v agent.PodView) (agent.PodView, error) {
	v, changed := v.Latest()
	if v.Runtime != nil || changed == nil {
		return v, nil
	}
	timeout := time.NewTimer(syncTimeout)
	defer timeout.Stop()
	select {
	case <-changed:
	case <-timeout.C:
		return v, fmt.Errorf("the container runtime does not show pod %s/%s yet", v.Pod.Namespace, v.Pod.Name)
	case <-ctx.Done():
		return v, ctx.Err()
	}
	v, _ = v.Latest()
	return v, nil
}

// running returns the ID of container c, which must be running, and its spec. Its status may say Waiting: its postStart
// hook runs.
func (s *Server) running(ctx context.Context, c server.Container) (id string, spec *corev1.Container, err error) {
	v, err := s.find(ctx, c)
	if err != nil {
		return "", nil, err
	}
	if _, spec = podutil.Container(&v.Pod.Spec, c.Name); spec == nil {
		return "", nil, server.NotFound("container not found (%q)", c.Name)
	}
	if id = runningID(v, c.Name); id != "" {
		return id, spec, nil
	}
	return "", nil, fmt.Errorf("container not found (%q): it is not running", c.Name)
}

// runningID returns the ID of the running instance of a container, "" if there is none.
func runningID(v agent.PodView, name string) string {
	for _, c := range v.Running() { // the newest first
		if c.GetMetadata().GetName() == name {
			return c.Id
		}
	}
	return ""
}

// Exec returns the URL at which the runtime serves a command.
func (s *Server) Exec(
	ctx context.Context, in server.Container, command []string, o server.StreamOptions,
) (string, error) {
	id, _, err := s.running(ctx, in)
	if err != nil {
		return "", err
	}
	return withStatus(s.cfg.Runtime.Exec(ctx, &runtimeapi.ExecRequest{
		ContainerId: id,
		Cmd:         command,
		Stdin:       o.Stdin,
		Stdout:      o.Stdout,
		Stderr:      o.Stderr,
		Tty:         o.TTY,
	}))
}

// withStatus gives an error of the runtime the HTTP status that it has in the kubelet.
func withStatus(url string, err error) (string, error) {
	switch {
	case cri.IsNotFound(err):
		err = server.NotFound("%v", err)
	case cri.IsExhausted(err): // too many URLs are not used yet
		err = &server.Error{Code: http.StatusTooManyRequests, Text: err.Error(), RetryAfter: urlTime}
	}
	return url, err
}

// Attach returns the URL at which the runtime serves the streams of a container. Whether they are a terminal is a
// property of the running container, whatever o says; a terminal has no separate standard error.
func (s *Server) Attach(ctx context.Context, to server.Container, o server.StreamOptions) (string, error) {
	id, spec, err := s.running(ctx, to)
	if err != nil {
		return "", err
	}
	return withStatus(s.cfg.Runtime.Attach(ctx, &runtimeapi.AttachRequest{
		ContainerId: id,
		Stdin:       o.Stdin,
		Stdout:      o.Stdout,
		Stderr:      o.Stderr && !spec.TTY,
		Tty:         spec.TTY,
	}))
}

// PortForward returns the URL at which the runtime serves ports of a pod.
func (s *Server) PortForward(ctx context.Context, to server.Container, ports []int32) (string, error) {
	v, err := s.find(ctx, to)
	if err != nil {
		return "", err
	}
	id := v.ReadySandbox()
	if id == "" {
		return "", fmt.Errorf("pod %s/%s has no ready sandbox", to.Namespace, to.Pod)
	}
	return withStatus(s.cfg.Runtime.PortForward(ctx, &runtimeapi.PortForwardRequest{PodSandboxId: id, Port: ports}))
}

// Run runs a command until it ends and returns its output.
func (s *Server) Run(ctx context.Context, in server.Container, command []string) ([]byte, error) {
	id, _, err := s.running(ctx, in)
	if err != nil {
		return nil, err
	}
	r, err := s.cfg.Runtime.ExecSync(ctx, id, command, 0)
	out := append(r.Stdout, r.Stderr...)
	if err == nil && r.ExitCode != 0 {
		err = fmt.Errorf("command terminated with exit code %d: %s", r.ExitCode, out)
	}
	return out, err
}

// Checkpoint writes a checkpoint of a container to a file with the name that the kubelet would give it.
func (s *Server) Checkpoint(ctx context.Context, of server.Container, timeout time.Duration) (string, error) {
	if s.cfg.Checkpoints == "" {
		return "", server.NotFound("checkpoints are off: turn on the feature gate ContainerCheckpoint")
	}
	id, _, err := s.running(ctx, of)
	if err != nil {
		return "", err
	}
	select {
	case s.checkpoint <- struct{}{}:
		defer func() { <-s.checkpoint }()
	default:
		return "", server.Errorf(http.StatusTooManyRequests, "another checkpoint is being made on this node")
	}
	if err := os.MkdirAll(s.cfg.Checkpoints, 0o700); err != nil {
		return "", fmt.Errorf("make the directory for checkpoints: %w", err)
	}
	name := fmt.Sprintf("checkpoint-%s_%s-%s-%s.tar", of.Pod, of.Namespace, of.Name, time.Now().Format(time.RFC3339))
	file := filepath.Join(s.cfg.Checkpoints, name)
	if err := s.cfg.Runtime.CheckpointContainer(ctx, id, file, timeout); err != nil {
		return "", fmt.Errorf("checkpointing of %s/%s/%s failed (%w)", of.Namespace, of.Pod, of.Name, err)
	}
	return file, nil
}
