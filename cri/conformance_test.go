package cri_test

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/cri"
	"github.com/nodelet/nodelet/test/cri/fake"
	"github.com/nodelet/nodelet/test/waittest"
)

// The tests of this file hold for containerd. They always run on the fake, in a bubble of virtual time. With
// NODELET_TEST_CRI=unix:///run/containerd/containerd.sock they also run on that runtime, as root, with pods of their
// own that they remove; it must have the image NODELET_TEST_CRI_IMAGE with a shell. `make real` does that, so the fake
// is held to what containerd does. CRI-O differs in some of it: tests as root run pods on it, see `make crio`.

const conformanceImage = "registry.k8s.io/e2e-test-images/busybox:1.37.0-1"

// world is a pod to be on one runtime.
type world struct {
	*testing.T
	c *cri.Client
	// rt is nil on a real runtime.
	rt        *fake.Runtime
	image     string
	name, uid string
	logs      string
}

func onEachRuntime(t *testing.T, test func(w *world)) {
	t.Run("fake", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			rt, c := serve(t, cri.Options{Log: discard})
			rt.AddImage(fake.RemoteImage{Name: conformanceImage})
			rt.SandboxTakes = 500 * time.Millisecond
			test(&world{T: t, c: c, rt: rt, image: conformanceImage, name: "pod", uid: "uid-pod", logs: "/logs"})
		})
	})
	t.Run("real", func(t *testing.T) {
		endpoint := os.Getenv("NODELET_TEST_CRI")
		if endpoint == "" {
			t.Skip("NODELET_TEST_CRI names no container runtime to try")
		}
		c, err := cri.Dial(endpoint, cri.Options{Log: discard})
		check(t, err)
		defer c.Close()
		name := strings.ToLower(strings.ReplaceAll(strings.TrimSuffix(t.Name(), "/real"), "/", "-"))
		w := &world{T: t, c: c, image: cmp.Or(os.Getenv("NODELET_TEST_CRI_IMAGE"), conformanceImage),
			name: name, uid: fmt.Sprintf("%s-%d", name, os.Getpid()), logs: t.TempDir()}
		defer w.cleanUp()
		test(w)
	})
}

// took checks the duration of a call: at least the given one and, on the fake with its virtual clock, at most 5 s more.
// A real runtime on a busy machine may take longer.
func (w *world) took(what string, took, least time.Duration) {
	w.Helper()
	if took < least || w.rt != nil && took > least+5*time.Second {
		w.Errorf("%s: got took %s, want %s", what, took, least)
	}
}

// cleanUp removes the pod from a real runtime.
func (w *world) cleanUp() {
	ctx := context.Background()
	s, err := w.c.Snapshot(ctx, types.UID(w.uid), nil)
	if err != nil {
		w.Errorf("clean up: %v", err)
		return
	}
	for _, sandbox := range s.Sandboxes {
		if err := w.c.RemovePodSandbox(ctx, sandbox.Id); err != nil {
			w.Errorf("clean up: %v", err)
		}
	}
}

func (w *world) labels() map[string]string {
	return map[string]string{
		"io.kubernetes.pod.uid":       w.uid,
		"io.kubernetes.pod.name":      w.name,
		"io.kubernetes.pod.namespace": "conformance",
	}
}

func (w *world) sandbox(attempt uint32) *runtimeapi.PodSandboxConfig {
	return &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: w.name, Namespace: "conformance", Uid: w.uid, Attempt: attempt},
		Labels:   w.labels(), LogDirectory: w.logs, Hostname: "conformance", Linux: &runtimeapi.LinuxPodSandboxConfig{},
	}
}

func (w *world) run(attempt uint32) string {
	w.Helper()
	id, err := w.c.RunPodSandbox(w.Context(), w.sandbox(attempt), "")
	check(w.T, err)
	return id
}

// create makes a container that runs a shell script; on the fake, as the script says.
func (w *world) create(sandbox, name string, attempt uint32, shell string, script fake.Script) (string, error) {
	if w.rt != nil {
		w.rt.Script(name, script)
	}
	cmd := []string{"sh", "-c", shell}
	if shell == "" {
		cmd = []string{"/no/such/command"}
	}
	return w.c.CreateContainer(w.Context(), sandbox, &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: name, Attempt: attempt}, Image: &runtimeapi.ImageSpec{Image: w.image},
		Command: cmd, Labels: w.labels(), LogPath: fmt.Sprintf("%s-%d.log", name, attempt),
		Linux: &runtimeapi.LinuxContainerConfig{},
	}, w.sandbox(0))
}

func (w *world) start(sandbox, name, shell string, script fake.Script) string {
	w.Helper()
	id, err := w.create(sandbox, name, 0, shell, script)
	check(w.T, err)
	check(w.T, w.c.StartContainer(w.Context(), id))
	if w.rt == nil && strings.HasPrefix(shell, "trap") {
		waittest.Until(w.T, "the shell has set up its trap, and says so", func() bool {
			text, err := os.ReadFile(filepath.Join(w.logs, name+"-0.log"))
			return err == nil && strings.Contains(string(text), "ready")
		})
	}
	return id
}

func (w *world) look() *cri.Snapshot {
	w.Helper()
	s, err := w.c.Snapshot(w.Context(), types.UID(w.uid), nil)
	check(w.T, err)
	return s
}

// container waits until the runtime shows a container in a state.
func (w *world) container(id string, state runtimeapi.ContainerState) cri.Container {
	w.Helper()
	var c cri.Container
	waittest.Until(w.T, fmt.Sprintf("container %s is %s", id, state), func() bool {
		c = find(w.look(), id)
		return c.State == state
	})
	return c
}

const (
	created  = runtimeapi.ContainerState_CONTAINER_CREATED
	running  = runtimeapi.ContainerState_CONTAINER_RUNNING
	exited   = runtimeapi.ContainerState_CONTAINER_EXITED
	stubborn = "trap '' TERM; echo ready; while :; do sleep 0.1; done"
)

func TestConformanceLife(t *testing.T) {
	onEachRuntime(t, func(w *world) {
		began := time.Now().UnixNano()
		sandbox := w.run(0)
		s := w.look()
		if len(s.Sandboxes) != 1 || s.Sandboxes[0].Id != sandbox ||
			s.Sandboxes[0].State != runtimeapi.PodSandboxState_SANDBOX_READY ||
			s.Sandboxes[0].Network.Ip == "" || s.Sandboxes[0].Metadata.Uid != w.uid || s.Sandboxes[0].CreatedAt < began {
			w.Errorf("got %v, want one sandbox of the pod, ready, with an address", s.Sandboxes)
		}
		app, err := w.create(sandbox, "app", 0, "sleep 1000", fake.Script{})
		check(w.T, err)
		if c := w.container(app, created); c.StartedAt != 0 || c.SandboxID != sandbox || c.Metadata.Name != "app" ||
			c.ImageId == "" {
			w.Errorf("created: got %v, want app with an image, not started", c)
		}
		check(w.T, w.c.StartContainer(w.Context(), app))
		if err := w.c.StartContainer(w.Context(), app); err == nil {
			w.Error("started twice")
		}
		if c := w.container(app, running); c.StartedAt < c.CreatedAt || c.FinishedAt != 0 {
			w.Errorf("running: got %v, want a start after the creation, and no end", c)
		}
		s = w.look()
		pods, err := w.c.Relist(w.Context())
		check(w.T, err)
		pods = slices.DeleteFunc(pods, func(p cri.PodSummary) bool { return p.UID != s.UID })
		if len(pods) != 1 || !s.Matches(pods[0].Fingerprint) || pods[0].Name != w.name || pods[0].Namespace != "conformance" {
			w.Errorf("relist: got %+v, want the name and the state of the snapshot %+v", pods, s)
		}
		check(w.T, w.c.StopPodSandbox(w.Context(), sandbox))
		if c := w.container(app, exited); c.ExitCode != 137 || c.FinishedAt < c.StartedAt || c.Reason != "Error" {
			w.Errorf("exited: got %v, want exit code 137 and reason Error", c)
		}
		if s := w.look().Sandboxes[0]; s.State != runtimeapi.PodSandboxState_SANDBOX_NOTREADY || s.Network.GetIp() != "" {
			w.Errorf("stopped sandbox: got %v, want it not ready and without an address", s)
		}
		if _, err := w.create(sandbox, "late", 0, "sleep 1000", fake.Script{}); err == nil {
			w.Error("made a container in a stopped sandbox")
		}
		check(w.T, w.c.StopPodSandbox(w.Context(), sandbox))
		check(w.T, w.c.RemovePodSandbox(w.Context(), sandbox))
		if s := w.look(); len(s.Sandboxes)+len(s.Containers) != 0 {
			w.Errorf("left: got %+v, want nothing", s)
		}
	})
}

// TestConformanceNotFound checks that an object that does not exist can be stopped and removed; other calls return
// NotFound.
func TestConformanceNotFound(t *testing.T) {
	onEachRuntime(t, func(w *world) {
		ctx := w.Context()
		check(w.T, w.c.StopContainer(ctx, "missing", time.Second))
		check(w.T, w.c.RemoveContainer(ctx, "missing"))
		check(w.T, w.c.StopPodSandbox(ctx, "missing"))
		check(w.T, w.c.RemovePodSandbox(ctx, "missing"))
		check(w.T, w.c.RemoveImage(ctx, "registry.k8s.io/missing:1"))
		absent := &runtimeapi.ImageSpec{Image: "registry.k8s.io/missing:1"}
		if img, err := w.c.ImageStatus(ctx, absent); img != nil || err != nil {
			w.Errorf("absent image: got %v and error %v, want neither", img, err)
		}
		if err := w.c.StartContainer(ctx, "missing"); !cri.IsNotFound(err) {
			w.Errorf("start of a missing container: got %v, want not found", err)
		}
		if err := w.c.UpdateContainerResources(ctx, "missing", &runtimeapi.LinuxContainerResources{}); !cri.IsNotFound(err) {
			w.Errorf("update of a missing container: got %v, want not found", err)
		}
		if _, err := w.c.ExecSync(ctx, "missing", []string{"true"}, time.Second); !cri.IsNotFound(err) {
			w.Errorf("exec in a missing container: got %v, want not found", err)
		}
		if _, err := w.create("missing", "app", 0, "true", fake.Script{}); !cri.IsNotFound(err) {
			w.Errorf("create in a missing sandbox: got %v, want not found", err)
		}
	})
}

// TestConformanceNames checks that a name is reserved until its holder is removed.
func TestConformanceNames(t *testing.T) {
	onEachRuntime(t, func(w *world) {
		sandbox := w.run(0)
		if _, err := w.c.RunPodSandbox(w.Context(), w.sandbox(0), ""); !nameReserved(err) {
			w.Errorf("same sandbox twice: got %v, want that its name is reserved", err)
		}
		app := w.start(sandbox, "app", "sleep 1000", fake.Script{})
		if _, err := w.create(sandbox, "app", 0, "sleep 1000", fake.Script{}); !nameReserved(err) {
			w.Errorf("same container twice: got %v, want that its name is reserved", err)
		}
		check(w.T, w.c.StopContainer(w.Context(), app, 0))
		if _, err := w.create(sandbox, "app", 0, "sleep 1000", fake.Script{}); !nameReserved(err) {
			w.Errorf("same container beside its exited instance: got %v, want that its name is reserved", err)
		}
		check(w.T, w.c.RemoveContainer(w.Context(), app))
		if _, err := w.create(sandbox, "app", 0, "sleep 1000", fake.Script{}); err != nil {
			w.Error(err)
		}
		check(w.T, w.c.RemovePodSandbox(w.Context(), sandbox))
		w.run(0)
	})
}

// TestConformanceGivenUpSandbox checks that a RunPodSandbox whose client goes is undone. Meanwhile its name is
// reserved though no list shows it; then the same attempt goes through, and there is one sandbox.
func TestConformanceGivenUpSandbox(t *testing.T) {
	onEachRuntime(t, func(w *world) {
		for attempt, timeout := range []time.Duration{5 * time.Millisecond, 30 * time.Millisecond, 60 * time.Millisecond} {
			ctx, cancel := context.WithTimeout(w.Context(), timeout)
			_, err := w.c.RunPodSandbox(ctx, w.sandbox(uint32(attempt)), "")
			cancel()
			if !cri.IsDeadline(err) {
				w.Skipf("the sandbox was made within %s: %v", timeout, err)
			}
			id := ""
			waittest.Until(w.T, "the name is free again", func() bool {
				id, err = w.c.RunPodSandbox(w.Context(), w.sandbox(uint32(attempt)), "")
				if err != nil && !nameReserved(err) {
					w.Fatal(err)
				}
				return err == nil
			})
			if s := w.look().Sandboxes; len(s) != attempt+1 || s[0].Id != id || s[0].Metadata.Attempt != uint32(attempt) {
				w.Fatalf("after attempt %d: got %v, want its sandbox first", attempt, s)
			}
		}
	})
}

// TestConformanceExits checks codes and reasons of exits.
func TestConformanceExits(t *testing.T) {
	onEachRuntime(t, func(w *world) {
		sandbox := w.run(0)
		for name, tc := range map[string]struct {
			shell  string
			script fake.Script
			code   int32
			reason string
		}{
			"well": {"true", fake.Script{RunsFor: 1}, 0, "Completed"},
			"ill":  {"exit 3", fake.Script{RunsFor: 1, ExitCode: 3}, 3, "Error"},
		} {
			id := w.start(sandbox, name, tc.shell, tc.script)
			// Of a process that ends at once, containerd notes the end before the start.
			if c := w.container(id, exited); c.ExitCode != tc.code || c.Reason != tc.reason || c.FinishedAt == 0 {
				w.Errorf("%s: got %v, want exit code %d and reason %s", name, c, tc.code, tc.reason)
			}
			check(w.T, w.c.StopContainer(w.Context(), id, time.Second))
		}
		id, err := w.create(sandbox, "none", 0, "",
			fake.Script{StartErr: `exec: "/no/such/command": no such file or directory`})
		check(w.T, err)
		if err := w.c.StartContainer(w.Context(), id); err == nil || !strings.Contains(err.Error(), "no such file") {
			w.Errorf("start of a missing command: got %v, want no such file", err)
		}
		if c := w.container(id, exited); c.ExitCode != 128 || c.Reason != "StartError" ||
			!strings.Contains(c.Message, "no such file") {
			w.Errorf("after a failed start: got %v, want exit code 128, StartError, no such file", c)
		}
	})
}

// TestConformanceUpdate checks that an update changes what it names and keeps the rest, and that -1 removes a limit.
func TestConformanceUpdate(t *testing.T) {
	onEachRuntime(t, func(w *world) {
		app := w.start(w.run(0), "app", "sleep 1000", fake.Script{})
		for _, u := range []struct {
			update                *runtimeapi.LinuxContainerResources
			quota, shares, memory int64
		}{
			{&runtimeapi.LinuxContainerResources{CpuPeriod: 100000, CpuQuota: 50000, CpuShares: 512,
				MemoryLimitInBytes: 64 << 20}, 50000, 512, 64 << 20},
			{&runtimeapi.LinuxContainerResources{CpuShares: 256}, 50000, 256, 64 << 20},
			{&runtimeapi.LinuxContainerResources{CpuQuota: -1}, -1, 256, 64 << 20},
		} {
			check(w.T, w.c.UpdateContainerResources(w.Context(), app, u.update))
			got := w.container(app, running).GetResources().GetLinux()
			if got.CpuQuota != u.quota || got.CpuShares != u.shares || got.MemoryLimitInBytes != u.memory {
				w.Errorf("after %v: got %v, want quota %d, shares %d, memory %d", u.update, got, u.quota, u.shares, u.memory)
			}
		}
	})
}

// TestConformanceStop checks that a stop overtakes one with a longer grace period; the signal is sent once; when the
// client has cancelled its call, the container is not killed.
func TestConformanceStop(t *testing.T) {
	onEachRuntime(t, func(w *world) {
		sandbox := w.run(0)
		for i, second := range []time.Duration{0, 2 * time.Second} {
			id := w.start(sandbox, fmt.Sprintf("stubborn%d", i), stubborn, fake.Script{IgnoresTerm: true})
			began := time.Now()
			first := make(chan error, 1)
			go func() { first <- w.c.StopContainer(w.Context(), id, time.Minute) }()
			time.Sleep(500 * time.Millisecond)
			check(w.T, w.c.StopContainer(w.Context(), id, second))
			check(w.T, <-first)
			w.took(fmt.Sprintf("second stop with %s", second), time.Since(began), 500*time.Millisecond+second)
			if c := w.container(id, exited); c.ExitCode != 137 {
				w.Errorf("exit code: got %d, want 137", c.ExitCode)
			}
		}

		polite := w.start(sandbox, "polite", "trap 'exit 0' TERM; echo ready; while :; do sleep 0.1; done",
			fake.Script{CleanStop: true, TermTakes: 100})
		began := time.Now()
		check(w.T, w.c.StopContainer(w.Context(), polite, time.Minute))
		if c := w.container(polite, exited); c.ExitCode != 0 || c.Reason != "Completed" {
			w.Errorf("container that ends at SIGTERM: got %v, want exit code 0 and reason Completed", c)
		}
		w.took("stop of the polite one", time.Since(began), 0)

		left := w.start(sandbox, "left", stubborn, fake.Script{IgnoresTerm: true})
		ctx, cancel := context.WithTimeout(w.Context(), 500*time.Millisecond)
		defer cancel()
		// The grace period is longer than a busy runtime may need to see that the client has gone.
		if err := w.c.StopContainer(ctx, left, 10*time.Second); !cri.IsDeadline(err) {
			w.Errorf("stop whose client goes: got %v, want a deadline exceeded", err)
		}
		time.Sleep(12 * time.Second)
		w.container(left, running)
		check(w.T, w.c.StopContainer(w.Context(), left, time.Second))
		w.container(left, exited)
	})
}

// TestConformanceExec checks codes, output and time-outs of commands.
func TestConformanceExec(t *testing.T) {
	onEachRuntime(t, func(w *world) {
		app := w.start(w.run(0), "app", "sleep 1000", fake.Script{})
		if w.rt != nil {
			w.rt.OnExec(func(_ string, cmd []string) fake.ExecOutcome {
				return map[string]fake.ExecOutcome{
					"echo out; echo err >&2; exit 5": {Stdout: "out\n", Stderr: "err\n", ExitCode: 5},
					"sleep 1000":                     {Takes: 1000 * time.Second},
					"sleep 20 & exit 0":              {Holds: true},
				}[cmd[2]]
			})
		}
		exec := func(ctx context.Context, shell string, timeout time.Duration) (cri.ExecResult, time.Duration, error) {
			began := time.Now()
			got, err := w.c.ExecSync(ctx, app, []string{"sh", "-c", shell}, timeout)
			return got, time.Since(began), err
		}
		got, _, err := exec(w.Context(), "echo out; echo err >&2; exit 5", 10*time.Second)
		if err != nil || got.ExitCode != 5 || string(got.Stdout) != "out\n" || string(got.Stderr) != "err\n" {
			w.Errorf("got %+v, %v", got, err)
		}
		_, took, err := exec(w.Context(), "sleep 1000", time.Second)
		if !cri.IsDeadline(err) {
			w.Errorf("slow command: got %v, want a deadline", err)
		}
		w.took("slow command", took, time.Second)
		ctx, cancel := context.WithTimeout(w.Context(), 3*time.Second)
		defer cancel()
		if _, took, err = exec(ctx, "sleep 20 & exit 0", time.Second); !cri.IsDeadline(err) {
			w.Errorf("command that leaves a child with its output: got %v, want a deadline", err)
		}
		w.took("command that leaves a child with its output", took, 3*time.Second)
		check(w.T, w.c.StopContainer(w.Context(), app, 0))
		if _, _, err := exec(w.Context(), "true", time.Second); err == nil {
			w.Error("a command ran in a container that has exited")
		}
	})
}

// TestConformanceEvents checks that each end is hinted at, soon, and nothing else is.
func TestConformanceEvents(t *testing.T) {
	onEachRuntime(t, func(w *world) {
		ctx, cancel := context.WithCancel(w.Context())
		defer cancel()
		hints, end := make(chan cri.Instance, 1000), make(chan error, 1)
		connected := make(chan struct{}, 10)
		go func() {
			end <- w.c.Watch(ctx, func(uid types.UID, i cri.Instance) {
				if string(uid) == w.uid {
					hints <- i
				}
			}, func() { connected <- struct{}{} })
		}()
		<-connected
		time.Sleep(200 * time.Millisecond)
		quiet := func(what string) {
			w.Helper()
			time.Sleep(200 * time.Millisecond)
			if len(hints) > 0 || len(connected) > 0 {
				w.Errorf("got a hint after %s, want none", what)
			}
		}
		expect := func(what string, want cri.Instance) {
			w.Helper()
			select {
			case got := <-hints:
				if got != want {
					w.Errorf("after %s: got a hint for %+v, want %+v", what, got, want)
				}
			case <-time.After(time.Minute):
				w.Errorf("got no hint after %s, want one", what)
			}
			time.Sleep(200 * time.Millisecond)
			for len(hints) > 0 {
				<-hints
			}
		}
		sandbox := w.run(0)
		quiet("the sandbox was run")
		app, err := w.create(sandbox, "app", 0, "sleep 1000", fake.Script{})
		check(w.T, err)
		quiet("the container was created")
		check(w.T, w.c.StartContainer(w.Context(), app))
		quiet("the container was started")
		check(w.T, w.c.StopContainer(w.Context(), app, 0))
		expect("the container ended", cri.Instance{Sandbox: sandbox, Container: app})
		check(w.T, w.c.RemoveContainer(w.Context(), app))
		quiet("the container was removed")
		check(w.T, w.c.StopPodSandbox(w.Context(), sandbox))
		expect("the sandbox was stopped", cri.Instance{Sandbox: sandbox})
		check(w.T, w.c.RemovePodSandbox(w.Context(), sandbox))
		quiet("the sandbox was removed")
		cancel()
		<-end
	})
}
