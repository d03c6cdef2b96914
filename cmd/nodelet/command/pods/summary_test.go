package pods

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var now = time.Date(2026, 3, 1, 10, 0, 0, 0, time.UTC)

// status returns the status of a container with that name, and changes it.
func status(name string, changes ...func(*corev1.ContainerStatus)) corev1.ContainerStatus {
	s := corev1.ContainerStatus{Name: name}
	for _, change := range changes {
		change(&s)
	}
	return s
}

func running(s *corev1.ContainerStatus) {
	s.Ready, s.Started = true, new(true)
	s.State.Running = &corev1.ContainerStateRunning{}
}

func notReady(s *corev1.ContainerStatus) {
	running(s)
	s.Ready = false
}

func waiting(reason string) func(*corev1.ContainerStatus) {
	return func(s *corev1.ContainerStatus) { s.State.Waiting = &corev1.ContainerStateWaiting{Reason: reason} }
}

func exited(code int32, reason string) func(*corev1.ContainerStatus) {
	return func(s *corev1.ContainerStatus) {
		s.State.Terminated = &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason}
	}
}

// restarted adds restarts, the last of an instance that ended that long ago.
func restarted(times int32, ago time.Duration) func(*corev1.ContainerStatus) {
	return func(s *corev1.ContainerStatus) {
		s.RestartCount = times
		s.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{FinishedAt: metav1.NewTime(now.Add(-ago))}
	}
}

// TestSummary checks the columns READY, STATUS and RESTARTS. The pod has an init container, a sidecar and two app
// containers; the expected texts follow the table of pods of the API server.
func TestSummary(t *testing.T) {
	done, gone := exited(0, "Completed"), restarted(2, 3*time.Minute)
	for _, c := range []struct {
		name              string
		init, sidecar     []func(*corev1.ContainerStatus)
		app, other        []func(*corev1.ContainerStatus)
		initialized       bool
		ready, terminates bool
		reason            string
		phase             corev1.PodPhase
		want              string
	}{
		{name: "nothing reported", phase: corev1.PodPending, init: all(waiting("PodInitializing")), want: "0 Init:0/2 0"},
		{name: "init crashes", phase: corev1.PodPending, init: all(waiting("CrashLoopBackOff"), gone),
			want: "0 Init:CrashLoopBackOff 2 (3m ago)"},
		{name: "init failed", phase: corev1.PodFailed, init: all(exited(3, "Error")), want: "0 Init:Error 0"},
		{name: "init was killed", phase: corev1.PodFailed, init: all(exited(3, "")), want: "0 Init:ExitCode:3 0"},
		{name: "sidecar begins", phase: corev1.PodPending, init: all(done), sidecar: all(waiting("PodInitializing")),
			want: "0 Init:1/2 0"},
		{name: "image is missing", phase: corev1.PodPending, init: all(done), sidecar: all(waiting("ErrImagePull")),
			want: "0 Init:ErrImagePull 0"},
		{name: "all runs", phase: corev1.PodRunning, initialized: true, ready: true, init: all(done), sidecar: all(running),
			app: all(running), other: all(running), want: "3 Running 0"},
		{name: "init restarts do not count", phase: corev1.PodRunning, initialized: true,
			init: all(done, restarted(5, time.Hour)), sidecar: all(running, restarted(1, time.Hour)),
			app: all(running, gone), other: all(notReady),
			want: "2 Running 3 (3m ago)"},
		{name: "sidecar crashes late", phase: corev1.PodRunning, initialized: true, init: all(done),
			sidecar: all(waiting("CrashLoopBackOff")), app: all(running), other: all(running),
			want: "2 Init:CrashLoopBackOff 0"},
		{name: "one waits, one ended", phase: corev1.PodRunning, initialized: true, init: all(done), sidecar: all(running),
			app: all(waiting("CrashLoopBackOff")), other: all(exited(1, "Error")), want: "1 CrashLoopBackOff 0"},
		{name: "completed beside a failure", phase: corev1.PodFailed, initialized: true, init: all(done), sidecar: all(done),
			app: all(done), other: all(exited(137, "OOMKilled")), want: "0 OOMKilled 0"},
		{name: "completed beside one that runs", phase: corev1.PodRunning, initialized: true, init: all(done),
			sidecar: all(running), app: all(done), other: all(running), want: "2 NotReady 0"},
		{name: "completed beside one that runs, pod ready", phase: corev1.PodRunning, initialized: true, ready: true,
			init: all(done), sidecar: all(running), app: all(done), other: all(running), want: "2 Running 0"},
		{name: "all completed", phase: corev1.PodSucceeded, initialized: true, init: all(done), sidecar: all(done),
			app: all(done), other: all(done), want: "0 Completed 0"},
		{name: "evicted", phase: corev1.PodFailed, reason: "Evicted", initialized: true, init: all(done), sidecar: all(done),
			want: "0 Evicted 0"},
		{name: "terminates", phase: corev1.PodRunning, terminates: true, initialized: true, ready: true, init: all(done),
			sidecar: all(running), app: all(running), other: all(running), want: "3 Terminating 0"},
		{name: "deleted when ended", phase: corev1.PodSucceeded, terminates: true, initialized: true, init: all(done),
			sidecar: all(done), app: all(done), other: all(done), want: "0 Completed 0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			pod := &corev1.Pod{}
			pod.Spec.InitContainers = []corev1.Container{
				{Name: "init"},
				{Name: "sidecar", RestartPolicy: new(corev1.ContainerRestartPolicyAlways)},
			}
			pod.Spec.Containers = []corev1.Container{{Name: "app"}, {Name: "other"}}
			st := &pod.Status
			st.Phase, st.Reason = c.phase, c.reason
			st.InitContainerStatuses = []corev1.ContainerStatus{status("init", c.init...), status("sidecar", c.sidecar...)}
			st.ContainerStatuses = []corev1.ContainerStatus{status("app", c.app...), status("other", c.other...)}
			for kind, is := range map[corev1.PodConditionType]bool{
				corev1.PodInitialized: c.initialized,
				corev1.PodReady:       c.ready,
			} {
				if is {
					st.Conditions = append(st.Conditions, corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue})
				}
			}
			if c.terminates {
				pod.DeletionTimestamp = &metav1.Time{Time: now}
			}
			m := summarize(pod)
			if got := fmt.Sprintf("%d %s %s", m.ready, m.state, m.restartsText(now)); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func all(changes ...func(*corev1.ContainerStatus)) []func(*corev1.ContainerStatus) { return changes }

// TestAge checks that the age of a static pod, which has no creation time, counts from its start.
func TestAge(t *testing.T) {
	static := &corev1.Pod{}
	if got := age(static, now); got != "-" {
		t.Errorf("without times: got %q, want -", got)
	}
	static.Status.StartTime = &metav1.Time{Time: now.Add(-time.Minute)}
	if got := age(static, now); got != "60s" {
		t.Errorf("with a start time: got %q, want 60s", got)
	}
}
