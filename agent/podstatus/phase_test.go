package podstatus

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent/podstate"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// inState returns the container status for a word: run, up (running and started), ok, fail (terminated), wait, wait/ok,
// wait/fail (waiting after a termination).
func inState(name, word string) corev1.ContainerStatus {
	st := corev1.ContainerStatus{Name: name}
	ended := func(word string) *corev1.ContainerStateTerminated {
		if word == "ok" {
			return &corev1.ContainerStateTerminated{}
		}
		return &corev1.ContainerStateTerminated{ExitCode: 1}
	}
	word, before, again := strings.Cut(word, "/")
	switch word {
	case "run", "up":
		st.State.Running = &corev1.ContainerStateRunning{}
		st.Started = ptr(word == "up")
	case "wait":
		st.State.Waiting = &corev1.ContainerStateWaiting{}
	default:
		st.State.Terminated = ended(word)
	}
	if again {
		st.LastTerminationState.Terminated = ended(before)
	}
	return st
}

func ptr[T any](v T) *T { return &v }

// build returns a builder for a pod and the facts about it.
func build(pod *corev1.Pod, o podstate.Observed) *builder {
	return &builder{State: podstate.New(podstate.Desired{Pod: pod}, o), st: &corev1.PodStatus{}}
}

// phasePod returns a pod with containers in the given states: "init=ok" is an init container, "side=up" a sidecar; all
// others are app containers.
func phasePod(policy, containers string) (*corev1.Pod, *corev1.PodStatus) {
	pod, st := &corev1.Pod{}, &corev1.PodStatus{}
	pod.Spec.RestartPolicy = corev1.RestartPolicy(policy)
	for i, field := range strings.Fields(containers) {
		kind, word, _ := strings.Cut(field, "=")
		kind, own, _ := strings.Cut(kind, ":")
		c := corev1.Container{Name: fmt.Sprint("c", i)}
		if own != "" {
			c.RestartPolicy = ptr(corev1.ContainerRestartPolicy(own))
		}
		if kind == "side" {
			c.RestartPolicy = ptr(corev1.ContainerRestartPolicyAlways)
		}
		if kind == "app" {
			pod.Spec.Containers = append(pod.Spec.Containers, c)
			st.ContainerStatuses = append(st.ContainerStatuses, inState(c.Name, word))
		} else {
			pod.Spec.InitContainers = append(pod.Spec.InitContainers, c)
			st.InitContainerStatuses = append(st.InitContainerStatuses, inState(c.Name, word))
		}
	}
	return pod, st
}

// TestPhase covers the cases of the kubelet's phase tables (its kubelet_pods_test.go). "begun" means that an app
// container was created in the current sandbox, "quiescent" that the pod must end and no container of it runs any
// more.
func TestPhase(t *testing.T) {
	tests := []struct {
		policy, containers, facts string
		want                      corev1.PodPhase
	}{
		{"Always", "app=wait app=wait", "", corev1.PodPending},
		{"Always", "app=run app=run", "", corev1.PodRunning},
		{"Always", "app=ok app=ok", "", corev1.PodRunning},
		{"Always", "app=ok app=ok", "quiescent", corev1.PodSucceeded},
		{"Always", "app=ok app=fail", "quiescent", corev1.PodFailed},
		{"Always", "app=ok app=fail", "quiescent static", corev1.PodRunning},
		{"Always", "app=run app=ok", "", corev1.PodRunning},
		{"Always", "app=run app=wait", "", corev1.PodPending},
		{"Always", "app=run app=wait/ok", "", corev1.PodRunning},
		{"Always", "app=wait app=wait", "quiescent", corev1.PodPending},

		{"Always", "init=wait app=wait", "", corev1.PodPending},
		{"Always", "init=run app=wait", "", corev1.PodPending},
		{"Always", "init=ok app=wait", "", corev1.PodPending},
		{"Always", "init=fail app=wait", "", corev1.PodPending},
		{"Always", "init=wait/ok app=wait", "", corev1.PodPending},
		{"Always", "init=wait/fail app=wait", "", corev1.PodPending},
		{"Always", "init=ok app=run", "begun", corev1.PodRunning},

		{"Always", "side=run app=wait app=wait", "", corev1.PodPending},
		{"Always", "side=ok app=wait app=wait", "", corev1.PodPending},
		{"Always", "side=wait/ok app=wait app=wait", "", corev1.PodPending},
		{"Always", "side=wait/fail app=wait app=wait", "", corev1.PodPending},
		{"Always", "side=wait app=wait app=wait", "", corev1.PodPending},
		{"Always", "side=up app=run app=wait", "begun", corev1.PodPending},
		{"Always", "side=up app=run app=run", "begun", corev1.PodRunning},
		{"Always", "side=run app=run app=run", "begun", corev1.PodRunning},
		{"Always", "side=fail app=run app=run", "begun", corev1.PodRunning},
		{"Always", "side=wait/fail app=run app=run", "begun", corev1.PodRunning},
		{"Always", "side=fail app=ok app=ok", "begun quiescent", corev1.PodSucceeded},
		{"Always", "side=ok app=ok app=ok", "begun quiescent", corev1.PodSucceeded},
		{"Always", "side=run app=run app=run", "", corev1.PodPending}, // in a new sandbox

		{"Always", "init=run side=run app=run", "", corev1.PodPending},
		{"Always", "init=run side=run app=ok", "", corev1.PodPending},
		{"Always", "init=ok side=run app=ok", "", corev1.PodPending}, // in a new sandbox
		{"Always", "init=ok side=run app=ok", "begun", corev1.PodRunning},
		{"Always", "init=ok side=run app=run", "begun", corev1.PodRunning},

		{"Never", "app=wait app=wait", "", corev1.PodPending},
		{"Never", "app=run app=run", "", corev1.PodRunning},
		{"Never", "app=ok app=ok", "", corev1.PodSucceeded},
		{"Never", "app=fail app=fail", "", corev1.PodFailed},
		{"Never", "app=run app=ok", "", corev1.PodRunning},
		{"Never", "app=run app=wait", "", corev1.PodPending},
		{"Never", "app=ok app=fail", "", corev1.PodFailed},
		{"Never", "init=wait app=wait", "", corev1.PodPending},
		{"Never", "init=run app=wait", "", corev1.PodPending},
		{"Never", "init=ok app=wait", "", corev1.PodPending},
		{"Never", "init=fail app=wait", "", corev1.PodFailed},
		{"Never", "init=wait/fail app=wait", "", corev1.PodFailed},
		{"Never", "side=run app=wait app=wait", "", corev1.PodPending},
		{"Never", "side=up app=run app=run", "begun", corev1.PodRunning},
		{"Never", "side=up app=ok app=ok", "begun", corev1.PodRunning},
		{"Never", "side=ok app=ok app=ok", "begun", corev1.PodSucceeded},
		{"Never", "side=fail app=ok app=ok", "begun", corev1.PodSucceeded},
		{"Never", "side=wait/ok app=ok app=ok", "begun", corev1.PodSucceeded},
		{"Never", "side=wait/fail app=ok app=ok", "begun", corev1.PodSucceeded},

		{"OnFailure", "app=wait app=wait", "", corev1.PodPending},
		{"OnFailure", "app=run app=run", "", corev1.PodRunning},
		{"OnFailure", "app=ok app=ok", "", corev1.PodSucceeded},
		{"OnFailure", "app=fail app=fail", "", corev1.PodRunning},
		{"OnFailure", "app=run app=ok", "", corev1.PodRunning},
		{"OnFailure", "app=run app=wait", "", corev1.PodPending},
		{"OnFailure", "app=run app=wait/fail", "", corev1.PodRunning},

		{"Always", "app:Never=fail", "", corev1.PodFailed},
		{"Always", "app:OnFailure=fail", "", corev1.PodRunning},
		{"Always", "app:Always=fail", "", corev1.PodRunning},
		{"Never", "app:Always=ok app=fail", "", corev1.PodRunning},
		{"Always", "app:Never=fail app:OnFailure=ok", "", corev1.PodFailed},
		{"Always", "app:Never=ok app:OnFailure=ok", "", corev1.PodSucceeded},
		{"Always", "init:Never=fail app=wait", "", corev1.PodFailed},
		{"Never", "init:OnFailure=fail app=wait", "", corev1.PodPending},
		{"Never", "init:Always=fail app=wait", "", corev1.PodPending},
	}
	for _, tt := range tests {
		t.Run(strings.Join([]string{tt.policy, tt.containers, tt.facts}, " "), func(t *testing.T) {
			pod, st := phasePod(tt.policy, tt.containers)
			if strings.Contains(tt.facts, "static") {
				pod.Annotations = map[string]string{"kubernetes.io/config.source": "file"}
			}
			b := build(pod, podstate.Observed{})
			b.st, b.quiescent = st, strings.Contains(tt.facts, "quiescent")
			for _, slot := range b.Slots {
				slot.InCurrentSandbox = slot.Role == podutil.RoleApp && strings.Contains(tt.facts, "begun")
			}
			if got := b.phaseByContainers(); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}
