package podstatus

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent/podstate"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// TestConditions covers the cases of the kubelet's status/generate_test.go, with container states as in phasePod.
func TestConditions(t *testing.T) {
	tests := []struct {
		name       string
		containers string
		ready      []string // containers that are ready
		phase      corev1.PodPhase
		gates      []corev1.PodConditionType
		shown      []corev1.PodCondition
		want       string
	}{
		{
			name: "all ready", containers: "app=up app=up", ready: []string{"c0", "c1"}, phase: corev1.PodRunning,
			want: "!PodReadyToStartContainers Initialized Ready ContainersReady PodScheduled",
		},
		{
			name: "one unready", containers: "app=up app=up", ready: []string{"c0"}, phase: corev1.PodRunning,
			want: "!PodReadyToStartContainers Initialized !Ready(ContainersNotReady: containers with unready status: [c1]) " +
				"!ContainersReady(ContainersNotReady: containers with unready status: [c1]) PodScheduled",
		},
		{
			name: "a sidecar and an app unready, init containers do not count", containers: "init=ok side=up app=up",
			ready: []string{"c0"}, phase: corev1.PodRunning,
			want: "!PodReadyToStartContainers Initialized !Ready(ContainersNotReady: containers with unready status: [c1 c2]) " +
				"!ContainersReady(ContainersNotReady: containers with unready status: [c1 c2]) PodScheduled",
		},
		{
			name: "succeeded", containers: "init=ok side=fail app=ok", ready: []string{"c0"}, phase: corev1.PodSucceeded,
			want: "!PodReadyToStartContainers Initialized(PodCompleted) !Ready(PodCompleted) " +
				"!ContainersReady(PodCompleted) PodScheduled",
		},
		{
			name: "failed", containers: "app=up", ready: []string{"c0"}, phase: corev1.PodFailed,
			want: "!PodReadyToStartContainers Initialized !Ready(PodFailed) !ContainersReady(PodFailed) PodScheduled",
		},
		{
			name: "init containers not done", containers: "init=ok init=run side=run app=wait", ready: []string{"c0"},
			phase: corev1.PodPending,
			want: "!PodReadyToStartContainers !Initialized(ContainersNotInitialized: " +
				"containers with incomplete status: [c1 c2]) " +
				"!Ready(ContainersNotReady: containers with unready status: [c2 c3]) " +
				"!ContainersReady(ContainersNotReady: containers with unready status: [c2 c3]) PodScheduled",
		},
		{
			name: "initialized before, because an app container has run", containers: "side=wait/fail app=up",
			ready: []string{"c1"}, phase: corev1.PodRunning,
			want: "!PodReadyToStartContainers Initialized !Ready(ContainersNotReady: containers with unready status: [c0]) " +
				"!ContainersReady(ContainersNotReady: containers with unready status: [c0]) PodScheduled",
		},
		{
			name: "initialized before, by the reported status", containers: "init=wait app=wait", phase: corev1.PodPending,
			shown: []corev1.PodCondition{{Type: corev1.PodInitialized, Status: corev1.ConditionTrue}},
			want: "!PodReadyToStartContainers Initialized !Ready(ContainersNotReady: containers with unready status: [c1]) " +
				"!ContainersReady(ContainersNotReady: containers with unready status: [c1]) PodScheduled",
		},
		{
			name: "a readiness gate without a condition", containers: "app=up", ready: []string{"c0"}, phase: corev1.PodRunning,
			gates: []corev1.PodConditionType{"gate1"},
			want: "!PodReadyToStartContainers Initialized " +
				`!Ready(ReadinessGatesNotReady: corresponding condition of pod readiness gate "gate1" does not exist.) ` +
				"ContainersReady PodScheduled",
		},
		{
			name: "a readiness gate that is False", containers: "app=up", ready: []string{"c0"}, phase: corev1.PodRunning,
			gates: []corev1.PodConditionType{"gate1"},
			shown: []corev1.PodCondition{{Type: "gate1", Status: corev1.ConditionFalse}},
			want: "!gate1 !PodReadyToStartContainers Initialized " +
				`!Ready(ReadinessGatesNotReady: the status of pod readiness gate "gate1" is not "True", but False) ` +
				"ContainersReady PodScheduled",
		},
		{
			name: "a readiness gate that is True", containers: "app=up", ready: []string{"c0"}, phase: corev1.PodRunning,
			gates: []corev1.PodConditionType{"gate1"},
			shown: []corev1.PodCondition{{Type: "gate1", Status: corev1.ConditionTrue}},
			want:  "gate1 !PodReadyToStartContainers Initialized Ready ContainersReady PodScheduled",
		},
		{
			name: "conditions of other owners stay", containers: "app=up", ready: []string{"c0"}, phase: corev1.PodRunning,
			shown: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse},
				{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "EvictionByEvictionAPI"}},
			want: "DisruptionTarget(EvictionByEvictionAPI) !PodReadyToStartContainers " +
				"Initialized Ready ContainersReady PodScheduled",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			pod, st := phasePod("Always", tt.containers)
			for _, gate := range tt.gates {
				pod.Spec.ReadinessGates = append(pod.Spec.ReadinessGates, corev1.PodReadinessGate{ConditionType: gate})
			}
			pod.Status.Conditions, st.Phase = tt.shown, tt.phase
			for _, name := range tt.ready {
				for _, list := range [][]corev1.ContainerStatus{st.InitContainerStatuses, st.ContainerStatuses} {
					if c := podutil.StatusIn(list, name); c != nil {
						c.Ready = true
					}
				}
			}
			b := build(pod, podstate.Observed{})
			b.st = st
			b.conditions()
			if got := conditionsText(b.st.Conditions); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

// TestReadyToStart covers the kubelet's cases of PodReadyToStartContainers.
func TestReadyToStart(t *testing.T) {
	ready := podstate.Sandbox{ID: "s0", Ready: true, IPs: []string{"10.0.0.1"}}
	tests := []struct {
		name      string
		sandboxes []podstate.Sandbox
		host      bool
		shown     []corev1.PodCondition
		want      string
	}{
		{name: "no sandbox", want: "no pod sandbox exists"},
		{name: "ready", sandboxes: []podstate.Sandbox{ready}, want: ""},
		{name: "not ready", sandboxes: []podstate.Sandbox{{ID: "s0"}}, want: "pod sandbox is not ready"},
		{name: "removed", shown: []corev1.PodCondition{{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionFalse,
			Reason: "PodSandboxNotReady", Message: "pod sandbox is not ready"}}, want: "pod sandbox is not ready"},
		{
			name:      "ready, after one that is not",
			sandboxes: []podstate.Sandbox{{ID: "s1", Attempt: 1, Ready: true, IPs: []string{"10.0.0.1"}}, {ID: "s0"}},
			want:      "",
		},
		{
			name:      "two ready",
			sandboxes: []podstate.Sandbox{{ID: "s1", Attempt: 1, Ready: true, IPs: []string{"10.0.0.2"}}, ready},
			want:      "multiple pod sandboxes are ready and need to be reconciled",
		},
		{
			name:      "the newest not ready",
			sandboxes: []podstate.Sandbox{{ID: "s1", Attempt: 1}, ready},
			want:      "pod sandbox is not ready",
		},
		{name: "no address", sandboxes: []podstate.Sandbox{{ID: "s0", Ready: true}}, want: "pod sandbox has no IP address"},
		{
			name:      "no address on the host network",
			sandboxes: []podstate.Sandbox{{ID: "s0", Ready: true}},
			host:      true,
			want:      "",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			pod := &corev1.Pod{Spec: corev1.PodSpec{HostNetwork: tt.host}}
			pod.Status.Conditions = tt.shown
			got := build(pod, podstate.Observed{Sandboxes: tt.sandboxes}).readyToStart()
			want := corev1.PodCondition{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionTrue}
			if tt.want != "" {
				want.Status = corev1.ConditionFalse
				want.Reason, want.Message = "PodSandboxNotReady", tt.want
			}
			if got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
		})
	}
}

// TestReadyToStartWaitsForVolumes checks that a sandbox that was made beside the mounts does not count before them.
func TestReadyToStartWaitsForVolumes(t *testing.T) {
	box := []podstate.Sandbox{{ID: "s0", Ready: true, IPs: []string{"10.0.0.1"}}}
	mounted := podstate.NewMemory()
	mounted.Volumes["data"] = podstate.Volume{}
	ran := []podstate.Container{{ID: "c0", Name: "app", SandboxID: "s0"}}
	before := []corev1.PodCondition{{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionTrue}}
	for _, tt := range []struct {
		name       string
		memory     podstate.Memory
		containers []podstate.Container
		shown      []corev1.PodCondition
		want       corev1.ConditionStatus
	}{
		{name: "not mounted", want: corev1.ConditionFalse},
		{name: "mounted", memory: mounted, want: corev1.ConditionTrue},
		{name: "mounted before the agent restarted, by a container", containers: ran, want: corev1.ConditionTrue},
		{name: "mounted before the agent restarted, by the status", shown: before, want: corev1.ConditionTrue},
	} {
		t.Run(tt.name, func(t *testing.T) {
			pod := &corev1.Pod{}
			pod.Spec.Volumes = []corev1.Volume{{Name: "data"},
				{Name: "image", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{}}}}
			pod.Spec.Containers = []corev1.Container{{
				Name: "app", VolumeMounts: []corev1.VolumeMount{{Name: "data"}, {Name: "image"}}}}
			pod.Status.Conditions = tt.shown
			o := podstate.Observed{Sandboxes: box, Containers: tt.containers, Memory: tt.memory.Recall()}
			if got := build(pod, o).readyToStart(); got.Status != tt.want {
				t.Errorf("got %+v, want %s", got, tt.want)
			}
		})
	}
}

func TestTransitionTimes(t *testing.T) {
	then, now := time.Unix(1000, 0), time.Unix(2000, 7)
	pod := &corev1.Pod{}
	pod.Generation = 3
	pod.Status.Conditions = []corev1.PodCondition{{
		Type:               corev1.PodReady,
		Status:             corev1.ConditionTrue,
		LastTransitionTime: seconds(then),
	}}
	b := build(pod, podstate.Observed{Now: now})
	for status, want := range map[corev1.ConditionStatus]time.Time{
		corev1.ConditionTrue:  then,
		corev1.ConditionFalse: time.Unix(2000, 0),
	} {
		c := b.dated(corev1.PodCondition{Type: corev1.PodReady, Status: status})
		if !c.LastTransitionTime.Time.Equal(want) || c.ObservedGeneration != 3 {
			t.Errorf("%s: got transition at %v, generation %d; want %v, generation 3",
				status, c.LastTransitionTime, c.ObservedGeneration, want)
		}
	}
}

// conditionsText returns the conditions in one line: those that are True by name, the others with a "!" and their
// reason.
func conditionsText(all []corev1.PodCondition) string {
	var words []string
	for _, c := range all {
		word := string(c.Type)
		if c.Status != corev1.ConditionTrue {
			word = "!" + word
		}
		if c.Reason != "" && c.Type != corev1.PodReadyToStartContainers { // TestReadyToStart checks that reason
			word += "(" + strings.TrimSuffix(c.Reason+": "+c.Message, ": ") + ")"
		}
		words = append(words, word)
	}
	return strings.Join(words, " ")
}
