package status

import (
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 678, time.UTC)

func TestPhaseNeverStepsBack(t *testing.T) {
	last := corev1.PodStatus{Phase: corev1.PodSucceeded, Message: "kept"}
	got, problems := Settle(testPod("a"), &last, corev1.PodStatus{Phase: corev1.PodRunning}, epoch)
	if got.Phase != corev1.PodSucceeded || got.Message != "kept" || len(problems) != 1 ||
		!errors.Is(problems[0], errPhaseBack) {
		t.Errorf("got %s %q, problems %v", got.Phase, got.Message, problems)
	}
}

// TestMirrorPodRunsAgain checks that a static pod that the node refused or ended runs again, and its mirror shows
// that.
func TestMirrorPodRunsAgain(t *testing.T) {
	mirror := testPod("a")
	mirror.Annotations = map[string]string{"kubernetes.io/config.mirror": "0123"}
	last := corev1.PodStatus{Phase: corev1.PodFailed, Reason: "OutOfcpu"}
	got, problems := Settle(mirror, &last, corev1.PodStatus{Phase: corev1.PodRunning}, epoch)
	if got.Phase != corev1.PodRunning || got.Reason != "" || len(problems) != 0 {
		t.Errorf("got %s %q and problems %v, want Running", got.Phase, got.Reason, problems)
	}
}

// TestMirrorPodObservesNoGeneration checks that the generation of a mirror pod, which is not that of the manifest,
// counts as not observed.
func TestMirrorPodObservesNoGeneration(t *testing.T) {
	for annotation, want := range map[string]int64{"kubernetes.io/config.mirror": 0, "other": 3} {
		pod := testPod("a")
		pod.Generation, pod.Annotations = 3, map[string]string{annotation: "0123"}
		ready := corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
		got, _ := Settle(pod, &corev1.PodStatus{}, ready, epoch)
		if got.ObservedGeneration != want || got.Conditions[0].ObservedGeneration != want {
			t.Errorf("%s: got generation %d, of Ready %d, want %d", annotation, got.ObservedGeneration,
				got.Conditions[0].ObservedGeneration, want)
		}
	}
}

func TestTerminatedContainersStayTerminated(t *testing.T) {
	always, never := corev1.ContainerRestartPolicyAlways, corev1.ContainerRestartPolicyNever
	onFailure := corev1.ContainerRestartPolicyOnFailure
	rule := func(op corev1.ContainerRestartRuleOnExitCodesOperator, codes ...int32) []corev1.ContainerRestartRule {
		return []corev1.ContainerRestartRule{{Action: corev1.ContainerRestartRuleActionRestart,
			ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: op, Values: codes}}}
	}
	for _, c := range []struct {
		name      string
		policy    corev1.RestartPolicy
		container corev1.Container
		init      bool
		code      int32
		may       bool
	}{
		{name: "never", policy: "Never", code: 1},
		{name: "always", policy: "Always", code: 0, may: true},
		{name: "always, init done", policy: "Always", init: true, code: 0, may: true},
		{name: "on failure, failed", policy: "OnFailure", code: 1, may: true},
		{name: "on failure, done", policy: "OnFailure", code: 0},
		{name: "never, init failed", policy: "Never", init: true, code: 1},
		{name: "on failure, init done", policy: "OnFailure", init: true, code: 0},
		{
			name:      "sidecar",
			policy:    "Never",
			init:      true,
			code:      1,
			may:       true,
			container: corev1.Container{RestartPolicy: &always},
		},
		{name: "own policy always", policy: "Never", code: 0, may: true, container: corev1.Container{RestartPolicy: &always}},
		{name: "own policy never", policy: "OnFailure", code: 1, container: corev1.Container{RestartPolicy: &never}},
		{
			name:      "own policy on failure",
			policy:    "Never",
			code:      1,
			may:       true,
			container: corev1.Container{RestartPolicy: &onFailure},
		},
		{name: "rule in", policy: "Never", code: 42, may: true,
			container: corev1.Container{RestartPolicy: &never, RestartPolicyRules: rule("In", 42)}},
		{name: "rule in, other code", policy: "Never", code: 41,
			container: corev1.Container{RestartPolicy: &never, RestartPolicyRules: rule("In", 42)}},
		{name: "rule not in", policy: "Never", code: 41, may: true,
			container: corev1.Container{RestartPolicy: &never, RestartPolicyRules: rule("NotIn", 42)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.container.Name = "x"
			pod := &corev1.Pod{Spec: corev1.PodSpec{RestartPolicy: c.policy, Containers: []corev1.Container{c.container}}}
			old := []corev1.ContainerStatus{{Name: "x", State: corev1.ContainerState{
				Terminated: &corev1.ContainerStateTerminated{ExitCode: c.code}}}}
			now := []corev1.ContainerStatus{{Name: "x", State: corev1.ContainerState{
				Waiting: &corev1.ContainerStateWaiting{Reason: "PodInitializing"}}}}
			last, want := corev1.PodStatus{ContainerStatuses: old}, corev1.PodStatus{ContainerStatuses: now}
			if c.init {
				pod.Spec.Containers, pod.Spec.InitContainers = nil, pod.Spec.Containers
				last, want = corev1.PodStatus{InitContainerStatuses: old}, corev1.PodStatus{InitContainerStatuses: now}
			}
			got, problems := Settle(pod, &last, want, epoch)
			state := append(got.ContainerStatuses, got.InitContainerStatuses...)[0].State
			if (state.Terminated == nil) != c.may || (len(problems) == 0) != c.may {
				t.Errorf("got state %+v and problems %v, want a restart allowed: %v", state, problems, c.may)
			}
			if now[0].State.Waiting == nil {
				t.Error("the caller's status: got it changed, want it as it was")
			}
		})
	}
}

func TestTransitionTimes(t *testing.T) {
	pod, before := testPod("a"), metav1.NewTime(time.Unix(1000, 0))
	last := corev1.PodStatus{StartTime: &before, Conditions: []corev1.PodCondition{
		{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: before},
		{Type: corev1.ContainersReady, Status: corev1.ConditionTrue, LastTransitionTime: before},
		{Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: "Deferred", LastTransitionTime: before},
	}}
	want := corev1.PodStatus{Conditions: []corev1.PodCondition{
		{Type: corev1.PodReady, Status: corev1.ConditionTrue, Message: "other"},
		{Type: corev1.ContainersReady, Status: corev1.ConditionFalse},
		{Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: "Infeasible"},
	}}
	got, _ := Settle(pod, &last, want, epoch)
	now := metav1.NewTime(epoch.Truncate(time.Second))
	for t2, at := range map[corev1.PodConditionType]metav1.Time{
		corev1.PodReady: before, corev1.ContainersReady: now, corev1.PodResizePending: now,
	} {
		if c := podutil.Condition(got.Conditions, t2); !c.LastTransitionTime.Equal(&at) {
			t.Errorf("%s: got %v, want %v", t2, c.LastTransitionTime, at)
		}
	}
	if !got.StartTime.Equal(&before) {
		t.Errorf("start time: got %v, want %v", got.StartTime, before)
	}
	if c := podutil.Condition(got.Conditions, corev1.PodReady); c.ObservedGeneration != 1 {
		t.Errorf("observed generation %d, want the pod's", c.ObservedGeneration)
	}
}

func TestTerminalPodIsNotReady(t *testing.T) {
	want := fullStatus(1)
	want.Phase = corev1.PodFailed
	got, _ := Settle(testPod("a"), &corev1.PodStatus{}, want, epoch)
	for _, c := range []corev1.PodConditionType{corev1.PodReady, corev1.ContainersReady} {
		if got := podutil.Condition(got.Conditions, c); got.Status != corev1.ConditionFalse || got.Reason != "PodFailed" {
			t.Errorf("condition %s: got %+v, want False, PodFailed", c, got)
		}
	}
}
