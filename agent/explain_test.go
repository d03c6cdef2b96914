package agent_test

import (
	"context"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent"
	"github.com/nodelet/nodelet/kube/pods"
	"github.com/nodelet/nodelet/test/cri/fake"
)

// TestExplain prints what three pods do: one runs, one waits for an object, one ends slowly.
func TestExplain(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.runtime.Script("slow", fake.Script{IgnoresTerm: true})
		slow := apiPod("slow")
		slow.Spec.Containers[0].Name = "slow"
		w.run(slow, apiPod("web"), apiPod("waits", withConfigMap("settings")))
		w.sleep(20 * time.Second)
		w.delete(slow, 30*time.Second)
		w.sleep(3 * time.Second)
		all, err := w.agent.Explain(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		agent.WriteExplanations(&out, all, time.Now())
		want := `default/slow  stopping, deleted
    waits for: stop container slow (ID): Stopping container slow: in progress (running for 3s)
default/waits  Pending
    waits for: mount volume data: MountVolume.SetUp failed for volume "data" : ` +
			`configmap "settings" not found (again in 8s)
default/web  Running, ready
`
		if got := regexp.MustCompile("c0de[0-9a-f]+").ReplaceAllString(out.String(), "ID"); got != want {
			t.Errorf("got:\n%s\nwant:\n%s", got, want)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for range 100 {
			if all, err := w.agent.Explain(ctx); err == nil && len(all) != 3 {
				t.Errorf("got %d pods explained, want 3", len(all))
			}
		}
	})
}

// TestExplainEnds checks what is said about containers that have ended: an exit of their own, a stop by the agent, and
// a start that failed. A container that has succeeded and does not run again is not mentioned.
func TestExplainEnds(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.runtime.Script("crash", fake.Script{RunsFor: time.Second, ExitCode: 3, OOM: true})
		w.runtime.Script("broken", fake.Script{StartErr: "exec: no such file"})
		w.runtime.Script("init", fake.Script{RunsFor: time.Second})
		w.commandsEnd(fake.ExecOutcome{ExitCode: 1})
		pod := apiPod("web", func(pod *corev1.Pod) {
			pod.Spec.InitContainers = []corev1.Container{{Name: "init", Image: pod.Spec.Containers[0].Image}}
			app := pod.Spec.Containers[0]
			app.LivenessProbe = nil
			pod.Spec.Containers = nil
			for _, name := range []string{"crash", "broken", "sick"} {
				app.Name = name
				pod.Spec.Containers = append(pod.Spec.Containers, app)
			}
			pod.Spec.Containers[2].LivenessProbe = execProbe("healthy")
		})
		w.run(pod)
		w.sleep(34500 * time.Millisecond) // the last instance of crash runs
		w.writeMessage("crash", "out of \x1b[31mideas\n")
		w.sleep(15500 * time.Millisecond)
		all, err := w.agent.Explain(t.Context())
		if err != nil || len(all) != 1 {
			t.Fatalf("got %d pods and error %v, want one pod", len(all), err)
		}
		times := regexp.MustCompile("ended at [-0-9TZ:]+: ")
		var got []string
		for _, end := range all[0].Ends {
			got = append(got, times.ReplaceAllString(end.String(), ""))
		}
		want := []string{
			"container broken exit code 128, StartError, exec: no such file",
			`container crash exit code 3, OOMKilled, message "out of \x1b[31mideas"`,
			"container sick exit code 143, Error; nodelet stopped it: Container sick failed liveness probe, " +
				"will be restarted",
		}
		if !slices.Equal(got, want) {
			t.Errorf("got  %q\nwant %q", got, want)
		}
	})
}

// TestExplainUnready checks that it is said why a running pod is not ready: what its probe has last said, or which
// readiness gate is not True.
func TestExplainUnready(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.commandsEnd(fake.ExecOutcome{ExitCode: 1, Stdout: "no database"})
		failing := func(set func(*corev1.Container, *corev1.Probe)) func(*corev1.Pod) {
			return func(pod *corev1.Pod) {
				c := &pod.Spec.Containers[0]
				c.LivenessProbe, c.ReadinessProbe = nil, nil
				set(c, execProbe("healthy"))
			}
		}
		w.run(
			apiPod("starts", failing(func(c *corev1.Container, p *corev1.Probe) {
				p.FailureThreshold, c.StartupProbe = 1000, p
			})),
			apiPod("serves", failing(func(c *corev1.Container, p *corev1.Probe) {
				p.InitialDelaySeconds, c.ReadinessProbe = 30, p
			})),
			apiPod("gated", func(pod *corev1.Pod) {
				pod.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "example.com/x"}}
			}))
		explain := func() string {
			all, err := w.agent.Explain(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range all {
				for _, wait := range e.Waits {
					if wait.Probe != strings.Contains(wait.Why, "no database") {
						t.Errorf("%s: got the result of a probe %v for %q", e.Pod, wait.Probe, wait.Why)
					}
				}
			}
			var out strings.Builder
			agent.WriteExplanations(&out, all, time.Now())
			return out.String()
		}
		want := `default/gated  Running
    waits for: readiness gates: corresponding condition of pod readiness gate "example.com/x" does not exist.
default/serves  Running
    waits for: container app: its readiness probe has not succeeded yet
default/starts  Running
    waits for: container app: Startup probe failed: no database
`
		w.sleep(20 * time.Second)
		if got := explain(); got != want {
			t.Errorf("got:\n%s\nwant:\n%s", got, want)
		}
		want = strings.Replace(want, "its readiness probe has not succeeded yet", "Readiness probe failed: no database", 1)
		w.sleep(time.Minute)
		if got := explain(); got != want {
			t.Errorf("after a minute: got:\n%s\nwant:\n%s", got, want)
		}
	})
}

// TestExplainSample checks that the pages show what `nodelet explain` prints of three pods: the readiness probe of one
// fails, one was stopped because its liveness probe failed, one waits for an object. Only the times differ.
func TestExplainSample(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.commandsEnd(fake.ExecOutcome{ExitCode: 1, Stdout: "no answer"})
		probed := func(name string, set func(*corev1.Container, *corev1.Probe)) *corev1.Pod {
			return apiPod(name, func(pod *corev1.Pod) {
				c := &pod.Spec.Containers[0]
				c.Name = name
				c.LivenessProbe, c.ReadinessProbe = nil, nil
				set(c, execProbe("healthy"))
			})
		}
		cache := probed("cache", func(c *corev1.Container, p *corev1.Probe) { c.LivenessProbe = p })
		cache.UID = "0b8f6d1c-52f7-4d53-9a7e-2f1c8f0f6a11"
		web := probed("web", func(c *corev1.Container, p *corev1.Probe) { c.ReadinessProbe = p })
		w.run(apiPod("api", withConfigMap("settings")), cache, web)
		w.sleep(75 * time.Second)
		all, err := w.agent.Explain(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		agent.WriteExplanations(&out, all, time.Now())
		times := regexp.MustCompile("[-0-9]{10}T[:0-9]{8}Z")
		want := "\n    $ nodelet explain --not-ready\n"
		for line := range strings.Lines(out.String()) {
			want += "    " + times.ReplaceAllString(line, "TIME")
		}
		page, err := os.ReadFile("../README.md")
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(times.ReplaceAllString(string(page), "TIME"), want) {
			t.Errorf("README.md does not have what is printed now:%s", want)
		}
	})
}

// TestProblems checks that problems with the sources of pods are listed until they are solved.
func TestProblems(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		check := func(want ...string) {
			t.Helper()
			w.sleep(time.Second)
			if got, err := w.agent.Problems(t.Context()); err != nil || !slices.Equal(got, want) {
				t.Errorf("got %q, %v, want %q", got, err, want)
			}
		}
		w.run(apiPod("web"))
		check()
		w.change(func(set *pods.Set) {
			set.Problems = []pods.Problem{{Source: pods.SourceFile, File: "web.yaml", Message: "not a pod"}}
		})
		check("web.yaml: not a pod")
		w.change(func(set *pods.Set) { set.Problems = nil })
		check()
	})
}

// TestExplainNeedsNothing checks which pods `nodelet explain --not-ready` leaves out, and `nodelet status` counts as
// ready.
func TestExplainNeedsNothing(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		once := func(name string, exitCode int32) *corev1.Pod {
			w.runtime.Script(name, fake.Script{RunsFor: time.Second, ExitCode: exitCode})
			return apiPod(name, func(pod *corev1.Pod) {
				pod.Spec.RestartPolicy = corev1.RestartPolicyNever
				pod.Spec.Containers[0].Name = name
			})
		}
		w.runtime.Script("slow", fake.Script{IgnoresTerm: true})
		slow := apiPod("slow")
		slow.Spec.Containers[0].Name = "slow"
		w.run(once("done", 0), once("failed", 1), apiPod("web"), apiPod("waits", withConfigMap("settings")), slow)
		w.sleep(time.Minute)
		w.delete(slow, 30*time.Second)
		w.sleep(time.Second)
		all, err := w.agent.Explain(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]bool{}
		for _, e := range all {
			got[e.Pod] = e.NeedsNothing()
		}
		want := map[string]bool{
			"default/done": true, "default/failed": false, "default/web": true, "default/waits": false,
			"default/slow": false, // its containers are still ready
		}
		if !maps.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
}

// writeMessage writes the termination message of the container's instances that run.
func (w *world) writeMessage(container, message string) {
	for _, c := range w.runtime.Containers() {
		for _, m := range c.Mounts {
			if c.Metadata.Name != container || c.State != running || m.ContainerPath != "/dev/termination-log" {
				continue
			}
			if err := os.WriteFile(m.HostPath, []byte(message), 0); err != nil {
				w.t.Error(err)
			}
		}
	}
}

// TestExplainPrintsNoControls checks that a text that comes from a registry or a container cannot act on the terminal.
func TestExplainPrintsNoControls(t *testing.T) {
	var out strings.Builder
	agent.WriteExplanations(&out, []*agent.Explanation{{
		Pod:   "default/web",
		Phase: corev1.PodPending,
		Waits: []agent.Wait{{For: "ensure image über", Why: "\x1b]0;title\a\r\n\u202egone"}},
	}}, time.Now())
	want := "default/web  Pending\n    waits for: ensure image über: \\x1b]0;title\\a\\r\\n\\u202egone\n"
	if got := out.String(); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestExplainFailedPod checks that the text names the reason of a pod that has failed as a whole.
func TestExplainFailedPod(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		limit := int64(5)
		w.run(apiPod("late", func(pod *corev1.Pod) { pod.Spec.ActiveDeadlineSeconds = &limit }))
		w.sleep(time.Minute)
		all, err := w.agent.Explain(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		agent.WriteExplanations(&out, all, time.Now())
		want := "default/late  Failed, DeadlineExceeded: Pod was active on the node longer than the specified deadline\n"
		if got, _, _ := strings.Cut(out.String(), "    "); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}
