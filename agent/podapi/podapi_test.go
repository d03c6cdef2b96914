package podapi

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/agent"
	"github.com/nodelet/nodelet/cri"
	"github.com/nodelet/nodelet/kube/server"
)

type views []agent.PodView

func (v views) PodViews(context.Context) ([]agent.PodView, error) { return v, nil }

// TestPodOfSource checks which of several pods of one name is meant: one that a source has, even if it is being deleted
// and an older one, whose object was deleted by force, still runs.
func TestPodOfSource(t *testing.T) {
	view := func(uid types.UID, desired, deleted bool) agent.PodView {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-0", UID: uid}}
		if deleted {
			pod.DeletionTimestamp = &metav1.Time{}
		}
		return agent.PodView{Pod: pod, Desired: desired}
	}
	for name, all := range map[string]views{
		"forced deletion, new pod deleted": {view("want", true, true), view("old", false, false)},
		"the same, in the other order":     {view("old", false, false), view("want", true, true)},
		"deletion, new pod":                {view("old", true, true), view("want", true, false)},
		"only an old one":                  {view("want", false, true)},
	} {
		got, err := New(Config{Pods: all}).find(t.Context(), server.Container{Namespace: "default", Pod: "web-0"})
		if err != nil || got.Pod.UID != "want" {
			t.Errorf("%s: got pod %q, %v, want the other one", name, got.Pod.UID, err)
		}
	}
}

// TestNoPods checks that a list without pods is one in JSON, too: scripts read that of `nodelet pods -o json`.
func TestNoPods(t *testing.T) {
	all, err := New(Config{Pods: views{}}).Pods(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got, err := json.Marshal(all); string(got) != "[]" {
		t.Errorf("got %s, %v, want []", got, err)
	}
}

// calls records for which container the runtime was called.
type calls struct {
	Runtime
	of []string
}

func (c *calls) Exec(_ context.Context, req *runtimeapi.ExecRequest) (string, error) {
	c.of = append(c.of, req.ContainerId)
	return "", nil
}

func (c *calls) Attach(_ context.Context, req *runtimeapi.AttachRequest) (string, error) {
	c.of = append(c.of, req.ContainerId)
	return "", nil
}

func (c *calls) ExecSync(_ context.Context, id string, _ []string, _ time.Duration) (cri.ExecResult, error) {
	c.of = append(c.of, id)
	return cri.ExecResult{}, nil
}

func (c *calls) CheckpointContainer(_ context.Context, id, _ string, _ time.Duration) error {
	c.of = append(c.of, id)
	return nil
}

// TestPostStartHook checks that a container is reached while its postStart hook runs, and its status says Waiting. An
// instance that has ended is not.
func TestPostStartHook(t *testing.T) {
	instance := func(id string, state runtimeapi.ContainerState) cri.Container {
		return cri.Container{ContainerStatus: &runtimeapi.ContainerStatus{
			Id:       id,
			Metadata: &runtimeapi.ContainerMetadata{Name: id[:3]},
			State:    state,
		}}
	}
	all := views{{
		Pod: &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app"}, {Name: "old"}}},
		},
		Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{
			{Name: "app", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}}},
		}},
		Runtime: &cri.Snapshot{Containers: []cri.Container{
			instance("old", runtimeapi.ContainerState_CONTAINER_EXITED),
			instance("app1", runtimeapi.ContainerState_CONTAINER_RUNNING),
			instance("app0", runtimeapi.ContainerState_CONTAINER_EXITED),
		}},
	}}
	runtime := &calls{}
	s := New(Config{Pods: all, Runtime: runtime, Checkpoints: t.TempDir()})
	app := server.Container{Namespace: "default", Pod: "web", Name: "app"}
	_, execErr := s.Exec(t.Context(), app, nil, server.StreamOptions{})
	_, attachErr := s.Attach(t.Context(), app, server.StreamOptions{})
	_, runErr := s.Run(t.Context(), app, nil)
	_, checkpointErr := s.Checkpoint(t.Context(), app, time.Minute)
	err := errors.Join(execErr, attachErr, runErr, checkpointErr)
	if err != nil || !slices.Equal(runtime.of, []string{"app1", "app1", "app1", "app1"}) {
		t.Errorf("got %v, calls for %q, want four calls for app1", err, runtime.of)
	}
	app.Name = "old"
	if _, err := s.Exec(t.Context(), app, nil, server.StreamOptions{}); err == nil {
		t.Error("a command ran in a container that has ended")
	}
}

// attached records how the runtime was asked to attach.
type attached struct {
	Runtime
	req *runtimeapi.AttachRequest
}

func (a *attached) Attach(_ context.Context, req *runtimeapi.AttachRequest) (string, error) {
	a.req = req
	return "", nil
}

// TestAttachTerminal checks that the container's spec says whether its streams are a terminal, not the client.
func TestAttachTerminal(t *testing.T) {
	for _, tty := range []bool{true, false} {
		runtime := &attached{}
		s := New(Config{Runtime: runtime, Pods: views{{
			Pod: &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app", TTY: tty}}},
			},
			Runtime: &cri.Snapshot{Containers: []cri.Container{{ContainerStatus: &runtimeapi.ContainerStatus{
				Id:       "app0",
				Metadata: &runtimeapi.ContainerMetadata{Name: "app"},
				State:    runtimeapi.ContainerState_CONTAINER_RUNNING,
			}}}},
		}}})
		_, err := s.Attach(t.Context(), server.Container{Namespace: "default", Pod: "web", Name: "app"},
			server.StreamOptions{Stdin: true, Stdout: true, Stderr: true, TTY: !tty})
		if r := runtime.req; err != nil || r.Tty != tty || r.Stderr == tty || !r.Stdin || !r.Stdout {
			t.Errorf("container with terminal %v: got request %v, %v", tty, r, err)
		}
	}
}

// TestSilentAgent checks that the commands do not wait for ever for an agent that hangs: they say so.
func TestSilentAgent(t *testing.T) {
	root := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(root, localSocket)) // the kernel accepts connections, and nobody answers
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	c := NewClient(root)
	c.limit = time.Millisecond
	_, err = c.Node(t.Context())
	if err == nil || !strings.HasSuffix(err.Error(), ": no answer within 1ms: see journalctl -u nodelet -u kubelet") {
		t.Errorf("got %v, want that the agent does not answer", err)
	}
}

// TestAgentDoesNotAnswer checks that the error says what to do, also to a user who may not connect.
func TestAgentDoesNotAnswer(t *testing.T) {
	c := NewClient(t.TempDir())
	for cause, want := range map[error]string{
		unix.EACCES: "run this command as root", unix.ECONNREFUSED: "does the agent run", unix.ENOENT: "--root-dir",
	} {
		c.http.Transport = &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
			return nil, os.NewSyscallError("connect", cause)
		}}
		if _, err := c.Node(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: got %v, want the advice %q", cause, err, want)
		}
	}
}
