package plan

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodelet/nodelet/agent/podstate"
)

var (
	epoch  = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	inHere = []podstate.Sandbox{{ID: "s0", Ready: true, IPs: []string{"10.0.0.9"}}}
	dead   = []podstate.Sandbox{{ID: "s0"}}
)

const (
	oneApp  = `{spec: {restartPolicy: Always, containers: [{name: app, image: a}]}}`
	neverIt = `{spec: {restartPolicy: Never, containers: [{name: app, image: a}]}}`
	initApp = `{spec: {restartPolicy: Always, initContainers: [{name: first, image: a}], containers: [{name: app,
		image: a}]}}`
	probedApp = `{spec: {containers: [{name: app, image: a, startupProbe: {}, readinessProbe: {}}]}}`
	hookApp   = `{spec: {restartPolicy: Always, containers: [{name: app, image: a,
		lifecycle: {postStart: {exec: {command: [x]}}}}]}}`
)

func instance(name string, attempt uint32, state podstate.ContainerState, exit int32) podstate.Container {
	c := podstate.Container{
		ID:        name + string(rune('0'+attempt)),
		Name:      name,
		Attempt:   attempt,
		SandboxID: "s0",
		State:     state,
		Image:     "a",
		StartedAt: epoch,
		Hash:      "h",
	}
	if state == podstate.ContainerExited {
		c.FinishedAt = epoch
		c.ExitCode, c.Reason = exit, "Completed"
		if exit != 0 {
			c.Reason = "Error"
		}
	}
	return c
}

const unready = "!PodReadyToStartContainers Initialized !Ready(ContainersNotReady: " +
	"containers with unready status: [app]) " +
	"!ContainersReady(ContainersNotReady: containers with unready status: [app]) PodScheduled"

// TestContainerStates is about what containers show; the first two lines of the text, phase and conditions, are left
// out.
func TestContainerStates(t *testing.T) {
	failing := func(key podstate.Key, f podstate.Failure) func(*podstate.Memory) {
		return func(m *podstate.Memory) { m.Failures[key] = f }
	}
	notStarted := podstate.Failure{Count: 1, Reason: "RunContainerError", Message: "no such file"}
	remembering := func(i podstate.InstanceMemory) func(*podstate.Memory) {
		return func(m *podstate.Memory) { m.Instances["app0"] = &i }
	}
	tests := []struct {
		name   string
		pod    string
		shown  string
		facts  []podstate.Container
		memory func(*podstate.Memory)
		want   string
	}{
		{name: "nothing yet", pod: oneApp, want: "app: waiting ContainerCreating"},
		{
			name: "nothing yet, with init containers",
			pod:  initApp,
			want: "first: waiting PodInitializing\napp: waiting PodInitializing",
		},
		{
			name:  "init container runs",
			pod:   initApp,
			facts: []podstate.Container{instance("first", 0, podstate.ContainerRunning, 0)},
			want:  "first: running, started\napp: waiting PodInitializing",
		},
		{
			name:  "init container is through",
			pod:   initApp,
			facts: []podstate.Container{instance("first", 0, podstate.ContainerExited, 0)},
			want:  "first: exit 0 Completed, ready\napp: waiting PodInitializing",
		},
		{
			name:  "init container fails",
			pod:   initApp,
			facts: []podstate.Container{instance("first", 1, podstate.ContainerExited, 2)},
			want: "first: waiting CrashLoopBackOff \"back-off 10s restarting failed " +
				"container=first pod=web_default(uid)\", restarts 1, last exit 2 Error\n" +
				"app: waiting PodInitializing",
		},
		{
			name:  "init container forgotten by the runtime, app there",
			pod:   initApp,
			facts: []podstate.Container{instance("app", 0, podstate.ContainerRunning, 0)},
			want: "first: exit 0 Completed \"Unable to get init container status " +
				"from container runtime and pod has been initialized, " +
				"treat it as exited normally\", ready\napp: running, ready, started",
		},
		{
			name:  "running",
			pod:   oneApp,
			facts: []podstate.Container{instance("app", 0, podstate.ContainerRunning, 0)},
			want:  "app: running, ready, started",
		},
		{
			name:  "created",
			pod:   oneApp,
			facts: []podstate.Container{instance("app", 0, podstate.ContainerCreated, 0)},
			want:  "app: waiting ContainerCreating",
		},
		{
			name:  "ended, next at once",
			pod:   oneApp,
			facts: []podstate.Container{instance("app", 0, podstate.ContainerExited, 1)},
			want:  "app: exit 1 Error",
		},
		{
			name:  "ended for good",
			pod:   neverIt,
			facts: []podstate.Container{instance("app", 0, podstate.ContainerExited, 1)},
			want:  "app: exit 1 Error",
		},
		{name: "crash loop", pod: oneApp, facts: []podstate.Container{instance("app", 2, podstate.ContainerExited, 1)},
			memory: func(m *podstate.Memory) { m.Restarts[podstate.Instance{Name: "app", Attempt: 2}] = 40 * time.Second },
			want: "app: waiting CrashLoopBackOff \"back-off 40s restarting failed " +
				"container=app pod=web_default(uid)\", restarts 2, last exit 1 Error"},
		{
			name:  "crash loop over five minutes",
			pod:   oneApp,
			facts: []podstate.Container{instance("app", 9, podstate.ContainerExited, 1)},
			want: "app: waiting CrashLoopBackOff \"back-off 5m0s restarting failed " +
				"container=app pod=web_default(uid)\", restarts 9, last exit 1 Error",
		},
		{name: "running after a crash", pod: oneApp,
			facts: []podstate.Container{instance("app", 1, podstate.ContainerRunning, 0),
				instance("app", 0, podstate.ContainerExited, 3)},
			want: "app: running, ready, started, restarts 1, last exit 3 Error"},
		{
			name:  "running after a crash that the runtime has forgotten",
			pod:   oneApp,
			facts: []podstate.Container{instance("app", 1, podstate.ContainerRunning, 0)},
			shown: `{containerStatuses: [{name: app, containerID: "cri://app0", state: {terminated: {exitCode: 3,
				reason: Error}}}]}`,
			want: "app: running, ready, started, restarts 1, last exit 3 Error",
		},
		{
			name:  "running, last state kept from what was shown",
			pod:   oneApp,
			facts: []podstate.Container{instance("app", 1, podstate.ContainerRunning, 0)},
			shown: `{containerStatuses: [{name: app, containerID: "cri://app1", restartCount: 1, state: {running: {}},
				lastState: {terminated: {exitCode: 3, reason: Error}}}]}`,
			want: "app: running, ready, started, restarts 1, last exit 3 Error",
		},

		{
			name: "first pull failed",
			pod:  oneApp,
			memory: failing(podstate.EnsureImage{Container: "app"}.Key(), podstate.Failure{
				Count:   1,
				Image:   "a",
				Reason:  "ErrImagePull",
				Message: "no such image",
			}),
			want: "app: waiting ErrImagePull \"no such image\"",
		},
		{
			name: "second pull failed",
			pod:  oneApp,
			memory: failing(podstate.EnsureImage{Container: "app"}.Key(), podstate.Failure{
				Count:   2,
				Image:   "a",
				Reason:  "ErrImagePull",
				Message: "no such image",
			}),
			want: `app: waiting ImagePullBackOff "Back-off pulling image \"a\": ErrImagePull: no such image"`,
		},
		{
			name: "signature does not fit",
			pod:  oneApp,
			memory: failing(podstate.EnsureImage{Container: "app"}.Key(), podstate.Failure{
				Count:   2,
				Image:   "a",
				Reason:  "SignatureValidationFailed",
				Message: "bad",
			}),
			want: `app: waiting ImagePullBackOff "Back-off pulling image \"a\": SignatureValidationFailed: bad"`,
		},
		{
			name: "another image failed",
			pod:  oneApp,
			memory: failing(podstate.EnsureImage{Container: "app"}.Key(),
				podstate.Failure{Count: 2, Image: "b", Reason: "ErrImagePull"}),
			want: "app: waiting ContainerCreating",
		},
		{
			name: "image is never pulled",
			pod:  oneApp,
			memory: failing(podstate.EnsureImage{Container: "app"}.Key(), podstate.Failure{
				Count:   5,
				Image:   "a",
				Reason:  "ErrImageNeverPull",
				Message: `Container image "a" is not present with pull policy of Never`,
			}),
			want: `app: waiting ErrImageNeverPull "Container image \"a\" is not present with pull policy of Never"`,
		},
		{
			name: "image name is none",
			pod:  oneApp,
			memory: failing(podstate.EnsureImage{Container: "app"}.Key(), podstate.Failure{
				Count:   5,
				Image:   "a",
				Reason:  "InvalidImageName",
				Message: "m",
			}),
			want: `app: waiting InvalidImageName "m"`,
		},
		{
			name: "config error",
			pod:  oneApp,
			memory: failing(podstate.CreateContainer{Name: "app"}.Key(), podstate.Failure{
				Count:   1,
				Reason:  "CreateContainerConfigError",
				Message: `secret "x" not found`,
			}),
			want: `app: waiting CreateContainerConfigError "secret \"x\" not found"`,
		},
		{
			name: "create error",
			pod:  oneApp,
			memory: failing(podstate.CreateContainer{Name: "app"}.Key(),
				podstate.Failure{Count: 1, Reason: "CreateContainerError", Message: "no space"}),
			want: `app: waiting CreateContainerError "no space"`,
		},
		{name: "start error", pod: oneApp, facts: []podstate.Container{instance("app", 0, podstate.ContainerExited, 128)},
			memory: failing(podstate.StartContainer{ID: "app0"}.Key(), notStarted),
			want:   `app: waiting RunContainerError "no such file", last exit 128 Error`},
		{
			name:   "start error of a pod that runs once",
			pod:    neverIt,
			facts:  []podstate.Container{instance("app", 0, podstate.ContainerExited, 128)},
			memory: failing(podstate.StartContainer{ID: "app0"}.Key(), notStarted),
			want:   "app: exit 128 Error",
		},
		{name: "hook runs", pod: hookApp, facts: []podstate.Container{instance("app", 0, podstate.ContainerRunning, 0)},
			memory: remembering(podstate.InstanceMemory{Started: true}), want: "app: waiting ContainerCreating"},
		{name: "hook is through", pod: hookApp, facts: []podstate.Container{instance("app", 0, podstate.ContainerRunning, 0)},
			memory: remembering(podstate.InstanceMemory{Started: true, Hook: podstate.Hook{Ended: true}}),
			want:   "app: running, ready, started"},
		{name: "hook failed", pod: hookApp, facts: []podstate.Container{instance("app", 0, podstate.ContainerRunning, 0)},
			memory: remembering(podstate.InstanceMemory{Started: true, Hook: podstate.Hook{Ended: true, Failure: "exit 1"}}),
			want:   `app: waiting PostStartHookError "exit 1"`},
		{
			name:   "hook failed, container killed",
			pod:    hookApp,
			facts:  []podstate.Container{instance("app", 0, podstate.ContainerExited, 137)},
			memory: remembering(podstate.InstanceMemory{Started: true, Hook: podstate.Hook{Ended: true, Failure: "exit 1"}}),
			want:   `app: waiting PostStartHookError "exit 1", last exit 137 Error`,
		},

		{name: "was running, the runtime knows nothing", pod: oneApp,
			shown: `{containerStatuses: [{name: app, containerID: "cri://x", state: {running: {}}}]}`,
			want: "app: waiting ContainerCreating, restarts 1, last exit 137 ContainerStatusUnknown " +
				"\"The container could not be located when the pod was deleted.  The container used to be Running\""},
		{name: "was running and is deleted, the runtime knows nothing",
			pod:   `{metadata: {deletionTimestamp: "2030-01-01T00:00:00Z"}, spec: {containers: [{name: app}]}}`,
			shown: `{containerStatuses: [{name: app, containerID: "cri://x", state: {running: {}}}]}`,
			want: "app: exit 137 ContainerStatusUnknown " +
				"\"The container could not be located when the pod was terminated\""},
		{name: "had ended, the runtime knows nothing", pod: neverIt,
			shown: `{containerStatuses: [{name: app, containerID: "cri://x", restartCount: 5,
				state: {terminated: {exitCode: 1}}}]}`,
			want: "app: exit 1, restarts 5"},
		{
			name:  "the status shows the instance with its probes passed",
			pod:   probedApp,
			facts: []podstate.Container{instance("app", 1, podstate.ContainerRunning, 0)},
			shown: `{containerStatuses: [{name: app, containerID: "cri://app1", restartCount: 1,
				ready: true, started: true, state: {running: {}}}]}`,
			want: "app: running, ready, started, restarts 1",
		},
		{
			name:  "the status shows an earlier instance with its probes passed",
			pod:   probedApp,
			facts: []podstate.Container{instance("app", 1, podstate.ContainerRunning, 0)},
			shown: `{containerStatuses: [{name: app, containerID: "cri://app0",
				ready: true, started: true, state: {running: {}}}]}`,
			want: "app: running, restarts 1",
		},
		{
			name:  "runtime is unsure",
			pod:   oneApp,
			facts: []podstate.Container{instance("app", 0, podstate.ContainerUnknown, 0)},
			shown: `{containerStatuses: [{name: app, containerID: "cri://app0", state: {running: {}}}]}`,
			want:  "app: exit 137 ContainerStatusUnknown \"The container could not be located when the pod was terminated\"",
		},
		{
			name:  "message on disk is gone",
			pod:   neverIt,
			facts: []podstate.Container{instance("app", 0, podstate.ContainerExited, 1)},
			shown: `{containerStatuses: [{name: app, containerID: "cri://app0", state: {terminated: {exitCode: 1,
				message: "why", containerID: "cri://app0"}}}]}`,
			want: `app: exit 1 Error "why"`,
		},
		{
			name:  "ephemeral container",
			pod:   `{spec: {containers: [{name: app}], ephemeralContainers: [{name: debug, image: a}]}}`,
			facts: []podstate.Container{instance("debug", 0, podstate.ContainerRunning, 0)},
			want:  "app: waiting ContainerCreating\ndebug: running",
		},
		{
			name: "sorted by name",
			pod:  `{spec: {containers: [{name: b}, {name: a}]}}`,
			want: "a: waiting ContainerCreating\nb: waiting ContainerCreating",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			pod := podOf(t, tt.pod)
			if tt.shown != "" {
				fromYAML(t, tt.shown, &pod.Status)
			}
			m := podstate.NewMemory()
			if tt.memory != nil {
				tt.memory(&m)
			}
			o := podstate.Observed{
				Now:        epoch.Add(time.Second),
				Sandboxes:  inHere,
				Containers: tt.facts,
				Memory:     m.Recall(),
				Node:       nodeWith(),
			}
			lines := strings.SplitN(statusText(Pod(podstate.Desired{Pod: pod}, o).Status), "\n", 3)
			if lines[2] != tt.want {
				t.Errorf("got\n%s\nwant\n%s", lines[2], tt.want)
			}
		})
	}
}

// TestEnds checks how pods end.
func TestEnds(t *testing.T) {
	evicted := &podstate.Stop{
		Cause:    podstate.StopEvicted,
		Deadline: epoch,
		Reason:   "Evicted",
		Message:  "The node was low on resource: memory.",
	}
	ownFault := *evicted
	ownFault.Own = true
	deleted := &podstate.Stop{Cause: podstate.StopDeleted, Deadline: epoch}
	const waiting = "!Ready(ContainersNotReady: containers with unready status: [app]) " +
		"!ContainersReady(ContainersNotReady: containers with unready status: [app]) "
	const failed = "!PodReadyToStartContainers Initialized !Ready(PodFailed) !ContainersReady(PodFailed) PodScheduled\n"
	tests := []struct {
		name      string
		pod       string
		shown     string
		desired   podstate.Desired
		sandboxes []podstate.Sandbox
		facts     []podstate.Container
		want      string
	}{
		{name: "completed, sandbox still there", pod: neverIt, shown: `{phase: Running}`, sandboxes: inHere,
			facts: []podstate.Container{instance("app", 0, podstate.ContainerExited, 0)},
			want: "Running\nPodReadyToStartContainers Initialized(PodCompleted) " +
				"!Ready(PodCompleted) !ContainersReady(PodCompleted) " +
				"PodScheduled\napp: exit 0 Completed"},
		{
			name:      "completed",
			pod:       neverIt,
			shown:     `{phase: Running}`,
			sandboxes: dead,
			facts:     []podstate.Container{instance("app", 0, podstate.ContainerExited, 0)},
			want: "Succeeded\n!PodReadyToStartContainers Initialized(PodCompleted) " +
				"!Ready(PodCompleted) !ContainersReady(PodCompleted) " +
				"PodScheduled\napp: exit 0 Completed",
		},
		{
			name:      "evicted, still running",
			pod:       oneApp,
			shown:     `{phase: Running}`,
			desired:   podstate.Desired{Stop: evicted},
			sandboxes: inHere,
			facts:     []podstate.Container{instance("app", 0, podstate.ContainerRunning, 0)},
			want: "Running\nPodReadyToStartContainers Initialized !Ready(PodFailed) !ContainersReady(PodFailed) PodScheduled\n" +
				"app: running, ready, started",
		},
		{name: "evicted", pod: oneApp, shown: `{phase: Running}`, desired: podstate.Desired{Stop: evicted}, sandboxes: dead,
			facts: []podstate.Container{instance("app", 0, podstate.ContainerExited, 0)},
			want: "Failed Evicted \"The node was low on resource: memory.\"\n" +
				"DisruptionTarget(TerminationByKubelet: The node was low on resource: memory.) " + failed +
				"app: exit 0 Completed"},
		{
			name:      "evicted for its own fault",
			pod:       oneApp,
			shown:     `{phase: Running}`,
			desired:   podstate.Desired{Stop: &ownFault},
			sandboxes: dead,
			facts:     []podstate.Container{instance("app", 0, podstate.ContainerExited, 0)},
			want:      "Failed Evicted \"The node was low on resource: memory.\"\n" + failed + "app: exit 0 Completed",
		},
		{name: "past its deadline", pod: `{spec: {activeDeadlineSeconds: 5, containers: [{name: app}]}}`,
			shown: `{phase: Running, startTime: "2029-12-31T23:00:00Z"}`, sandboxes: dead,
			facts: []podstate.Container{instance("app", 0, podstate.ContainerExited, 0)},
			want: "Failed DeadlineExceeded \"Pod was active on the node longer than the specified deadline\"\n" + failed +
				"app: exit 0 Completed"},
		{
			name:      "deleted while running",
			pod:       oneApp,
			shown:     `{phase: Running}`,
			desired:   podstate.Desired{Stop: deleted},
			sandboxes: inHere,
			facts:     []podstate.Container{instance("app", 0, podstate.ContainerRunning, 0)},
			want: "Running\nPodReadyToStartContainers Initialized Ready ContainersReady PodScheduled\n" +
				"app: running, ready, started",
		},
		{
			name:      "deleted, ended well",
			pod:       oneApp,
			shown:     `{phase: Running}`,
			desired:   podstate.Desired{Stop: deleted},
			sandboxes: dead,
			facts:     []podstate.Container{instance("app", 0, podstate.ContainerExited, 0)},
			want: "Succeeded\n!PodReadyToStartContainers Initialized(PodCompleted) " +
				"!Ready(PodCompleted) !ContainersReady(PodCompleted) " +
				"PodScheduled\napp: exit 0 Completed",
		},
		{
			name:      "deleted, killed",
			pod:       oneApp,
			shown:     `{phase: Running}`,
			desired:   podstate.Desired{Stop: deleted},
			sandboxes: dead,
			facts:     []podstate.Container{instance("app", 0, podstate.ContainerExited, 137)},
			want:      "Failed\n" + failed + "app: exit 137 Error",
		},
		{name: "deleted before it started", pod: oneApp, shown: `{phase: Pending}`, desired: podstate.Desired{Stop: deleted},
			want: "Failed\n!PodReadyToStartContainers Initialized " + waiting + "PodScheduled\n" +
				"app: exit 137 ContainerStatusUnknown \"The container could not be located when the pod was terminated\""},
		{name: "deleted while its second init container waits", desired: podstate.Desired{Stop: deleted}, sandboxes: dead,
			pod:   `{spec: {restartPolicy: Always, initContainers: [{name: one}, {name: two}], containers: [{name: app}]}}`,
			facts: []podstate.Container{instance("one", 0, podstate.ContainerExited, 0)},
			want: "Failed\n!PodReadyToStartContainers !Initialized(ContainersNotInitialized: " +
				"containers with incomplete status: [two]) " +
				waiting + "PodScheduled\none: exit 0 Completed, ready\ntwo: waiting PodInitializing\napp: waiting PodInitializing"},
		{
			name:      "a static pod has no end",
			desired:   podstate.Desired{Stop: deleted},
			shown:     `{phase: Running}`,
			sandboxes: dead,
			pod: `{metadata: {annotations: {kubernetes.io/config.source: file}}, spec: {restartPolicy: Always,
				containers: [{name: app}]}}`,
			facts: []podstate.Container{instance("app", 0, podstate.ContainerExited, 137)},
			want:  "Running\n" + unready + "\napp: exit 137 Error",
		},
		{
			name: "rejected",
			pod:  oneApp,
			desired: podstate.Desired{Rejected: &podstate.Rejection{
				Reason:  "OutOfcpu",
				Message: "Node didn't have enough resource: cpu",
			}},
			shown: `{phase: Pending, conditions: [{type: PodScheduled, status: "True"}, {type: mine, status: "True"}]}`,
			want:  "Failed OutOfcpu \"Pod was rejected: Node didn't have enough resource: cpu\"\nmine",
		},
		{
			name: "rejected by an earlier run of the agent",
			pod:  oneApp,
			shown: `{phase: Failed, reason: OutOfcpu, message: "Pod was rejected: no cpu",
				conditions: [{type: PodScheduled, status: "True"}, {type: mine, status: "True"}]}`,
			want: "Failed OutOfcpu \"Pod was rejected: no cpu\"\nmine",
		},
		{name: "what has succeeded stays so", pod: oneApp, shown: `{phase: Succeeded, reason: Test, message: test,
			containerStatuses: [{name: app, state: {terminated: {exitCode: 0, reason: Completed}}}]}`,
			want: "Succeeded Test \"test\"\n!PodReadyToStartContainers Initialized(PodCompleted) !Ready(PodCompleted) " +
				"!ContainersReady(PodCompleted) PodScheduled\napp: exit 0 Completed"},
		{
			name:      "what has failed stays so",
			pod:       oneApp,
			shown:     `{phase: Failed, reason: Evicted, message: m}`,
			desired:   podstate.Desired{Stop: deleted},
			sandboxes: dead,
			facts:     []podstate.Container{instance("app", 0, podstate.ContainerExited, 0)},
			want:      "Failed Evicted \"m\"\n" + failed + "app: exit 0 Completed",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			pod := podOf(t, tt.pod)
			if tt.shown != "" {
				fromYAML(t, tt.shown, &pod.Status)
			}
			tt.desired.Pod = pod
			m := podstate.NewMemory()
			for _, s := range tt.sandboxes {
				m.StoppedSandboxes[s.ID] = !s.Ready
			}
			o := podstate.Observed{
				Now:        epoch,
				Sandboxes:  tt.sandboxes,
				Containers: tt.facts,
				Memory:     m.Recall(),
				Node:       nodeWith(),
			}
			if got := statusText(Pod(tt.desired, o).Status); got != tt.want {
				t.Errorf("got\n%s\nwant\n%s", got, tt.want)
			}
		})
	}
}

func TestAddresses(t *testing.T) {
	tests := []struct {
		name    string
		pod     string
		node    []string
		ipv6    bool
		sandbox podstate.Sandbox
		shown   string
		want    string
	}{
		{
			name:    "IPv4 first, whatever the node lists first",
			node:    []string{"2001:db8::1", "192.0.2.1"},
			sandbox: podstate.Sandbox{Ready: true, IPs: []string{"fd01::2", "10.0.0.2"}},
			want:    "10.0.0.2 fd01::2",
		},
		{
			name:    "IPv6 first, whatever the node lists first",
			node:    []string{"192.0.2.1", "2001:db8::1"},
			ipv6:    true,
			sandbox: podstate.Sandbox{Ready: true, IPs: []string{"10.0.0.2", "fd01::2"}},
			want:    "fd01::2 10.0.0.2",
		},
		{
			name:    "one of each family, spelled as usual",
			node:    []string{"192.0.2.1"},
			sandbox: podstate.Sandbox{Ready: true, IPs: []string{"10.0.0.2", "10.0.0.3", "fd01:0:0::2"}},
			want:    "10.0.0.2 fd01::2",
		},
		{
			name:    "IPv6 first, the node's addresses are not known yet",
			ipv6:    true,
			sandbox: podstate.Sandbox{Ready: true, IPs: []string{"10.0.0.2", "fd01::2"}},
			want:    "fd01::2 10.0.0.2",
		},
		{
			name:  "kept when the sandbox is gone",
			node:  []string{"192.0.2.1"},
			shown: `{podIP: 10.0.0.7, podIPs: [{ip: 10.0.0.7}]}`,
			want:  "10.0.0.7",
		},
		{
			name:    "host's network",
			pod:     `{spec: {hostNetwork: true}}`,
			node:    []string{"192.0.2.1", "2001:db8::1"},
			sandbox: podstate.Sandbox{Ready: true},
			want:    "192.0.2.1 2001:db8::1",
		},
		{
			name:  "host's network, the node has another address",
			pod:   `{spec: {hostNetwork: true}}`,
			node:  []string{"192.0.2.2"},
			shown: `{podIP: 192.0.2.1, podIPs: [{ip: 192.0.2.1}]}`,
			want:  "192.0.2.2",
		},
		{
			name:  "host's network, the node is no longer dual-stack",
			pod:   `{spec: {hostNetwork: true}}`,
			node:  []string{"192.0.2.1"},
			shown: `{podIP: 192.0.2.1, podIPs: [{ip: 192.0.2.1}, {ip: "2001:db8::1"}]}`,
			want:  "192.0.2.1",
		},
		{
			name:  "host's network, the node's addresses are not known yet",
			pod:   `{spec: {hostNetwork: true}}`,
			shown: `{podIP: 192.0.2.1, podIPs: [{ip: 192.0.2.1}]}`,
			want:  "192.0.2.1",
		},
		{
			name:  "host's network, the node has become dual-stack",
			pod:   `{spec: {hostNetwork: true}}`,
			node:  []string{"192.0.2.1", "2001:db8::1"},
			shown: `{podIP: 192.0.2.1, podIPs: [{ip: 192.0.2.1}]}`,
			want:  "192.0.2.1 2001:db8::1",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			pod := podOf(t, tt.pod)
			if tt.shown != "" {
				fromYAML(t, tt.shown, &pod.Status)
			}
			node := nodeWith(tt.node...)
			node.IPv6First = tt.ipv6
			st := Pod(podstate.Desired{Pod: pod}, podstate.Observed{
				Now:       epoch,
				Sandboxes: []podstate.Sandbox{tt.sandbox},
				Node:      node,
			}).Status
			var all []string
			for _, ip := range st.PodIPs {
				all = append(all, ip.IP)
			}
			if got := strings.Join(all, " "); got != tt.want || st.PodIP != all[0] {
				t.Errorf("got %s (%s), want %s", got, st.PodIP, tt.want)
			}
			if len(st.HostIPs) != len(tt.node) || len(tt.node) > 0 && st.HostIP != tt.node[0] {
				t.Errorf("got host %s %v, want %v", st.HostIP, st.HostIPs, tt.node)
			}
		})
	}
}

func TestStatusKeepsAndBounds(t *testing.T) {
	pod := podOf(t, `{metadata: {generation: 7}, spec: {containers: [{name: app, volumeMounts:
		[{name: v, mountPath: /v}, {name: w, mountPath: /w, readOnly: true, recursiveReadOnly: IfPossible}]}, {name: b}]}}`)
	then := metav1.NewTime(epoch.Add(-time.Hour))
	pod.Status.StartTime, pod.Status.ObservedGeneration = &then, 6
	long := instance("app", 0, podstate.ContainerExited, 1)
	long.Message = strings.Repeat("x", 20<<10)
	o := podstate.Observed{
		Now:        epoch,
		Sandboxes:  inHere,
		Containers: []podstate.Container{long},
		Node:       podstate.Node{RuntimeName: "cri", RecursiveReadOnly: new(true)},
	}
	st := Pod(podstate.Desired{Pod: pod}, o).Status
	if !st.StartTime.Equal(&then) || st.ObservedGeneration != 7 || st.QOSClass != corev1.PodQOSBestEffort {
		t.Errorf("got start %v, generation %d, class %s", st.StartTime, st.ObservedGeneration, st.QOSClass)
	}
	app := st.ContainerStatuses[0]
	if n := len(app.State.Terminated.Message); n != 6<<10 {
		t.Errorf("got a message of %d bytes, want 6 KiB: two containers share 12 KiB", n)
	}
	if app.ContainerID != "cri://app0" || app.State.Terminated.ContainerID != "cri://app0" {
		t.Errorf("got container IDs %q, %q", app.ContainerID, app.State.Terminated.ContainerID)
	}
	if m := app.VolumeMounts; len(m) != 2 || m[0].RecursiveReadOnly != nil ||
		*m[1].RecursiveReadOnly != corev1.RecursiveReadOnlyEnabled {
		t.Errorf("got volume mounts %+v", m)
	}
}
