//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/nodelet/nodelet/test/testbed"
)

// TestRestartPolicy runs containers that exit with code 0 or 3 under each restart policy.
func TestRestartPolicy(t *testing.T) {
	clean(t)
	sameAgent(t)
	watched := record("restarts")
	var looping []*crashes
	for _, pod := range []string{"always-0", "always-3", "onfailure-3"} {
		looping = append(looping, followCrashes(t, pod))
	}
	var yaml strings.Builder
	for _, policy := range []corev1.RestartPolicy{corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure,
		corev1.RestartPolicyNever} {
		for _, code := range []int{0, 3} {
			yaml.WriteString(endingPod(policy, code))
		}
	}
	apply(t, yaml.String())
	for _, c := range []struct {
		pod    string
		phase  corev1.PodPhase
		code   int32
		reason string
	}{
		{"onfailure-0", corev1.PodSucceeded, 0, "Completed"},
		{"never-0", corev1.PodSucceeded, 0, "Completed"},
		{"never-3", corev1.PodFailed, 3, "Error"},
	} {
		p := waitPod(t, c.pod, "has terminated", func(p *corev1.Pod) bool { return p.Status.Phase == c.phase })
		s := containerStatus(p, "app")
		end := s.State.Terminated
		if end == nil || end.ExitCode != c.code || end.Reason != c.reason || end.Message != "words\n" || s.RestartCount != 0 {
			t.Errorf("pod %s: got %+v; want exit code %d, reason %s, message %q, no restart", c.pod, s, c.code, c.reason,
				"words\n")
		}
	}
	for _, c := range looping {
		c.check(t)
	}
	watched.end(t)
}

// endingPod is a pod whose container writes a termination message and exits with that code.
func endingPod(policy corev1.RestartPolicy, code int) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s-%d, labels: {restarts: "yes"}}
spec:
  restartPolicy: %s
  terminationGracePeriodSeconds: 2
  containers:
  - name: app
    image: %s
    command: [sh, -c, "echo words; echo words >/dev/termination-log; exit %d"]
---
`, strings.ToLower(string(policy)), code, policy, testbed.BusyboxImage, code)
}

// TestPostStartOrder checks that a container starts after the postStart hook of the one before it has ended.
func TestPostStartOrder(t *testing.T) {
	clean(t)
	apply(t, `apiVersion: v1
kind: Pod
metadata: {name: hook-order}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 2
  volumes: [{name: data, emptyDir: {}}]
  containers:
  - name: proxy
    image: `+testbed.BusyboxImage+`
    command: [sh, -c, "until [ -f /data/checked ]; do sleep 1; done"]
    lifecycle: {postStart: {exec: {command: [sh, -c, "sleep 3; touch /data/served"]}}}
    volumeMounts: [{name: data, mountPath: /data}]
  - name: app
    image: `+testbed.BusyboxImage+`
    command: [sh, -c, "[ -f /data/served ]; code=$?; touch /data/checked; exit $code"]
    volumeMounts: [{name: data, mountPath: /data}]
`)
	p := waitPod(t, "hook-order", "has terminated", func(p *corev1.Pod) bool {
		return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	})
	if p.Status.Phase != corev1.PodSucceeded {
		t.Errorf("got phase %s, container app %+v; want %s: app started before the hook of proxy ended", p.Status.Phase,
			containerStatus(p, "app").State, corev1.PodSucceeded)
	}
}

// crashes records the runs of a container that exits again and again, until it has run three times.
type crashes struct {
	pod  string
	runs []corev1.ContainerStateTerminated
	// early is whether the pod has shown a back-off before the second run, waited whether it has before the third.
	early, waited bool
	err           error
	done          chan struct{}
}

func followCrashes(t *testing.T, pod string) *crashes {
	c := &crashes{pod: pod, done: make(chan struct{})}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	go func() {
		defer close(c.done)
		defer cancel()
		c.err = follow(ctx, "pods", named(pod), func(e watch.Event) bool {
			c.see(containerStatus(e.Object.(*corev1.Pod), "app"))
			return len(c.runs) >= 3
		})
	}()
	return c
}

func (c *crashes) see(s corev1.ContainerStatus) {
	for _, end := range []*corev1.ContainerStateTerminated{s.LastTerminationState.Terminated, s.State.Terminated} {
		if end != nil && (len(c.runs) == 0 || c.runs[len(c.runs)-1].ContainerID != end.ContainerID) {
			c.runs = append(c.runs, *end)
		}
	}
	if w := s.State.Waiting; w != nil && w.Reason == "CrashLoopBackOff" {
		c.early = c.early || s.RestartCount == 0
		c.waited = c.waited || s.RestartCount == 1 &&
			strings.HasPrefix(w.Message, "back-off 10s restarting failed container=app pod="+c.pod+"_default(")
	}
}

// check fails the test unless the first restart came without a back-off, and the second after one, which the status
// showed. How soon the first came is not asserted: that depends on how busy the machine is.
func (c *crashes) check(t *testing.T) {
	t.Helper()
	<-c.done
	if c.err != nil {
		t.Errorf("pod %s: got %d runs, %v; want 3\n%s", c.pod, len(c.runs), c.err, describe(getPod(t, c.pod)))
		return
	}
	if !c.waited {
		t.Errorf("pod %s: got no back-off of 10s in the status after the second run, want one", c.pod)
	}
	if c.early {
		t.Errorf("pod %s: got a back-off in the status after the first run, want none", c.pod)
	}
	second := c.runs[2].StartedAt.Sub(c.runs[1].FinishedAt.Time)
	if second < 9*time.Second { // times in a status have a resolution of one second
		t.Errorf("pod %s: got the second restart after %s, want it after at least 10s", c.pod, second)
	}
	waitEvent(t, c.pod, "BackOff", "Back-off restarting failed container app in pod "+c.pod+"_default(")
}

// TestProbesAndHooksRestart runs containers that fail their liveness probe, startup probe or postStart hook. Each is
// restarted, and events show the reason.
func TestProbesAndHooksRestart(t *testing.T) {
	clean(t)
	sameAgent(t)
	apply(t, fill(t, "testdata/sick.yaml", ""))
	waitReady(t, "sick-liveness")
	// A Ready container has started, but it may not have created the file yet.
	shell(t, "sick-liveness", "app", "while [ ! -e /tmp/alive ]; do sleep 0.1; done; rm /tmp/alive")
	for _, c := range []struct{ pod, killing, reason, why string }{
		{"sick-liveness", "Container app failed liveness probe, will be restarted", "Unhealthy",
			"Liveness probe failed: not alive"},
		{"sick-startup", "Container app failed startup probe, will be restarted", "Unhealthy",
			"Startup probe failed: not started"},
		{"sick-hook", "FailedPostStartHook", "FailedPostStartHook", "PostStartHook failed"},
	} {
		waitPod(t, c.pod, "is restarted", func(p *corev1.Pod) bool {
			return containerStatus(p, "app").RestartCount >= 1
		})
		waitEvent(t, c.pod, "Killing", c.killing)
		waitEvent(t, c.pod, c.reason, c.why)
	}
	waitReady(t, "sick-liveness")
}

// TestJob runs a Job whose first pod fails and whose second succeeds. A restarted agent must not run the finished
// pods again.
func TestJob(t *testing.T) {
	clean(t)
	dir := t.TempDir()
	apply(t, fill(t, "testdata/job.yaml", dir))
	kubectl(t, "wait", "--for=condition=complete", "job/second-time-lucky", "--timeout=120s")
	phases := func() (all string) {
		for _, p := range listPods(t, "job-name=second-time-lucky") {
			all += fmt.Sprintf("%s %s %+v\n", p.Name, p.Status.Phase, p.Status.ContainerStatuses[0].State.Terminated)
		}
		return all
	}
	before := phases()
	if strings.Count(before, " Failed ") != 1 || strings.Count(before, " Succeeded ") != 1 {
		t.Errorf("pods of the Job: got\n%s\nwant one that failed and one that succeeded", before)
	}
	mark := markLog(t)
	killAgent(t)
	mark.waitLine(t, "nodelet started")
	apply(t, endingPod(corev1.RestartPolicyNever, 0)) // when the new agent has run this pod, it has seen the others
	waitPod(t, "never-0", "has terminated",
		func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodSucceeded })
	if after := phases(); after != before {
		t.Errorf("finished pods after a restart of the agent:\ngot %s\nwant %s", after, before)
	}
	if runs, err := os.ReadFile(filepath.Join(dir, "runs")); string(runs) != "run\nrun\n" {
		t.Errorf("runs of the Job: got %q (%v), want two", runs, err)
	}
}
