package agent

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/cri/logs"
	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/kube/server"
)

// Desk answers what the node's API asks about pods (server.Agent). It reads what the workers have last shown of their pods and
// asks the runtime only for what it is asked to do.
type Desk struct {
	supervisor *Supervisor
	logs       *logs.Dir
	// checkpoints is the directory for checkpoints; empty: none are made.
	checkpoints string
	// checkpointing has one place: a checkpoint is as big as the memory of its container.
	checkpointing chan struct{}
}

// NewDesk makes a desk. logs are those below podLogsDir.
func NewDesk(s *Supervisor, logs *logs.Dir, checkpoints string) *Desk {
	return &Desk{supervisor: s, logs: logs, checkpoints: checkpoints, checkpointing: make(chan struct{}, 1)}
}

// file is what the supervisor and its worker know of one pod.
type file struct {
	pod    *corev1.Pod
	mirror *corev1.Pod
	worker *worker
	// now is what the worker has last shown, or the object itself before its first turn.
	now *shown
	// wanted: a source knows the pod.
	wanted bool
}

var errEnding = errors.New("the agent is ending; ask again when it is back")

// files are all pods, in the order of their names.
func (d *Desk) files(ctx context.Context) ([]file, error) {
	s := d.supervisor
	answer := make(chan []file, 1)
	select {
	case s.asks <- func() { answer <- s.files() }:
	case <-s.gone:
		return nil, errEnding
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	all := <-answer
	slices.SortFunc(all, func(a, b file) int {
		return compareText(a.pod.Namespace, b.pod.Namespace, a.pod.Name, b.pod.Name, string(a.pod.UID), string(b.pod.UID))
	})
	return all, nil
}

// files collects them; it runs in the supervisor's loop.
func (s *Supervisor) files() []file {
	all := make([]file, 0, len(s.workers))
	for uid, e := range s.workers {
		_, wanted := s.set.Pods[uid]
		f := file{pod: e.order.Pod, mirror: e.mirror, worker: e.worker, wanted: wanted}
		f.look()
		all = append(all, f)
	}
	for _, pod := range s.newcomers() {
		all = append(all, file{pod: pod, now: &shown{status: pod.Status}, wanted: true})
	}
	return all
}

// look takes what the worker shows now.
func (f *file) look() {
	f.now = f.worker.shown.Load()
	if f.now.known == nil {
		f.now = &shown{status: f.pod.Status, over: f.now.over}
	}
}

// firstTurn bounds the wait for a worker that has not looked at its pod yet: the agent has only just come.
const firstTurn = 10 * time.Second

// seen waits until the worker has taken its first turn.
func (f *file) seen(ctx context.Context) error {
	if f.worker == nil || f.now.known != nil {
		return nil
	}
	late := time.NewTimer(firstTurn)
	defer late.Stop()
	select {
	case <-f.now.over:
	case <-late.C:
		return fmt.Errorf("the container runtime does not show pod %s/%s yet", f.pod.Namespace, f.pod.Name)
	case <-ctx.Done():
		return ctx.Err()
	}
	f.look()
	return nil
}

func compareText(pairs ...string) int {
	for i := 0; i+1 < len(pairs); i += 2 {
		switch a, b := pairs[i], pairs[i+1]; {
		case a < b:
			return -1
		case a > b:
			return 1
		}
	}
	return 0
}

// find looks a pod up by name, and by UID if one is given: the pod's own, or that of the mirror pod that shows it. Of several
// generations of a name the one that is wanted wins.
func (d *Desk) find(ctx context.Context, c server.Container) (*file, error) {
	all, err := d.files(ctx)
	if err != nil {
		return nil, err
	}
	var found *file
	for i := range all {
		f := &all[i]
		if f.pod.Namespace != c.Namespace || f.pod.Name != c.Pod || !f.has(c.UID) {
			continue
		}
		if found == nil || f.wanted && !found.wanted || f.pod.DeletionTimestamp == nil && found.pod.DeletionTimestamp != nil {
			found = f
		}
	}
	if found == nil {
		return nil, server.NotFound("pod %q does not exist on this node", c.Namespace+"/"+c.Pod)
	}
	return found, found.seen(ctx)
}

func (f *file) has(uid types.UID) bool {
	return uid == "" || f.pod.UID == uid || f.mirror != nil && f.mirror.UID == uid
}

// Pods are the pods that are wanted here, with their newest status.
func (d *Desk) Pods(ctx context.Context) ([]*corev1.Pod, error) {
	files, err := d.files(ctx)
	if err != nil {
		return nil, err
	}
	var all []*corev1.Pod
	for _, f := range files {
		if !f.wanted {
			continue
		}
		pod := *f.pod
		pod.Status = f.now.status
		all = append(all, &pod)
	}
	return all, nil
}

// Running are the pods of which a sandbox or a container runs: names and containers, no more.
func (d *Desk) Running(ctx context.Context) ([]*corev1.Pod, error) {
	files, err := d.files(ctx)
	if err != nil {
		return nil, err
	}
	var all []*corev1.Pod
	for _, f := range files {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: f.pod.Namespace, Name: f.pod.Name, UID: f.pod.UID}}
		if f.now.known == nil {
			continue
		}
		for _, c := range f.now.known.Containers {
			if c.State == runtimeapi.ContainerState_CONTAINER_RUNNING {
				pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: c.GetMetadata().GetName(), Image: c.GetImage().GetImage()})
			}
		}
		if len(pod.Spec.Containers) > 0 || f.sandbox() != "" {
			all = append(all, pod)
		}
	}
	return all, nil
}

// sandbox is the ID of the pod's ready sandbox, empty where it has none.
func (f *file) sandbox() string {
	if f.now.known == nil {
		return ""
	}
	for _, s := range f.now.known.Sandboxes { // the newest first
		if s.State == runtimeapi.PodSandboxState_SANDBOX_READY {
			return s.Id
		}
	}
	return ""
}

// running is the ID of the container c, which must run.
func (d *Desk) running(ctx context.Context, c server.Container) (string, error) {
	f, err := d.find(ctx, c)
	if err != nil {
		return "", err
	}
	if !f.specifies(c.Name) {
		return "", server.NotFound("container not found (%q)", c.Name)
	}
	st := podutil.ContainerStatus(&f.now.status, c.Name)
	if st == nil || st.State.Running == nil {
		return "", fmt.Errorf("container not found (%q): it does not run", c.Name)
	}
	return podutil.RuntimeID(st.ContainerID), nil
}

func (f *file) specifies(container string) bool {
	for _, c := range podutil.Containers(&f.pod.Spec) {
		if c.Name == container {
			return true
		}
	}
	return false
}

// Exec gives the URL at which the runtime serves a command.
func (d *Desk) Exec(ctx context.Context, in server.Container, command []string, o server.StreamOptions) (string, error) {
	id, err := d.running(ctx, in)
	if err != nil {
		return "", err
	}
	return d.supervisor.hands.Runtime.Exec(ctx, &runtimeapi.ExecRequest{ContainerId: id, Cmd: command,
		Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr, Tty: o.TTY})
}

// Attach gives the URL at which the runtime serves the streams of a container.
func (d *Desk) Attach(ctx context.Context, to server.Container, o server.StreamOptions) (string, error) {
	id, err := d.running(ctx, to)
	if err != nil {
		return "", err
	}
	return d.supervisor.hands.Runtime.Attach(ctx, &runtimeapi.AttachRequest{ContainerId: id,
		Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr, Tty: o.TTY})
}

// PortForward gives the URL at which the runtime serves ports of a pod.
func (d *Desk) PortForward(ctx context.Context, to server.Container, ports []int32) (string, error) {
	f, err := d.find(ctx, to)
	if err != nil {
		return "", err
	}
	id := f.sandbox()
	if id == "" {
		return "", fmt.Errorf("pod %s/%s has no sandbox that is ready", to.Namespace, to.Pod)
	}
	return d.supervisor.hands.Runtime.PortForward(ctx, &runtimeapi.PortForwardRequest{PodSandboxId: id, Port: ports})
}

// Run runs a command to its end.
func (d *Desk) Run(ctx context.Context, in server.Container, command []string) ([]byte, error) {
	id, err := d.running(ctx, in)
	if err != nil {
		return nil, err
	}
	out, code, err := d.supervisor.hands.Exec(ctx, id, command, 0)
	if err == nil && code != 0 {
		err = fmt.Errorf("command terminated with exit code %d: %s", code, out)
	}
	return out, err
}

// Checkpoint writes a checkpoint of a container to a file that the kubelet would name so.
func (d *Desk) Checkpoint(ctx context.Context, of server.Container, timeout time.Duration) (string, error) {
	if d.checkpoints == "" {
		return "", server.NotFound("checkpoints are off: the feature gate ContainerCheckpoint is")
	}
	id, err := d.running(ctx, of)
	if err != nil {
		return "", err
	}
	select {
	case d.checkpointing <- struct{}{}:
		defer func() { <-d.checkpointing }()
	default:
		return "", server.Errorf(429, "another checkpoint is being made on this node")
	}
	file := filepath.Join(d.checkpoints, fmt.Sprintf("checkpoint-%s_%s-%s-%s.tar", of.Pod, of.Namespace, of.Name, time.Now().Format(time.RFC3339)))
	if err := makePrivateDir(d.checkpoints); err != nil {
		return "", err
	}
	if err := d.supervisor.hands.Runtime.CheckpointContainer(ctx, id, file, timeout); err != nil {
		return "", fmt.Errorf("checkpointing of %s/%s/%s failed (%w)", of.Namespace, of.Pod, of.Name, err)
	}
	return file, nil
}
