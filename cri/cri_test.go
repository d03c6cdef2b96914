package cri_test

import (
	"context"
	"log/slog"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/cri"
	"github.com/nodelet/nodelet/test/cri/fake"
)

// discard is the logger of tests that read no log.
var discard = slog.New(slog.DiscardHandler)

// serve starts a runtime with one image and a client for it.
func serve(t testing.TB, o cri.Options) (*fake.Runtime, *cri.Client) {
	t.Helper()
	rt := fake.New()
	rt.AddImage(fake.RemoteImage{Name: "busybox:1"})
	rt.Start()
	o.Connect, o.Log = rt.Connect, discard
	c, err := cri.Dial("unix:///run/fake.sock", o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		rt.Close()
	})
	return rt, c
}

func labels(pod string) map[string]string {
	return map[string]string{
		"io.kubernetes.pod.uid": "uid-" + pod, "io.kubernetes.pod.name": pod, "io.kubernetes.pod.namespace": "default",
	}
}

func sandboxConfig(pod string, attempt uint32) *runtimeapi.PodSandboxConfig {
	return &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: pod, Namespace: "default", Uid: "uid-" + pod, Attempt: attempt},
		Labels:   labels(pod), LogDirectory: "/var/log/pods/" + pod,
	}
}

func containerConfig(pod, name string, attempt uint32) *runtimeapi.ContainerConfig {
	return &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: name, Attempt: attempt},
		Image:    &runtimeapi.ImageSpec{Image: "busybox:1"}, Labels: labels(pod), LogPath: name + "/0.log",
	}
}

func runSandbox(t testing.TB, c *cri.Client, pod string, attempt uint32) string {
	t.Helper()
	id, err := c.RunPodSandbox(t.Context(), sandboxConfig(pod, attempt), "")
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func createContainer(t testing.TB, c *cri.Client, sandbox, pod, name string, attempt uint32) string {
	t.Helper()
	id, err := c.CreateContainer(t.Context(), sandbox, containerConfig(pod, name, attempt), sandboxConfig(pod, 0))
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func startContainer(t testing.TB, c *cri.Client, sandbox, pod, name string, attempt uint32) string {
	t.Helper()
	id := createContainer(t, c, sandbox, pod, name, attempt)
	if err := c.StartContainer(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	return id
}

// TestLayerDir checks that the directory of a container's writable layer is known with CRI-O alone.
func TestLayerDir(t *testing.T) {
	for _, crio := range []bool{false, true} {
		rt, c := serve(t, cri.Options{})
		rt.CRIO = crio
		app := startContainer(t, c, runSandbox(t, c, "web", 0), "web", "app", 0)
		want := map[bool]string{true: "/var/lib/containers/storage/overlay/" + app + "/diff"}[crio]
		if dir, err := c.LayerDir(t.Context(), app); dir != want || err != nil {
			t.Errorf("CRI-O %v: got %q, %v, want %q", crio, dir, err, want)
		}
	}
}

// TestEveryVerbOverASocket makes each call once over a real unix socket and sees that the runtime got it.
func TestEveryVerbOverASocket(t *testing.T) {
	rt := fake.New()
	rt.CgroupDriver = runtimeapi.CgroupDriver_CGROUPFS
	socket := filepath.Join(t.TempDir(), "cri.sock")
	if err := rt.Listen(socket); err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	var mu sync.Mutex
	seen := map[string]int{}
	c, err := cri.Dial("unix://"+socket, cri.Options{Log: discard, Done: func(verb string, took time.Duration, err error) {
		if err != nil || took <= 0 {
			t.Errorf("%s: got %v and the error %v, want a time and no error", verb, took, err)
		}
		mu.Lock()
		defer mu.Unlock()
		seen[verb]++
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx := t.Context()

	version, err := c.Version(ctx)
	if err != nil || version.RuntimeName != "containerd" {
		t.Fatalf("Version: got %v, %v, want containerd", version, err)
	}
	st, err := c.Status(ctx)
	if err != nil || len(st.Status.Conditions) != 2 || len(st.RuntimeHandlers) != 1 {
		t.Fatalf("Status: got %v, %v, want two conditions and one runtime handler", st, err)
	}
	if cfg, err := c.RuntimeConfig(ctx); err != nil || cfg.Linux.CgroupDriver != runtimeapi.CgroupDriver_CGROUPFS {
		t.Fatalf("RuntimeConfig: got %v, %v, want the cgroupfs driver", cfg, err)
	}
	check(t, c.UpdateRuntimeConfig(ctx, "10.88.0.0/16"))

	rt.Publish(fake.RemoteImage{Name: "busybox:1", Size: 77})
	spec := &runtimeapi.ImageSpec{Image: "busybox:1"}
	if img, err := c.ImageStatus(ctx, spec); img != nil || err != nil {
		t.Fatalf("ImageStatus of an absent image: got %v, %v, want nothing", img, err)
	}
	ref, err := c.PullImage(ctx, spec, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if img, err := c.ImageStatus(ctx, spec); err != nil || img.Id != ref || img.Size != 77 {
		t.Fatalf("ImageStatus: got %v, %v, want the pulled image of 77 bytes", img, err)
	}
	if imgs, err := c.ListImages(ctx); err != nil || len(imgs) != 1 {
		t.Fatalf("ListImages: got %v, %v, want one", imgs, err)
	}
	if fs, err := c.ImageFsInfo(ctx); err != nil || fs.ImageFilesystems[0].UsedBytes.Value != 77 {
		t.Fatalf("ImageFsInfo: got %v, %v, want 77 bytes", fs, err)
	}

	sandbox := runSandbox(t, c, "web", 0)
	app := startContainer(t, c, sandbox, "web", "app", 0)
	s, err := c.Snapshot(ctx, "uid-web", nil)
	if err != nil || s.Containers[0].State != runtimeapi.ContainerState_CONTAINER_RUNNING {
		t.Fatalf("Snapshot: got %+v, %v, want a running container", s, err)
	}
	rt.SetUsage(app, fake.Usage{CPUNanoSeconds: 5, MemoryBytes: 6})
	if s, err := c.PodSandboxStats(ctx, sandbox); err != nil || s.Linux.Memory.WorkingSetBytes.Value != 6 {
		t.Fatalf("PodSandboxStats: got %v, %v, want 6 bytes", s, err)
	}
	if s, err := c.ListContainerStats(ctx); err != nil || len(s) != 1 || s[0].Cpu.UsageCoreNanoSeconds.Value != 5 {
		t.Fatalf("ListContainerStats: got %v, %v, want one", s, err)
	}
	check(t, c.UpdatePodSandboxResources(ctx, &runtimeapi.UpdatePodSandboxResourcesRequest{PodSandboxId: sandbox}))
	check(t, c.UpdateContainerResources(ctx, app, &runtimeapi.LinuxContainerResources{CpuShares: 7}))
	check(t, c.ReopenContainerLog(ctx, app))
	if out, err := c.ExecSync(ctx, app, []string{"true"}, time.Second); err != nil || out.ExitCode != 0 {
		t.Fatalf("ExecSync: got %v, %v, want exit code 0", out, err)
	}
	check(t, c.StopContainer(ctx, app, time.Second))
	check(t, c.RemoveContainer(ctx, app))
	check(t, c.StopPodSandbox(ctx, sandbox))
	check(t, c.RemovePodSandbox(ctx, sandbox))
	check(t, c.RemoveImage(ctx, "busybox:1"))
	if left := len(rt.Sandboxes()) + len(rt.Containers()); left != 0 {
		t.Errorf("got %d sandboxes and containers left, want 0", left)
	}
	if got := rt.Verbs(); !maps.Equal(got, seen) {
		t.Errorf("calls: got %v at the runtime, want those of Done, %v", got, seen)
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestHangIsNamed checks that a call on a hung runtime ends with an error that says what it was about.
func TestHangIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, c := serve(t, cri.Options{Log: discard})
		rt.Inject(&fake.Fault{Verb: "RunPodSandbox", Hang: true})
		errs := make(chan error)
		began := time.Now()
		go func() {
			_, err := c.RunPodSandbox(t.Context(), sandboxConfig("web", 3), "")
			errs <- err
		}()
		err := <-errs
		if took := time.Since(began); took != 4*time.Minute {
			t.Errorf("gave up after %s, want twice the default time-out", took)
		}
		want := "RunPodSandbox default/web#3: no answer from the container runtime within 4m0s: "
		if !cri.IsDeadline(err) || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got %v, want it to begin with %q", err, want)
		}
	})
}

// TestDeadlines checks that each verb gives up when it should.
func TestDeadlines(t *testing.T) {
	calls := map[string]struct {
		call func(context.Context, *cri.Client) error
		want time.Duration
	}{
		"Version": {func(ctx context.Context, c *cri.Client) error {
			_, err := c.Version(ctx)
			return err
		}, 5 * time.Second},
		"StopContainer": {func(ctx context.Context, c *cri.Client) error {
			return c.StopContainer(ctx, "x", time.Minute)
		}, 65 * time.Second},
		"StopPodSandbox": {func(ctx context.Context, c *cri.Client) error {
			return c.StopPodSandbox(ctx, "x")
		}, 5 * time.Second},
		"ExecSync": {func(ctx context.Context, c *cri.Client) error {
			_, err := c.ExecSync(ctx, "x", nil, time.Second)
			return err
		}, 6 * time.Second},
		"CheckpointContainer": {func(ctx context.Context, c *cri.Client) error {
			return c.CheckpointContainer(ctx, "x", "/x.tar", time.Minute)
		}, time.Minute},
		"CheckpointContainer with less than the usual time": {func(ctx context.Context, c *cri.Client) error {
			return c.CheckpointContainer(ctx, "x", "/x.tar", time.Second)
		}, 5 * time.Second},
		"Relist": {func(ctx context.Context, c *cri.Client) error {
			_, err := c.Relist(ctx)
			return err
		}, 5 * time.Second},
		"PullImage": {func(ctx context.Context, c *cri.Client) error {
			ctx, cancel := context.WithTimeout(ctx, 3*time.Hour)
			defer cancel()
			_, err := c.PullImage(ctx, &runtimeapi.ImageSpec{Image: "x"}, nil, nil)
			return err
		}, 3 * time.Hour},
	}
	for name, tc := range calls {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rt, c := serve(t, cri.Options{Log: discard, Timeout: 5 * time.Second})
				rt.Inject(&fake.Fault{Hang: true})
				began := time.Now()
				if err := tc.call(t.Context(), c); cri.Answered(err) {
					t.Errorf("got %v, want that there is no answer", err)
				}
				if took := time.Since(began); took != tc.want {
					t.Errorf("took %s, want %s", took, tc.want)
				}
			})
		})
	}
}

// TestLostAnswerAndReservedName checks that after a lost answer the same attempt collides with itself, and the
// snapshot finds what the first call made.
func TestLostAnswerAndReservedName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, c := serve(t, cri.Options{Log: discard})
		rt.Inject(&fake.Fault{Verb: "RunPodSandbox", Lose: true, Times: 1})
		if _, err := c.RunPodSandbox(t.Context(), sandboxConfig("web", 0), ""); !cri.IsUnavailable(err) {
			t.Fatalf("first call: got %v, want unavailable", err)
		}
		_, err := c.RunPodSandbox(t.Context(), sandboxConfig("web", 0), "")
		if !nameReserved(err) || !strings.Contains(err.Error(), `failed to reserve sandbox name "web_default_uid-web_0"`) {
			t.Fatalf("second call: got %v, want a reserved name", err)
		}
		s, err := c.Snapshot(t.Context(), "uid-web", nil)
		if err != nil || len(s.Sandboxes) != 1 || s.Sandboxes[0].State != runtimeapi.PodSandboxState_SANDBOX_READY {
			t.Fatalf("snapshot: got %+v, %v, want one ready sandbox", s, err)
		}
		runSandbox(t, c, "web", 1)
	})
}

// TestStuckWorkKeepsTheName checks that work that is stuck in the kernel keeps its name when its client has gone, and
// frees it later.
func TestStuckWorkKeepsTheName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, c := serve(t, cri.Options{Log: discard, Timeout: time.Second})
		stuck := rt.Inject(&fake.Fault{
			Verb:          "RunPodSandbox",
			Inside:        true,
			Hang:          true,
			IgnoresCancel: true,
			Times:         1,
			Err:           status.Error(codes.DeadlineExceeded, "context deadline exceeded"),
		})
		if _, err := c.RunPodSandbox(t.Context(), sandboxConfig("web", 0), ""); !cri.IsDeadline(err) {
			t.Fatalf("first call: got %v, want a deadline", err)
		}
		if _, err := c.RunPodSandbox(t.Context(), sandboxConfig("web", 0), ""); !nameReserved(err) {
			t.Fatalf("second call: got %v, want a reserved name", err)
		}
		rt.Release(stuck)
		synctest.Wait()
		runSandbox(t, c, "web", 0)
	})
}

// TestReconnect checks that while the runtime is down calls fail at once; after its restart they go through without a
// new Dial.
func TestReconnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, c := serve(t, cri.Options{Log: discard})
		runSandbox(t, c, "web", 0)
		rt.Crash(false)
		synctest.Wait()
		began := time.Now()
		if _, err := c.Relist(t.Context()); !cri.IsUnavailable(err) {
			t.Fatalf("while the runtime is down: got %v, want that it is unavailable", err)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("a call to a runtime that is down took %s, want at most a second", took)
		}
		time.Sleep(10 * time.Minute)
		check(t, rt.Restart())
		time.Sleep(4 * time.Second)
		pods, err := c.Relist(t.Context())
		if err != nil || len(pods) != 1 {
			t.Fatalf("after the restart: got %v, %v, want one", pods, err)
		}
	})
}

// TestCallCutOffByCrash checks that a call that was under way when the runtime died fails as unavailable at once.
func TestCallCutOffByCrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, c := serve(t, cri.Options{Log: discard})
		rt.SandboxTakes = time.Hour
		errs := make(chan error)
		go func() {
			_, err := c.RunPodSandbox(t.Context(), sandboxConfig("web", 0), "")
			errs <- err
		}()
		time.Sleep(time.Second)
		began := time.Now()
		rt.Crash(false)
		if err := <-errs; !cri.IsUnavailable(err) || time.Since(began) > time.Second {
			t.Errorf("got %v after %s", err, time.Since(began))
		}
	})
}

// TestCommandCutOff checks that the error of a command whose result was lost differs from that of one that the runtime
// was not asked to run, or refused to run while it started.
func TestCommandCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, c := serve(t, cri.Options{Log: discard})
		app := startContainer(t, c, runSandbox(t, c, "web", 0), "web", "app", 0)
		rt.OnExec(func(string, []string) fake.ExecOutcome { return fake.ExecOutcome{Takes: time.Hour} })
		checkCutOff := func(when string, want bool) {
			t.Helper()
			if _, err := c.ExecSync(t.Context(), app, nil, 0); !cri.IsUnavailable(err) || cri.IsCutOff(err) != want {
				t.Errorf("%s: got %v, want that it is unavailable, and cut off: %v", when, err, want)
			}
		}
		rt.Inject(&fake.Fault{Verb: "ExecSync", Times: 1, Err: status.Error(codes.Unavailable, "not initialized yet")})
		checkCutOff("runtime that starts", false)
		time.AfterFunc(time.Minute, func() { rt.Crash(false) })
		checkCutOff("runtime that ends", true)
		time.Sleep(time.Second)
		checkCutOff("runtime that is down", false)
	})
}

// TestStopOvertakes checks that a second stop with a shorter grace ends the container in its own time, and both calls
// return.
func TestStopOvertakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, c := serve(t, cri.Options{Log: discard})
		rt.Script("app", fake.Script{IgnoresTerm: true})
		app := startContainer(t, c, runSandbox(t, c, "web", 0), "web", "app", 0)
		began := time.Now()
		first := make(chan error)
		go func() { first <- c.StopContainer(t.Context(), app, time.Hour) }()
		time.Sleep(time.Second)
		check(t, c.StopContainer(t.Context(), app, 1500*time.Millisecond))
		check(t, <-first)
		if took := time.Since(began); took != 3*time.Second { // 1 s, and 1.5 s rounded up to 2 s
			t.Errorf("stopped after %s, want 3s", took)
		}
		if st := rt.Containers()[0]; st.ExitCode != 137 {
			t.Errorf("exit code: got %d, want 137", st.ExitCode)
		}
	})
}

func TestExecSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, c := serve(t, cri.Options{Log: discard})
		app := startContainer(t, c, runSandbox(t, c, "web", 0), "web", "app", 0)
		commandsDo := func(o fake.ExecOutcome) {
			rt.OnExec(func(string, []string) fake.ExecOutcome { return o })
		}
		commandsDo(fake.ExecOutcome{Stdout: "out", Stderr: "err", ExitCode: 3})
		got, err := c.ExecSync(t.Context(), app, []string{"false"}, time.Second)
		if err != nil || got.ExitCode != 3 || string(got.Stdout) != "out" || string(got.Stderr) != "err" {
			t.Errorf("got %+v, %v", got, err)
		}
		commandsDo(fake.ExecOutcome{Takes: time.Minute})
		began := time.Now()
		_, err = c.ExecSync(t.Context(), app, nil, 500*time.Millisecond)
		if !cri.IsDeadline(err) || time.Since(began) != time.Second {
			t.Errorf("slow command: got %v after %s, want a deadline after 1s (0.5 s rounded up)", err, time.Since(began))
		}
		commandsDo(fake.ExecOutcome{Holds: true})
		began = time.Now()
		time.AfterFunc(2*time.Second, func() { _, _ = c.Version(t.Context()) })
		_, err = c.ExecSync(t.Context(), app, nil, time.Second)
		if !cri.IsDeadline(err) || time.Since(began) != 121*time.Second {
			t.Errorf("held output: got %v after %s, want a deadline after 121s", err, time.Since(began))
		}
		_, err = c.ExecSync(t.Context(), app, nil, time.Second)
		if !cri.IsUnavailable(err) || cri.IsDeadline(err) {
			t.Errorf("runtime that answers no other call either: got %v, want it to be unavailable", err)
		}
		commandsDo(fake.ExecOutcome{Stdout: strings.Repeat("x", 17<<20)})
		if _, err = c.ExecSync(t.Context(), app, nil, time.Second); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("17 MiB of output: got %v, want it refused", err)
		}
	})
}

// TestOutputsAreBounded checks that an output waits while four others are received, but not for long if these hang,
// that other calls do not wait, and that none waits beyond its context.
func TestOutputsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, c := serve(t, cri.Options{Log: discard})
		app := startContainer(t, c, runSandbox(t, c, "web", 0), "web", "app", 0)
		rt.OnExec(func(_ string, cmd []string) fake.ExecOutcome {
			takes, early := time.ParseDuration(cmd[0])
			return fake.ExecOutcome{Takes: takes, Early: early == nil}
		})
		run := func(ctx context.Context, cmd string) (time.Duration, error) {
			began := time.Now()
			_, err := c.ExecSync(ctx, app, []string{cmd}, 0)
			return time.Since(began), err
		}
		hold := func(n int, takes string) {
			ctx, cancel := context.WithCancel(t.Context())
			t.Cleanup(cancel)
			for range n {
				go func() { _, _ = run(ctx, takes) }()
			}
			synctest.Wait()
		}
		hold(3, "500ms")
		if took, err := run(t.Context(), "true"); took != 0 || err != nil {
			t.Errorf("beside three outputs: got %v after %s, want no wait", err, took)
		}
		hold(1, "500ms")
		if _, err := c.Version(t.Context()); err != nil {
			t.Error(err)
		}
		short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if took, err := run(short, "true"); took != 100*time.Millisecond || !cri.IsDeadline(err) {
			t.Errorf("beside four outputs: got %v after %s, want a deadline after 100ms", err, took)
		}
		if took, err := run(t.Context(), "true"); took != 400*time.Millisecond || err != nil {
			t.Errorf("beside four outputs: got %v after %s, want the output after 400ms", err, took)
		}
		hold(4, "1h")
		if took, err := run(t.Context(), "true"); took != time.Second || err != nil {
			t.Errorf("beside four outputs that hang: got %v after %s, want the output after 1s", err, took)
		}
	})
}

// TestImageServiceOfItsOwn checks that the answer of an image service that has an endpoint of its own does not count as
// an answer of the runtime.
func TestImageServiceOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		images := fake.New()
		images.Start()
		defer images.Close()
		pods := fake.New()
		pods.AddImage(fake.RemoteImage{Name: "busybox:1"})
		pods.Start()
		defer pods.Close()
		c, err := cri.Dial("/run/pods.sock", cri.Options{
			Log:           discard,
			ImageEndpoint: "/run/images.sock",
			Connect: func(ctx context.Context, path string) (net.Conn, error) {
				if path == "/run/images.sock" {
					return images.Connect(ctx, path)
				}
				return pods.Connect(ctx, path)
			},
		})
		check(t, err)
		defer c.Close()
		app := startContainer(t, c, runSandbox(t, c, "web", 0), "web", "app", 0)
		pods.OnExec(func(string, []string) fake.ExecOutcome { return fake.ExecOutcome{Holds: true} })
		var answered atomic.Bool
		time.AfterFunc(2*time.Second, func() {
			_, err := c.ListImages(t.Context())
			answered.Store(err == nil)
		})
		_, err = c.ExecSync(t.Context(), app, nil, time.Second)
		if !answered.Load() || !cri.IsUnavailable(err) {
			t.Errorf("silent runtime beside an image service that answers (%t): got %v, want the runtime to be unavailable",
				answered.Load(), err)
		}
	})
}

// TestNameHeld checks that the answers of containerd 2.4 and of older versions are recognized, and no other. The texts
// are those of containerd's and CRI-O's sources.
func TestNameHeld(t *testing.T) {
	for text, want := range map[string]bool{
		`failed to reserve sandbox name "web_default_u_0": name "web_default_u_0" is reserved for "s1"`:           true,
		`failed to reserve container name "app_web_default_u_0": name "app_web_default_u_0" is reserved for "c1"`: true,
		`failed to reserve container name "app_web_default_u_0"; check if another CreateContainer request is in ` +
			`progress: name "app_web_default_u_0" is reserved for "c1"`: true,
		`failed to reserve container name "": invalid name "" or key "c1"`: false,
		`error reserving ctr name app_0 for id c1: name is reserved`:       false,
		`hook: failed to reserve container name: name x is reserved for y`: false,
	} {
		err := &cri.Error{Verb: "CreateContainer", Err: status.Error(codes.AlreadyExists, text)}
		if got := cri.IsNameHeld(err); got != want {
			t.Errorf("%s: got %t, want %t", text, got, want)
		}
	}
	if cri.IsNameHeld(nil) {
		t.Error("nil: got true, want false")
	}
}

func TestErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c := serve(t, cri.Options{Log: discard})
		err := c.StartContainer(t.Context(), "nope")
		if !cri.IsNotFound(err) || cri.IsUnavailable(err) || cri.IsDeadline(err) || nameReserved(err) {
			t.Errorf("%v: want it to be of the class NotFound alone", err)
		}
		text := `an error occurred when try to find container "nope": not found`
		if want := "StartContainer nope: rpc error: code = NotFound desc = " + text; err.Error() != want {
			t.Errorf("got %q, want %q", err, want)
		}
		if cri.Message(err) != text {
			t.Errorf("message: got %q, want %q", cri.Message(err), text)
		}
		if !cri.Answered(err) || !cri.Answered(nil) {
			t.Error("Answered: got false for an error from the runtime or for none, want true")
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := c.Version(ctx); !cri.IsCanceled(err) || cri.Answered(err) {
			t.Errorf("cancelled call: got %v, want one that was canceled and not answered", err)
		}
		if cri.IsNotFound(nil) || nameReserved(nil) || cri.IsDeadline(nil) || cri.IsUnimplemented(nil) {
			t.Error("a nil error: got a class, want none")
		}
	})
}

// TestServiceIsMissing checks that a call which the runtime does not have is not taken for a server without a CRI
// service. containerd is such a server if it cannot load its CRI plugin.
func TestServiceIsMissing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cri.sock")
	for _, missing := range []bool{true, false} {
		server := grpc.NewServer()
		if !missing {
			runtimeapi.RegisterRuntimeServiceServer(server, runtimeapi.UnimplementedRuntimeServiceServer{})
		}
		listener, err := net.Listen("unix", path)
		check(t, err)
		go server.Serve(listener)
		c, err := cri.Dial("unix://"+path, cri.Options{Log: discard})
		check(t, err)
		_, err = c.RuntimeConfig(t.Context())
		if status.Code(err) != codes.Unimplemented || cri.IsUnimplemented(err) == missing {
			t.Errorf("service missing %v: got unimplemented %v of %v", missing, cri.IsUnimplemented(err), err)
		}
		if got := strings.Contains(cri.Remedy(err), "disabled_plugins"); got != missing {
			t.Errorf("service missing %v: got remedy %q", missing, cri.Remedy(err))
		}
		check(t, c.Close())
		server.Stop()
	}
}

func TestDialRefusesOtherEndpoints(t *testing.T) {
	for endpoint, want := range map[string]string{
		"":                         "is empty",
		"tcp://127.0.0.1:1":        "only unix sockets",
		"npipe:////./pipe/x":       "only unix sockets",
		"run/containerd.sock":      "only unix sockets",
		"unix://run/containerd":    "must be absolute",
		"unix:run/containerd.sock": "must be absolute",
		"unix:// /x":               "is not a URL",
	} {
		_, err := cri.Dial(endpoint, cri.Options{Log: discard})
		if err == nil || !strings.Contains(err.Error(), want) ||
			!strings.HasPrefix(err.Error(), "container runtime endpoint: ") {
			t.Errorf("%q: got %v, want %q", endpoint, err, want)
		}
	}
	_, err := cri.Dial("unix:///a", cri.Options{Log: discard, ImageEndpoint: "tcp://x"})
	if err == nil || !strings.HasPrefix(err.Error(), "image service endpoint: ") {
		t.Errorf("image endpoint: got %v, want an error that names it", err)
	}
	for _, endpoint := range []string{"unix:///run/x.sock", "/run/x.sock", "unix:/run/x.sock"} {
		c, err := cri.Dial(endpoint, cri.Options{Log: discard})
		if err != nil {
			t.Errorf("%q: got %v, want no error", endpoint, err)
			continue
		}
		check(t, c.Close())
	}
}

// TestImageEndpoint checks that image calls go to their own endpoint where one is set.
func TestImageEndpoint(t *testing.T) {
	pods, images := fake.New(), fake.New()
	dir := t.TempDir()
	for name, rt := range map[string]*fake.Runtime{"pods": pods, "images": images} {
		check(t, rt.Listen(filepath.Join(dir, name)))
		defer rt.Close()
	}
	c, err := cri.Dial(filepath.Join(dir, "pods"), cri.Options{Log: discard, ImageEndpoint: filepath.Join(dir, "images")})
	check(t, err)
	defer c.Close()
	if _, err := c.ListImages(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Version(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := slices.Sorted(maps.Keys(pods.Verbs())); !slices.Equal(got, []string{"Version"}) {
		t.Errorf("calls at the runtime: got %v, want Version", got)
	}
	if got := slices.Sorted(maps.Keys(images.Verbs())); !slices.Equal(got, []string{"ListImages"}) {
		t.Errorf("calls at the image service: got %v, want ListImages", got)
	}
}
