package fake_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	pb "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/test/cri/fake"
)

// pod makes a runtime with one pod and one created container of the name app.
func pod(t *testing.T) (rt *fake.Runtime, sandbox, app string) {
	t.Helper()
	rt = fake.New()
	rt.AddImage(fake.RemoteImage{Name: "busybox"})
	t.Cleanup(rt.Close)
	s, err := rt.RunPodSandbox(t.Context(), &pb.RunPodSandboxRequest{Config: config(0)})
	if err != nil {
		t.Fatal(err)
	}
	c, err := create(t, rt, s.PodSandboxId, 0)
	if err != nil {
		t.Fatal(err)
	}
	return rt, s.PodSandboxId, c.ContainerId
}

func config(attempt uint32) *pb.PodSandboxConfig {
	return &pb.PodSandboxConfig{Metadata: &pb.PodSandboxMetadata{Name: "p", Namespace: "n", Uid: "u", Attempt: attempt}}
}

func create(t *testing.T, rt *fake.Runtime, sandbox string, attempt uint32) (*pb.CreateContainerResponse, error) {
	return rt.CreateContainer(t.Context(), &pb.CreateContainerRequest{PodSandboxId: sandbox, SandboxConfig: config(0),
		Config: &pb.ContainerConfig{Metadata: &pb.ContainerMetadata{Name: "app", Attempt: attempt},
			Image: &pb.ImageSpec{Image: "busybox:latest"}, Labels: map[string]string{"a": "b"}}})
}

func start(t *testing.T, rt *fake.Runtime, id string) {
	t.Helper()
	if _, err := rt.StartContainer(t.Context(), &pb.StartContainerRequest{ContainerId: id}); err != nil {
		t.Fatal(err)
	}
}

// TestNames checks that a name is taken until its holder is removed, for sandboxes and for containers.
func TestNames(t *testing.T) {
	rt, sandbox, _ := pod(t)
	_, err := rt.RunPodSandbox(t.Context(), &pb.RunPodSandboxRequest{Config: config(0)})
	if err == nil || !strings.Contains(err.Error(), `failed to reserve sandbox name "p_n_u_0"`) {
		t.Errorf("same sandbox twice: got %v, want that its name is reserved", err)
	}
	_, err = create(t, rt, sandbox, 0)
	if err == nil || !strings.Contains(err.Error(), `failed to reserve container name "app_p_n_u_0"`) {
		t.Errorf("same container twice: got %v, want that its name is reserved", err)
	}
	if _, err := create(t, rt, sandbox, 1); err != nil {
		t.Error(err)
	}
	if _, err := rt.RemovePodSandbox(t.Context(), &pb.RemovePodSandboxRequest{PodSandboxId: sandbox}); err != nil {
		t.Fatal(err)
	}
	if n := len(rt.Containers()); n != 0 {
		t.Errorf("got %d containers after the end of their sandbox, want 0", n)
	}
	s, err := rt.RunPodSandbox(t.Context(), &pb.RunPodSandboxRequest{Config: config(0)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := create(t, rt, s.PodSandboxId, 0); err != nil {
		t.Error(err)
	}
}

// TestScripts checks how a container ends, and when, by its script.
func TestScripts(t *testing.T) {
	const grace = 10
	for name, tc := range map[string]struct {
		script fake.Script
		grace  int64
		after  time.Duration
		code   int32
		reason string
	}{
		"runs until stopped": {fake.Script{}, grace, 0, 143, "Error"},
		"cleans up": {
			fake.Script{CleanStop: true, TermTakes: 3 * time.Second},
			grace,
			3 * time.Second,
			0,
			"Completed",
		},
		"cleans up too long": {fake.Script{TermTakes: time.Minute}, grace, grace * time.Second, 137, "Error"},
		"ignores the signal": {fake.Script{IgnoresTerm: true}, grace, grace * time.Second, 137, "Error"},
		"is killed":          {fake.Script{CleanStop: true}, 0, 0, 137, "Error"},
		"ends by itself": {
			fake.Script{RunsFor: 2 * time.Second, ExitCode: 4, IgnoresTerm: true},
			grace,
			2 * time.Second,
			4,
			"Error",
		},
		"runs out of memory": {
			fake.Script{RunsFor: time.Second, ExitCode: 137, OOM: true, IgnoresTerm: true},
			grace,
			time.Second,
			137,
			"OOMKilled",
		},
		"ends well by itself": {fake.Script{RunsFor: time.Second, IgnoresTerm: true}, grace, time.Second, 0, "Completed"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rt, _, app := pod(t)
				rt.Script("app", tc.script)
				start(t, rt, app)
				began := time.Now()
				if _, err := rt.StopContainer(t.Context(),
					&pb.StopContainerRequest{ContainerId: app, Timeout: tc.grace}); err != nil {
					t.Fatal(err)
				}
				st := rt.Containers()[0]
				if took := time.Since(began); took != tc.after || st.State != pb.ContainerState_CONTAINER_EXITED ||
					st.ExitCode != tc.code || st.Reason != tc.reason {
					t.Errorf("after %s: got %s, code %d, %s, want %s, code %d, %s", took, st.State, st.ExitCode, st.Reason, tc.after,
						tc.code, tc.reason)
				}
			})
		})
	}
}

// TestStartError checks that a failed start leaves an exited container that cannot be started again.
func TestStartError(t *testing.T) {
	rt, _, app := pod(t)
	rt.Script("app", fake.Script{StartErr: "exec: no such file"})
	for _, want := range []string{"no such file", "is in CONTAINER_EXITED state"} {
		_, err := rt.StartContainer(t.Context(), &pb.StartContainerRequest{ContainerId: app})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	if st := rt.Containers()[0]; st.Reason != "StartError" || st.ExitCode != 128 || st.Message != "exec: no such file" {
		t.Errorf("got %v", st)
	}
}

// TestSandboxDies checks that containers outlive their sandbox until it is stopped, and nothing can be made in it.
func TestSandboxDies(t *testing.T) {
	rt, sandbox, app := pod(t)
	start(t, rt, app)
	other, err := create(t, rt, sandbox, 1)
	if err != nil {
		t.Fatal(err)
	}
	rt.KillSandbox(sandbox)
	if s := rt.Sandboxes()[0]; s.State != pb.PodSandboxState_SANDBOX_NOTREADY || s.Network.Ip == "" {
		t.Errorf("dead sandbox: got %v, want it not ready, with its address", s)
	}
	if c := rt.Containers(); c[0].State != pb.ContainerState_CONTAINER_RUNNING {
		t.Errorf("container in a dead sandbox: got %v, want it running", c[0])
	}
	if _, err := create(t, rt, sandbox, 2); err == nil {
		t.Error("create a container in a dead sandbox: got no error, want one")
	}
	if _, err := rt.StartContainer(t.Context(), &pb.StartContainerRequest{ContainerId: other.ContainerId}); err == nil {
		t.Error("start a container in a dead sandbox: got no error, want one")
	}
	if _, err := rt.StopPodSandbox(t.Context(), &pb.StopPodSandboxRequest{PodSandboxId: sandbox}); err != nil {
		t.Fatal(err)
	}
	if s := rt.Sandboxes()[0]; s.Network.Ip != "" {
		t.Errorf("stopped sandbox: got %v, want no address", s)
	}
	if c := rt.Containers(); c[0].ExitCode != 137 {
		t.Errorf("container in a stopped sandbox: got %v, want exit code 137", c[0])
	}
}

// TestUnkillable checks that not even SIGKILL ends it; the call ends with its client.
func TestUnkillable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, _, app := pod(t)
		rt.Script("app", fake.Script{IgnoresTerm: true, Unkillable: true})
		start(t, rt, app)
		done := make(chan struct{})
		go func() {
			defer close(done)
			rt.StopContainer(t.Context(), &pb.StopContainerRequest{ContainerId: app, Timeout: 1})
		}()
		time.Sleep(time.Hour)
		select {
		case <-done:
			t.Error("got the stop ended, want it waiting")
		default:
		}
		rt.ExitContainer(app, 1, "")
		<-done
	})
}

func TestFilters(t *testing.T) {
	rt, sandbox, app := pod(t)
	start(t, rt, app)
	if _, err := create(t, rt, sandbox, 1); err != nil {
		t.Fatal(err)
	}
	running := &pb.ContainerStateValue{State: pb.ContainerState_CONTAINER_RUNNING}
	for name, tc := range map[string]struct {
		filter *pb.ContainerFilter
		want   int
	}{
		"none":           {nil, 2},
		"id":             {&pb.ContainerFilter{Id: app}, 1},
		"state":          {&pb.ContainerFilter{State: running}, 1},
		"sandbox":        {&pb.ContainerFilter{PodSandboxId: sandbox}, 2},
		"other sandbox":  {&pb.ContainerFilter{PodSandboxId: "x"}, 0},
		"label":          {&pb.ContainerFilter{LabelSelector: map[string]string{"a": "b"}}, 2},
		"other label":    {&pb.ContainerFilter{LabelSelector: map[string]string{"a": "c"}}, 0},
		"missing label":  {&pb.ContainerFilter{LabelSelector: map[string]string{"x": ""}}, 0},
		"state and name": {&pb.ContainerFilter{State: running, LabelSelector: map[string]string{"a": "c"}}, 0},
	} {
		resp, err := rt.ListContainers(t.Context(), &pb.ListContainersRequest{Filter: tc.filter})
		if err != nil || len(resp.Containers) != tc.want {
			t.Errorf("%s: got %d containers, err %v, want %d", name, len(resp.GetContainers()), err, tc.want)
		}
	}
	notReady := &pb.PodSandboxFilter{State: &pb.PodSandboxStateValue{State: pb.PodSandboxState_SANDBOX_NOTREADY}}
	if resp, err := rt.ListPodSandbox(t.Context(), &pb.ListPodSandboxRequest{Filter: notReady}); err != nil ||
		len(resp.Items) != 0 {
		t.Errorf("not ready sandboxes: got %v, %v, want none", resp, err)
	}
}

// TestImages checks that names are completed, pulls take their time, fail by script and ask for logins.
func TestImages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := fake.New()
		uid := int64(7)
		rt.Publish(fake.RemoteImage{Name: "team/app", UID: &uid, Takes: time.Minute, Logins: map[string]string{"me": "pw"}})
		rt.Publish(fake.RemoteImage{Name: "localhost:5000/bad:1", Err: errors.New("RegistryUnavailable: try later")})
		pull := func(name string, auth *pb.AuthConfig) error {
			_, err := rt.PullImage(t.Context(), &pb.PullImageRequest{Image: &pb.ImageSpec{Image: name}, Auth: auth})
			return err
		}
		began := time.Now()
		if err := pull("docker.io/team/app:latest", &pb.AuthConfig{Username: "me", Password: "pw"}); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took != time.Minute {
			t.Errorf("time of the pull: got %s, want 1m0s", took)
		}
		if err := pull("team/app", nil); err == nil || !strings.Contains(err.Error(), "authorization failed") {
			t.Errorf("anonymous: got %v, want authorization failed", err)
		}
		if err := pull("localhost:5000/bad:1", nil); err == nil || !strings.HasPrefix(err.Error(), "RegistryUnavailable") {
			t.Errorf("scripted failure: got %v, want RegistryUnavailable", err)
		}
		if err := pull("team/missing:1", nil); status.Code(err) != codes.NotFound {
			t.Errorf("unknown image: got %v, want NotFound", err)
		}
		resp, err := rt.ImageStatus(t.Context(), &pb.ImageStatusRequest{Image: &pb.ImageSpec{Image: "team/app"}})
		if err != nil || resp.Image.GetUid().GetValue() != 7 || resp.Image.RepoTags[0] != "docker.io/team/app:latest" {
			t.Errorf("got %v, %v", resp, err)
		}
	})
}

// TestReboot checks that with Crash(true) everything has ended when the runtime is back.
func TestReboot(t *testing.T) {
	rt, _, app := pod(t)
	rt.Start()
	start(t, rt, app)
	rt.Crash(true)
	if err := rt.Restart(); err != nil {
		t.Fatal(err)
	}
	if c := rt.Containers()[0]; c.State != pb.ContainerState_CONTAINER_EXITED || c.ExitCode != 255 {
		t.Errorf("container: got %v, want it exited with 255", c)
	}
	if s := rt.Sandboxes()[0]; s.State != pb.PodSandboxState_SANDBOX_NOTREADY {
		t.Errorf("sandbox: got %v, want it not ready", s)
	}
}
