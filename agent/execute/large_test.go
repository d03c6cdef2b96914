package execute

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/agent/spec"
	"github.com/nodelet/nodelet/volumes"
)

// busyRuntime does not create containers before busy is closed. It adds up the environments in its calls.
type busyRuntime struct {
	Runtime
	PodFiles
	Logs
	busy chan struct{}

	mu           sync.Mutex
	inside, most int
}

func (r *busyRuntime) CreateContainer(ctx context.Context, _ string, cfg *runtimeapi.ContainerConfig,
	_ *runtimeapi.PodSandboxConfig) (string, error) {
	size := 0
	for _, e := range cfg.Envs {
		size += len(e.Key) + len(e.Value)
	}
	r.count(size)
	defer r.count(-size)
	select {
	case <-r.busy:
		return "id", nil
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

func (r *busyRuntime) count(by int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.inside += by
	r.most = max(r.most, r.inside)
}

func (*busyRuntime) WriteHosts(types.UID, []byte) error            { return nil }
func (*busyRuntime) TerminationLog(_ types.UID, _, _ string) error { return nil }
func (*busyRuntime) Make(string) error                             { return nil }
func (*busyRuntime) PodEvent(_ *corev1.Pod, _, _, _, _ string)     {}

// largeTask returns a task whose container app is large, and the inputs of it. The caller adds the backends.
func largeTask(t *testing.T) (*Task, *inputs) {
	t.Helper()
	task, x, app := envTask(t, []string{"all"}, []string{"one"})
	app.Env = append(app.Env, corev1.EnvVar{Name: "V", Value: strings.Repeat("v", 100<<10)})
	for range 6 {
		app.Env = append(app.Env, corev1.EnvVar{Name: "V" + strings.Repeat("_", len(app.Env)), Value: "$(V)"})
	}
	task.Pod.Spec.DNSPolicy = corev1.DNSDefault
	task.Pod.Spec.Containers = append(task.Pod.Spec.Containers, make([]corev1.Container, 30)...)
	node := &spec.Node{PodsDir: "/pods", Cgroups: spec.Cgroups{Flat: true}, NodeDNS: spec.NodeDNS{NoResolvConf: true}}
	x.Node = func() *spec.Node { return node }
	x.Cgroups = presentCgroups{}
	return task, x
}

func createApp(ctx context.Context, x *inputs, task *Task) error {
	c := &containers{x.Backends, x, x.sandboxes, x.sandboxes.limiters}
	_, err := c.create(ctx, task, podstate.CreateContainer{Name: "app"})
	return err
}

// TestLargeContainersWaitForEachOther checks that the containers of a pod, which are created side by side, do not take
// more memory than the agent may use, and that no other container waits for them.
func TestLargeContainersWaitForEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runtime := &busyRuntime{busy: make(chan struct{})}
		large, x := largeTask(t)
		x.Runtime, x.PodFiles = runtime, runtime
		x.Logs, x.Events = runtime, runtime
		small, _, _ := envTask(t, []string{"all"}, []string{"one"})
		small.Pod.Spec.DNSPolicy = corev1.DNSDefault
		var all sync.WaitGroup
		for range 30 {
			all.Go(func() {
				if err := createApp(t.Context(), x, large); err != nil {
					t.Error(err)
				}
			})
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		before := runtime.inside
		if runtime.most > 4<<20 || before < 700<<10 {
			t.Errorf("got %d KiB of environments in calls, want 700 to 4096", runtime.most>>10)
		}
		all.Go(func() {
			if err := createApp(t.Context(), x, small); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		if runtime.inside == before {
			t.Error("a small container waits for large ones")
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := createApp(ctx, x, large); err != context.Canceled {
			t.Errorf("got %v for a creation that is given up while it waits, want %v", err, context.Canceled)
		}
		close(runtime.busy)
		all.Wait()
	})
}

// hungRuntime does not answer for the pod hung before the end of ctx, as when its mounts are on a share that is down.
type hungRuntime struct{ *busyRuntime }

func (r hungRuntime) CreateContainer(ctx context.Context, sandbox string, cfg *runtimeapi.ContainerConfig,
	pod *runtimeapi.PodSandboxConfig) (string, error) {
	if strings.HasPrefix(pod.Metadata.Uid, "hung") {
		<-ctx.Done()
		return "", ctx.Err()
	}
	return r.busyRuntime.CreateContainer(ctx, sandbox, cfg, pod)
}

// TestLargeContainersWaitForNoOtherPod checks that large containers that the runtime does not answer for do not keep
// those of other pods from being created.
func TestLargeContainersWaitForNoOtherPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runtime := &busyRuntime{busy: make(chan struct{})}
		close(runtime.busy)
		large, x := largeTask(t)
		x.Runtime, x.PodFiles = hungRuntime{runtime}, runtime
		x.Logs, x.Events = runtime, runtime
		of := func(pod string) *Task {
			task := *large
			task.Pod = large.Pod.DeepCopy()
			task.Pod.UID = types.UID(pod)
			return &task
		}
		hung, giveUp := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for i := range 2 * largeAtOnce {
			for range largeAtOnce {
				all.Go(func() {
					if err := createApp(hung, x, of(fmt.Sprint("hung", i))); err != context.Canceled {
						t.Errorf("got %v for a pod that hangs, want %v", err, context.Canceled)
					}
				})
			}
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if err := createApp(ctx, x, of("healthy")); err != nil {
			t.Errorf("got %v for a healthy pod, want no error", err)
		}
		giveUp()
		all.Wait()
	})
}

// silentVolumes do not answer for the sub-path silent before the end of ctx.
type silentVolumes struct{ *busyRuntime }

func (silentVolumes) Subpath(ctx context.Context, s volumes.SubPath) (string, error) {
	if s.Path == "silent" {
		<-ctx.Done()
		return "", ctx.Err()
	}
	return "/part", nil
}

// TestLargeContainersWaitForNoVolume checks that large containers whose network volume does not answer do not keep
// others from being created.
func TestLargeContainersWaitForNoVolume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runtime := &busyRuntime{busy: make(chan struct{})}
		close(runtime.busy)
		large, x := largeTask(t)
		x.Runtime, x.PodFiles = runtime, silentVolumes{runtime}
		x.Logs, x.Events = runtime, runtime
		withPart := func(path string) *Task {
			task := *large
			task.Pod = large.Pod.DeepCopy()
			task.Pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data", SubPath: path}}
			return &task
		}
		silent, giveUp := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for range 2 * largeAtOnce {
			all.Go(func() {
				if err := createApp(silent, x, withPart("silent")); err != context.Canceled {
					t.Errorf("got %v for a volume that does not answer, want %v", err, context.Canceled)
				}
			})
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := createApp(ctx, x, withPart("part")); err != nil {
			t.Errorf("got %v for a volume that answers, want no error", err)
		}
		giveUp()
		all.Wait()
	})
}
