package agent_test

import (
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent"
	"github.com/nodelet/nodelet/agent/shutdown"
	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/test/cri/fake"
)

func withPriority(p int32) func(*corev1.Pod) { return func(pod *corev1.Pod) { pod.Spec.Priority = &p } }

// TestEvict checks that the pod ends within the eviction's grace, its object stays and says why, and it does not come
// back.
func TestEvict(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.runtime.Script("app", fake.Script{IgnoresTerm: true})
		pod, other := apiPod("web"), apiPod("other")
		w.run(pod, other)
		w.sleep(time.Second)
		began := time.Now()
		<-w.agent.Evict(t.Context(), pod.UID, agent.Eviction{Reason: "Evicted", Message: "disk full", Grace: 7 * time.Second})
		if took := time.Since(began); took != 7*time.Second {
			t.Errorf("the eviction took %s, want 7s", took)
		}
		w.sleep(time.Minute)
		st := w.status(pod)
		if st.Phase != corev1.PodFailed || st.Reason != "Evicted" || st.Message != "disk full" {
			t.Errorf("status: got %s %s %q, want Failed Evicted \"disk full\"", st.Phase, st.Reason, st.Message)
		}
		w.checkRunning("other/app#0")
		if left := w.agent.Active(t.Context()); len(left) != 1 || left[0].Name != "other" {
			t.Errorf("active: got %v, want one", left)
		}
		<-w.agent.Evict(t.Context(), "unknown", agent.Eviction{})
	})
}

// TestShutdownBeforeTheRuntime checks that a shutdown of the machine does not wait for a container runtime that has not
// answered since the agent started.
func TestShutdownBeforeTheRuntime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		supervisor := agent.NewSupervisor(agent.Config{})
		if pods := supervisor.Active(t.Context()); len(pods) > 0 {
			t.Errorf("active pods: got %d, want none", len(pods))
		}
		<-supervisor.Evict(t.Context(), "any", agent.Eviction{Reason: shutdown.Reason})
		supervisor.CallOff(t.Context(), shutdown.Reason)
	})
}

// TestEvictionSurvivesRestart checks that an evicted pod does not start again when the agent restarts before the API
// server has received the status.
func TestEvictionSurvivesRestart(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.runtime.Script("app", fake.Script{TermTakes: 10 * time.Second})
		w.amnesia = true
		pod := apiPod("web")
		w.run(pod)
		w.sleep(time.Second)
		w.agent.Evict(t.Context(), pod.UID, agent.Eviction{Reason: "Evicted", Message: "disk full", Grace: 20 * time.Second})
		w.sleep(time.Second)
		w.restart()
		w.sleep(time.Minute)
		w.checkRunning()
		if st := w.status(pod); st.Phase != corev1.PodFailed || st.Reason != "Evicted" || st.Message != "disk full" {
			t.Errorf("got status %s %s %q, want Failed Evicted \"disk full\"", st.Phase, st.Reason, st.Message)
		}
	})
}

// TestUnreadablePodDirectory checks that the containers of an ending pod are stopped also if its directory cannot be
// read, and that the rest of it is removed once it can be.
func TestUnreadablePodDirectory(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		pod := apiPod("web", withJudge)
		w.run(pod)
		w.sleep(time.Second)
		if running := w.running(); len(running) != 2 {
			t.Fatalf("got %v running, want two containers", running)
		}
		volumes := w.path("pods/" + string(pod.UID) + "/volumes")
		if err := os.MkdirAll(filepath.Dir(volumes), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(volumes, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		w.delete(pod, time.Second)
		w.sleep(time.Minute)
		w.checkRunning()
		if err := os.Remove(volumes); err != nil {
			t.Fatal(err)
		}
		w.sleep(time.Minute)
		w.checkNothingLeft()
	})
}

// TestTooManyVolumes checks that a pod with more volumes than a driver allows fails, and that the node does not count
// this as a disruption: a Job that ignores disruptions would create such pods without end.
func TestTooManyVolumes(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		pod := apiPod("web")
		w.run(pod)
		w.sleep(time.Second)
		w.agent.RejectVolumes(t.Context(), pod, "too many volumes")
		w.sleep(time.Minute)
		st := w.status(pod)
		if st.Phase != corev1.PodFailed || st.Reason != "VolumeAttachmentLimitExceeded" {
			t.Errorf("got status %s %s, want Failed VolumeAttachmentLimitExceeded", st.Phase, st.Reason)
		}
		if c := podutil.Condition(st.Conditions, corev1.DisruptionTarget); c != nil {
			t.Errorf("got the condition %+v, want no disruption", c)
		}
	})
}

// TestDoomed checks that an agent that restarts during a shutdown does not start ended pods again.
func TestDoomed(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		low, high := apiPod("low"), apiPod("high", withPriority(1000))
		w.run(low, high)
		w.sleep(time.Second)
		w.doomed = func(pod *corev1.Pod) *agent.Eviction {
			if pod.Name != "low" {
				return nil
			}
			return &agent.Eviction{Reason: shutdown.Reason, Message: shutdown.Message, Grace: time.Minute}
		}
		w.restart()
		w.sleep(time.Minute)
		w.checkRunning("high/app#0")
		if st := w.status(low); st.Phase != corev1.PodFailed || st.Reason != shutdown.Reason {
			t.Errorf("status: got %s %s, want Failed %s", st.Phase, st.Reason, shutdown.Reason)
		}
	})
}
