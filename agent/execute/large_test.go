package execute

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/agent/spec"
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

// TestLargeContainersWaitForEachOther checks that the containers of a pod, which are created side by side, do not take
// more memory than the agent may use, and that no other container waits for them.
func TestLargeContainersWaitForEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runtime := &busyRuntime{busy: make(chan struct{})}
		create := func(ctx context.Context, x *inputs, task *Task) error {
			c := &containers{x.Backends, x, x.sandboxes}
			_, err := c.create(ctx, task, podstate.CreateContainer{Name: "app"})
			return err
		}
		large, x, app := envTask(t, []string{"all"}, []string{"one"})
		app.Env = append(app.Env, corev1.EnvVar{Name: "V", Value: strings.Repeat("v", 100<<10)})
		for range 6 {
			app.Env = append(app.Env, corev1.EnvVar{Name: "V" + strings.Repeat("_", len(app.Env)), Value: "$(V)"})
		}
		small, _, _ := envTask(t, []string{"all"}, []string{"one"})
		for _, task := range []*Task{large, small} {
			task.Pod.Spec.DNSPolicy = corev1.DNSDefault
		}
		x.Runtime, x.PodFiles = runtime, runtime
		x.Logs, x.Events = runtime, runtime
		node := &spec.Node{PodsDir: "/pods", Cgroups: spec.Cgroups{Flat: true}, NodeDNS: spec.NodeDNS{NoResolvConf: true}}
		x.Node = func() *spec.Node { return node }
		var all sync.WaitGroup
		for range 30 {
			all.Go(func() {
				if err := create(t.Context(), x, large); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		before := runtime.inside
		if runtime.most > 4<<20 || before < 700<<10 {
			t.Errorf("got %d KiB of environments in calls, want 700 to 4096", runtime.most>>10)
		}
		all.Go(func() {
			if err := create(t.Context(), x, small); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		if runtime.inside == before {
			t.Error("a small container waits for large ones")
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := create(ctx, x, large); err != context.Canceled {
			t.Errorf("got %v for a creation that is given up while it waits, want %v", err, context.Canceled)
		}
		close(runtime.busy)
		all.Wait()
	})
}
