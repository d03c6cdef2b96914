package execute

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/agent/placement"
	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/agent/spec"
	"github.com/nodelet/nodelet/cri"
	"github.com/nodelet/nodelet/cri/images"
	"github.com/nodelet/nodelet/internal/limiter"
	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/test/placementtest"
	"github.com/nodelet/nodelet/volumes"
	"github.com/nodelet/nodelet/volumes/podfs"
)

// TestLinkName checks that log collectors take the name of the link apart, and it is never too long for a file.
func TestLinkName(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"}}
	if got, want := linkName(pod, "app", "c0de"), "web_default_app-c0de.log"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	pod.Name = strings.Repeat("w", 253)
	if got := linkName(pod, "app", "c0de"); len(got) != 255 || !strings.HasSuffix(got, "w.log") {
		t.Errorf("got %d bytes, %q, want 255 that end in w.log", len(got), got)
	}
}

// TestProblemReason checks the reasons of failures that have none of their own. Statuses and metrics show them.
func TestProblemReason(t *testing.T) {
	for step, want := range map[podstate.Step]string{
		podstate.EnsureImage{}:     "ErrImagePull",
		podstate.CreateContainer{}: "CreateContainerError",
		podstate.StartContainer{}:  "RunContainerError",
		podstate.PostStart{}:       "PostStartHookError",
		podstate.Prepare{}:         "",
	} {
		if got := problem(t.Context(), step, &cri.Error{Err: errors.New("no")}).Reason; got != want {
			t.Errorf("%T: got reason %q, want %q", step, got, want)
		}
	}
	away := &cri.Error{Err: status.Error(codes.Unavailable, "no server")}
	if got := problem(t.Context(), podstate.PostStart{}, away).Reason; got != "" {
		t.Errorf("a hook that the runtime could not be asked to run: got reason %q, want none: it has not failed", got)
	}
}

// deafRuntime creates and starts containers, and its answers are lost.
type deafRuntime struct{ Runtime }

func (deafRuntime) CreateContainer(context.Context, string, *runtimeapi.ContainerConfig,
	*runtimeapi.PodSandboxConfig) (string, error) {
	return "", context.DeadlineExceeded
}

func (deafRuntime) StartContainer(context.Context, string) error { return context.DeadlineExceeded }

// starts are the containers that the placement knows to start.
type starts struct {
	*placement.Manager
	names []string
}

func (s *starts) Starting(_ *corev1.Pod, container string) { s.names = append(s.names, container) }

// TestLostAnswerOfStart checks that a start counts for the placement although its answer is lost: the container may
// run.
func TestLostAnswerOfStart(t *testing.T) {
	placed := &starts{Manager: placementtest.Off()}
	x := New(Backends{Runtime: deafRuntime{}, Placement: placed, Node: func() *spec.Node { return &spec.Node{} }})
	err := x.containers.start(t.Context(), &Task{Pod: &corev1.Pod{}}, podstate.StartContainer{Name: "app"})
	if err == nil || !slices.Equal(placed.names, []string{"app"}) {
		t.Errorf("got %v, %v, want an error and the start of app", placed.names, err)
	}
}

// creations are the containers whose creation counts as failed for the placement.
type creations struct {
	*placement.Manager
	failed []string
}

func (c *creations) NotCreated(_ types.UID, container string) { c.failed = append(c.failed, container) }

// TestLostAnswerOfCreation checks that the placement learns that a creation has failed: its answer may be lost.
func TestLostAnswerOfCreation(t *testing.T) {
	placed, files := &creations{Manager: placementtest.Off()}, &busyRuntime{}
	task, x := largeTask(t)
	x.Runtime, x.Placement = deafRuntime{}, placed
	x.PodFiles, x.Logs = files, files
	err := createApp(t.Context(), x, task)
	if !errors.Is(err, context.DeadlineExceeded) || !slices.Equal(placed.failed, []string{"app"}) {
		t.Errorf("got %v, %v, want an error and that app was not created", placed.failed, err)
	}
}

// lostCgroups are the cgroups of pods in which nothing may be created before they are restored, which fails at first.
type lostCgroups struct {
	countedSandboxes
	Cgroups
	restored int
	early    bool
}

func (c *lostCgroups) Restore(*corev1.Pod) error {
	if c.restored++; c.restored == 1 {
		return errors.New("systemd does not answer")
	}
	return nil
}

func (c *lostCgroups) RunPodSandbox(context.Context, *runtimeapi.PodSandboxConfig, string) (string, error) {
	c.early = c.early || c.restored != 2
	return "id", nil
}

func (c *lostCgroups) CreateContainer(context.Context, string, *runtimeapi.ContainerConfig,
	*runtimeapi.PodSandboxConfig) (string, error) {
	c.early = c.early || c.restored != 2
	return "id", nil
}

// TestCgroupIsRestored checks that the cgroup of a pod is there before the runtime creates a sandbox or a container in
// it: the runtime would make one without limits.
func TestCgroupIsRestored(t *testing.T) {
	task, x := largeTask(t)
	files := &busyRuntime{}
	x.PodFiles, x.Logs = files, files
	x.Events = files
	x.FreshNode = func() (*spec.Node, error) { return x.Node(), nil }
	for kind, create := range map[string]func() error{
		"container": func() error { return createApp(t.Context(), x, task) },
		"sandbox": func() error {
			_, err := x.sandboxes.create(t.Context(), task, podstate.CreateSandbox{})
			return err
		},
	} {
		c := &lostCgroups{}
		x.Runtime, x.Cgroups = c, c
		x.Metrics = c
		if err := create(); err == nil {
			t.Errorf("%s: got no error while the cgroup cannot be made, want one", kind)
		}
		if err := create(); err != nil || c.restored != 2 || c.early {
			t.Errorf("%s: got %v and the cgroup restored %d times, want twice, before the runtime is called", kind, err,
				c.restored)
		}
	}
}

// countedSandboxes has the class gvisor, whose handler is runsc. It records which calls of a handler are counted.
type countedSandboxes struct {
	Runtime
	Objects
	Logs
	Metrics
	counted []string
	fails   error
}

func (*countedSandboxes) Make(string) error { return nil }

func (*countedSandboxes) RuntimeHandler(_ context.Context, class string) (string, error) {
	if class != "gvisor" {
		return "", errors.New("no such class")
	}
	return "runsc", nil
}

func (c *countedSandboxes) RunPodSandbox(context.Context, *runtimeapi.PodSandboxConfig, string) (string, error) {
	time.Sleep(time.Second)
	return "id", c.fails
}

func (c *countedSandboxes) SandboxRun(handler string, took time.Duration, err error) {
	c.counted = append(c.counted, fmt.Sprintf("%s %s %v", handler, took, err))
}

// TestSandboxesAreCounted checks that calls for a sandbox are counted by the handler, not the class, without the wait
// for a turn, and that an error before the call is not counted.
func TestSandboxesAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &countedSandboxes{}
		x := New(Backends{
			Runtime:   c,
			Logs:      c,
			Metrics:   c,
			Cgroups:   presentCgroups{},
			Objects:   func(*corev1.Pod) Objects { return c },
			FreshNode: func() (*spec.Node, error) { return &spec.Node{NodeDNS: spec.NodeDNS{NoResolvConf: true}}, nil },
		}).sandboxes
		x.limiters.create = limiter.New(1, 1, time.Minute)
		run := func(class string) {
			pod := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "uid"},
				Spec:       corev1.PodSpec{RuntimeClassName: &class, DNSPolicy: corev1.DNSDefault},
			}
			_, _ = x.create(t.Context(), &Task{Pod: pod}, podstate.CreateSandbox{})
		}
		for range 2 {
			go run("gvisor")
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		c.fails = errors.New("no")
		run("gvisor")
		run("unknown")
		if want := []string{"runsc 1s <nil>", "runsc 1s <nil>", "runsc 1s no"}; !slices.Equal(c.counted, want) {
			t.Errorf("got %q, want %q", c.counted, want)
		}
	})
}

// fullVolumes cannot expand the volume, which is mounted.
type fullVolumes struct{ Volumes }

func (fullVolumes) Mount(context.Context, volumes.Request, volumes.Objects) (volumes.Mounted, error) {
	return volumes.Mounted{}, &volumes.ExpansionError{Err: errors.New("the disk is full")}
}

// uncounted counts no step.
type uncounted struct{ Metrics }

func (uncounted) Step(*corev1.Pod, podstate.Step, time.Duration, *podstate.Problem) {}

// podEvents are the reasons of events.
type podEvents []string

func (e *podEvents) PodEvent(_ *corev1.Pod, _, _, reason, _ string) { *e = append(*e, reason) }

// TestExpansionOfMountedVolume checks that an expansion that fails is one event, which says whether the pod has to wait
// for its volume.
func TestExpansionOfMountedVolume(t *testing.T) {
	for last, want := range map[*volumes.Mounted]string{nil: "FailedMount", {}: "VolumeResizeFailed"} {
		var events podEvents
		x := New(Backends{
			Volumes: fullVolumes{},
			Objects: func(*corev1.Pod) Objects { return nil },
			Node:    func() *spec.Node { return &spec.Node{} },
			Events:  &events,
			Metrics: uncounted{},
			Working: func() {},
		})
		pod := &corev1.Pod{Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "data"}}}}
		x.Execute(t.Context(), &Task{
			Log:  slog.New(slog.DiscardHandler),
			Step: podstate.Mount{Volume: "data"},
			Pod:  pod,
			last: last,
		})
		if !slices.Equal(events, podEvents{want}) {
			t.Errorf("refresh %t: got events %q, want %s", last != nil, events, want)
		}
	}
}

// TestFailuresAtTheEnd checks which failures mean that a pod cannot be killed: those to stop it when it ends.
func TestFailuresAtTheEnd(t *testing.T) {
	const killing = "FailedKillPod error killing pod: no"
	for step, want := range map[podstate.Step][2]string{ // of a pod that goes on, and of one that ends
		podstate.StopContainer{Name: "app"}: {"Failed Error: cannot stop the container: no", killing},
		podstate.StopSandbox{ID: "c0de"}:    {"Failed Error: cannot stop sandbox attempt 0 (c0de): no", killing},
		podstate.Unmount{Volume: "data"}:    {1: "Failed Error: cannot unmount volume data: no"},
		podstate.UnprepareClaims{}:          {1: "Failed Error: cannot unprepare resource claims: no"},
		podstate.RemoveCgroup{}:             {1: "Failed Error: cannot remove cgroup: no"},
	} {
		for i, want := range want {
			var events eventTexts
			x := New(Backends{Events: &events})
			x.failureEvents(&Task{Step: step, Ending: i == 1}, &podstate.Problem{Message: "no"})
			if got := strings.Join(events, "\n"); want != "" && got != want {
				t.Errorf("%T, ending %t: got events %q, want %q", step, i == 1, got, want)
			}
		}
	}
}

// eventTexts are the reasons and messages of events.
type eventTexts []string

func (e *eventTexts) PodEvent(_ *corev1.Pod, _, _, reason, message string) {
	*e = append(*e, reason+" "+message)
}

// refreshedVolumes keeps the last request.
type refreshedVolumes struct {
	Volumes
	last volumes.Request
}

func (v *refreshedVolumes) Mount(_ context.Context, r volumes.Request, _ volumes.Objects) (volumes.Mounted, error) {
	v.last = r
	return volumes.Mounted{HostPath: "/data"}, nil
}

// TestRefreshHasMounted checks that the mount of a volume that is mounted is a refresh, and gets what the last mount
// has returned.
func TestRefreshHasMounted(t *testing.T) {
	v, memory := &refreshedVolumes{}, podstate.NewMemory()
	left := NewResults()
	x := New(Backends{
		Volumes: v,
		Objects: func(*corev1.Pod) Objects { return nil },
		Node:    func() *spec.Node { return &spec.Node{} },
		Metrics: uncounted{},
		Working: func() {},
	})
	for _, want := range []volumes.Request{
		{},
		{Request: podfs.Request{Refresh: true}, Mounted: volumes.Mounted{HostPath: "/data"}},
	} {
		task := &Task{
			Log:  slog.New(slog.DiscardHandler),
			Step: podstate.Mount{Volume: "data"},
			Pod:  &corev1.Pod{Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "data"}}}},
		}
		x.Begin(t.Context(), task, &left, memory.Recall(), nil)
		left.Add(x.Execute(t.Context(), task))
		if got := v.last; got.Refresh != want.Refresh || got.Mounted != want.Mounted {
			t.Errorf("got refresh %t of %v, want %t of %v", got.Refresh, got.Mounted, want.Refresh, want.Mounted)
		}
		memory.Volumes["data"] = podstate.Volume{}
	}
}

// TestProblemMessage checks that events and statuses have the kubelet's words for an error of the runtime, and that an
// error without an answer names the call.
func TestProblemMessage(t *testing.T) {
	failed := &cri.Error{Verb: "Call", Object: "default/web", Err: status.Error(codes.Unknown, "no network")}
	silent := &cri.Error{Verb: "Call", Object: "default/web", Err: status.Error(codes.DeadlineExceeded, "late"),
		NoAnswer: time.Second}
	for step, want := range map[podstate.Step]string{
		podstate.CreateSandbox{}:  "rpc error: code = Unknown desc = no network",
		podstate.StartContainer{}: "no network",
		podstate.StopSandbox{}:    "Call default/web: rpc error: code = Unknown desc = no network",
	} {
		if got := problem(t.Context(), step, failed).Message; got != want {
			t.Errorf("%T: got %q, want %q", step, got, want)
		}
		if got := problem(t.Context(), step, silent).Message; got != silent.Error() {
			t.Errorf("%T without an answer: got %q, want %q", step, got, silent)
		}
	}
}

// TestHeldNameIsExplained checks that the message says what to do when containerd does not give up a name. CRI-O gives
// it up by itself.
func TestHeldNameIsExplained(t *testing.T) {
	for step, text := range map[podstate.Step]string{
		podstate.CreateContainer{}: `failed to reserve container name "app_web_default_u_0"; check if another ` +
			`CreateContainer request is in progress: name "app_web_default_u_0" is reserved for "c1"`,
		podstate.CreateSandbox{}: `failed to reserve sandbox name "web_default_u_0": name "web_default_u_0" is ` +
			`reserved for "s1"`,
	} {
		got := problem(t.Context(), step, &cri.Error{Err: status.Error(codes.AlreadyExists, text)}).Message
		if !strings.Contains(got, text) || !strings.HasSuffix(got, nameHeld) {
			t.Errorf("%T: got %q, want the text of containerd and what to do", step, got)
		}
	}
	other := "error reserving ctr name app_0 for id c1: name is reserved"
	got := problem(t.Context(), podstate.CreateContainer{}, &cri.Error{Err: status.Error(codes.Unknown, other)}).Message
	if got != other {
		t.Errorf("got %q, want %q alone", got, other)
	}
}

// TestLongMessageIsCut checks that only a part of an error is kept, in the status and in the event: it may repeat a
// command, the name of an image, or the answer of a registry.
func TestLongMessageIsCut(t *testing.T) {
	long := strings.Repeat("x", 1<<20) + ": too long"
	for step, err := range map[podstate.Step]error{
		podstate.StartContainer{}: &cri.Error{Err: status.Error(codes.Unknown, long)},
		podstate.EnsureImage{}:    &images.Reason{Message: long, Event: long},
		podstate.Mount{}:          errors.New(long),
	} {
		p := problem(t.Context(), step, err)
		if len(p.Message) > podutil.MaxMessage || len(p.Event) > podutil.MaxMessage ||
			!strings.HasSuffix(p.Message, ": too long") {
			t.Errorf("%T: got a message of %d bytes and an event of %d, want at most %d with their end", step,
				len(p.Message), len(p.Event), podutil.MaxMessage)
		}
	}
}

// TestImageFailure checks the reasons of the events about images, which are the kubelet's.
func TestImageFailure(t *testing.T) {
	for reason, want := range map[string]string{
		"ErrImagePull":        "Failed",
		"ErrImageNeverPull":   "ErrImageNeverPull",
		"InvalidImageName":    "InspectFailed",
		"ImageInspectError":   "InspectFailed",
		"RegistryUnavailable": "Failed",
	} {
		if got, _ := imageEvent(podstate.EnsureImage{}, &podstate.Problem{Reason: reason}); got != want {
			t.Errorf("%s: got event %s, want %s", reason, got, want)
		}
	}
}

// lostAnswer is a runtime whose answer to the removal of a container is lost.
type lostAnswer struct{ Runtime }

func (lostAnswer) RemoveContainer(context.Context, string) error {
	return status.Error(codes.DeadlineExceeded, "late")
}

// logList notes the logs that were removed.
type logList struct {
	Logs
	removed []string
}

func (l *logList) RemoveLog(log, _ string) error {
	l.removed = append(l.removed, log)
	return nil
}

// TestLogOfLostRemoval checks that the log of a container goes also if the answer to the container's removal is lost:
// nothing leads to it after that.
func TestLogOfLostRemoval(t *testing.T) {
	logs := &logList{}
	x := &containers{Backends: &Backends{
		Runtime: lostAnswer{},
		Logs:    logs,
		Node:    func() *spec.Node { return &spec.Node{PodLogsDir: "/logs"} },
	}}
	task := &Task{
		Pod:       &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "u1"}},
		Instances: []podstate.Container{{ID: "c0de", Name: "app"}},
	}
	err := x.remove(t.Context(), task, podstate.RemoveContainer{ID: "c0de", Name: "app"})
	if want := []string{"/logs/default_web_u1/app/0.log"}; err == nil || !slices.Equal(logs.removed, want) {
		t.Errorf("got error %v and removed %q, want an error and %q removed", err, logs.removed, want)
	}
}

// claimed gives each container a device by a resource claim.
type claimed struct{ noClaims }

func (claimed) Devices(*corev1.Pod, *corev1.Container) ([]string, error) {
	return []string{"x.com/y=1"}, nil
}

// TestClaimedDevices checks that a container is made with the devices of its resource claims.
func TestClaimedDevices(t *testing.T) {
	x := &inputs{Backends: &Backends{Devices: noDevices{}, Claims: claimed{}}}
	got, err := x.devices(t.Context(), &corev1.Pod{}, &corev1.Container{Name: "app"})
	if err != nil || !slices.Equal(got.CDI, []string{"x.com/y=1"}) {
		t.Errorf("got %+v, %v", got, err)
	}
}

// TestPaths checks that the path of a block volume is that of its device.
func TestPaths(t *testing.T) {
	r := NewResults()
	for name, m := range map[string]volumes.Mounted{"disk": {Device: "/dev/sdb"}, "data": {HostPath: "/srv/data"}} {
		step := podstate.Mount{Volume: name}
		r.Add(&Outcome{Result: podstate.Result{Step: step}, mounted: m})
	}
	want := map[string]string{"disk": "/dev/sdb", "data": "/srv/data"}
	got := r.Paths(nil)
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// listedVolumes has volumes on the disk.
type listedVolumes struct {
	Volumes
	all []volumes.OnDisk
}

func (l listedVolumes) List(types.UID) ([]volumes.OnDisk, error) { return l.all, nil }

// TestListVolumes checks that the plan knows a volume on the disk by the name that the pod has for it.
func TestListVolumes(t *testing.T) {
	r := NewResults()
	r.Add(&Outcome{Result: podstate.Result{Step: podstate.Mount{Volume: "data"}}, mounted: volumes.Mounted{Name: "pv-1"}})
	r.Add(&Outcome{Result: podstate.Result{Step: podstate.Mount{Volume: "conf"}}})
	x := &Executor{backends: &Backends{Volumes: listedVolumes{all: []volumes.OnDisk{
		{Plugin: "kubernetes.io/csi", Name: "pv-1"},
		{Plugin: "kubernetes.io/csi", Name: "pv-2"},
		{Plugin: "kubernetes.io/configmap", Name: "conf"},
		{Plugin: "kubernetes.io/csi", Name: "conf"},
	}}}}
	got, err := x.ListVolumes("uid", &r)
	if want := []string{"data", "pv-2", "conf", "kubernetes.io/csi conf"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	task := &Task{Step: podstate.Unmount{Volume: "data"}}
	x.Begin(t.Context(), task, &r, podstate.Recall{}, nil)
	if task.onDisk != r.onDisk["data"] || task.onDisk.Name != "pv-1" {
		t.Errorf("got %v to unmount, want pv-1", task.onDisk)
	}
}
