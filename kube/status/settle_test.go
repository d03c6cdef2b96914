package status

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

func TestPhaseNeverStepsBack(t *testing.T) {
	last := corev1.PodStatus{Phase: corev1.PodSucceeded, Message: "kept"}
	got, problems := Settle(testPod("a"), &last, corev1.PodStatus{Phase: corev1.PodRunning})
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
	got, problems := Settle(mirror, &last, corev1.PodStatus{Phase: corev1.PodRunning})
	if got.Phase != corev1.PodRunning || got.Reason != "" || len(problems) != 0 {
		t.Errorf("got %s %q and problems %v, want Running", got.Phase, got.Reason, problems)
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
		role      string // "init" or "ephemeral"; else it is an app container
		// restartsAll: another container of the pod has a rule that restarts all containers.
		restartsAll bool
		code        int32
		may         bool
	}{
		{name: "never", policy: "Never", code: 1},
		{name: "always", policy: "Always", code: 0, may: true},
		{name: "always, init done", policy: "Always", role: "init", code: 0, may: true},
		{name: "on failure, failed", policy: "OnFailure", code: 1, may: true},
		{name: "on failure, done", policy: "OnFailure", code: 0},
		{name: "never, init failed", policy: "Never", role: "init", code: 1},
		{name: "on failure, init done", policy: "OnFailure", role: "init", code: 0},
		{
			name:      "sidecar",
			policy:    "Never",
			role:      "init",
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
		{name: "always, own policy never", policy: "Always", code: 1, container: corev1.Container{RestartPolicy: &never}},
		{name: "always, own policy on failure", policy: "Always", container: corev1.Container{RestartPolicy: &onFailure}},
		{name: "always, own policy on failure, failed", policy: "Always", code: 1, may: true,
			container: corev1.Container{RestartPolicy: &onFailure}},
		{name: "always, init with own policy never", policy: "Always", role: "init", code: 1,
			container: corev1.Container{RestartPolicy: &never}},
		{name: "always, init with own policy on failure", policy: "Always", role: "init",
			container: corev1.Container{RestartPolicy: &onFailure}},
		{name: "always, failed init with own policy on failure", policy: "Always", role: "init", code: 1,
			may: true, container: corev1.Container{RestartPolicy: &onFailure}},
		{name: "restarts all", policy: "Never", restartsAll: true, code: 1, may: true},
		{name: "restarts all, init done", policy: "OnFailure", role: "init", restartsAll: true, may: true},
		{name: "always, ephemeral", policy: "Always", role: "ephemeral", code: 137},
		{name: "never, ephemeral", policy: "Never", role: "ephemeral", code: 137},
		{name: "restarts all, ephemeral", policy: "Always", role: "ephemeral", restartsAll: true, code: 137},
		{name: "rule in", policy: "Never", code: 42, may: true,
			container: corev1.Container{RestartPolicy: &never, RestartPolicyRules: rule("In", 42)}},
		{name: "rule in, other code", policy: "Never", code: 41,
			container: corev1.Container{RestartPolicy: &never, RestartPolicyRules: rule("In", 42)}},
		{name: "rule not in", policy: "Never", code: 41, may: true,
			container: corev1.Container{RestartPolicy: &never, RestartPolicyRules: rule("NotIn", 42)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.container.Name = "x"
			pod := &corev1.Pod{Spec: corev1.PodSpec{RestartPolicy: c.policy}}
			if c.restartsAll {
				rules := rule("In", 42)
				rules[0].Action = corev1.ContainerRestartRuleActionRestartAllContainers
				pod.Spec.Containers = []corev1.Container{{Name: "other", RestartPolicy: &never, RestartPolicyRules: rules}}
			}
			old := []corev1.ContainerStatus{{Name: "x", State: corev1.ContainerState{
				Terminated: &corev1.ContainerStateTerminated{ExitCode: c.code}}}}
			now := []corev1.ContainerStatus{{Name: "x", State: corev1.ContainerState{
				Waiting: &corev1.ContainerStateWaiting{Reason: "PodInitializing"}}}}
			last, want := corev1.PodStatus{}, corev1.PodStatus{HostIP: "192.0.2.1"}
			switch c.role {
			case "init":
				pod.Spec.InitContainers = []corev1.Container{c.container}
				last.InitContainerStatuses, want.InitContainerStatuses = old, now
			case "ephemeral":
				pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{
					{EphemeralContainerCommon: corev1.EphemeralContainerCommon(c.container)}}
				last.EphemeralContainerStatuses, want.EphemeralContainerStatuses = old, now
			default:
				pod.Spec.Containers = append(pod.Spec.Containers, c.container)
				last.ContainerStatuses, want.ContainerStatuses = old, now
			}
			got, problems := Settle(pod, &last, want)
			state := podutil.ContainerStatus(&got, "x").State
			if got.HostIP != want.HostIP {
				t.Errorf("got host IP %q, want what is not of the container as it is", got.HostIP)
			}
			if (state.Terminated == nil) != c.may || (len(problems) == 0) != c.may {
				t.Errorf("got state %+v and problems %v, want a restart allowed: %v", state, problems, c.may)
			}
			if now[0].State.Waiting == nil {
				t.Error("the caller's status: got it changed, want it as it was")
			}
		})
	}
}

// TestContradictionIsLoggedOnce checks that what is kept from the published status is logged when it begins, not in
// each sync of the pod.
func TestContradictionIsLoggedOnce(t *testing.T) {
	var log bytes.Buffer
	b := newBench(t, 1)
	b.p.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
	pod := testPod("a")
	pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{
		{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug"}}}
	status := func(state corev1.ContainerState) corev1.PodStatus {
		return corev1.PodStatus{EphemeralContainerStatuses: []corev1.ContainerStatus{{Name: "debug", State: state}}}
	}
	lost := status(corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137}})
	found := status(corev1.ContainerState{Running: &corev1.ContainerStateRunning{}})
	for _, c := range []struct {
		status corev1.PodStatus
		want   int
	}{{lost, 0}, {found, 1}, {found, 1}, {lost, 1}, {found, 2}} {
		b.p.Set(pod, c.status)
		if got := strings.Count(log.String(), "has terminated for good"); got != c.want {
			t.Fatalf("got %d lines, want %d:\n%s", got, c.want, log.String())
		}
	}
}

func TestGenerationsNeverStepBack(t *testing.T) {
	status := func(generation int64) corev1.PodStatus {
		ready := corev1.PodCondition{Type: corev1.PodReady, ObservedGeneration: generation}
		return corev1.PodStatus{ObservedGeneration: generation, Conditions: []corev1.PodCondition{ready}}
	}
	for _, c := range []struct{ last, next, want int64 }{{4, 3, 4}, {3, 4, 4}} {
		last, next := status(c.last), status(c.next)
		got, _ := Settle(testPod("a"), &last, next)
		if next.Conditions[0].ObservedGeneration != c.next {
			t.Error("the caller's conditions: got them changed, want them as they were")
		}
		if got.ObservedGeneration != c.want || got.Conditions[0].ObservedGeneration != c.want {
			t.Errorf("%d after %d: got generation %d, of Ready %d, want %d", c.next, c.last, got.ObservedGeneration,
				got.Conditions[0].ObservedGeneration, c.want)
		}
	}
}
