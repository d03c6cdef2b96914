package agent_test

import (
	"errors"
	"log/slog"
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent"
	"github.com/nodelet/nodelet/cri/images"
)

// TestRemoveEnded checks that when the node is short of disk, containers, logs and sandboxes of ended pods go, and
// their images can be removed. What the API server does not show yet stays, and so do static and running pods. No
// status is lost, in the next run of the agent either.
func TestRemoveEnded(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		job := apiPod("job", withRestart(corev1.RestartPolicyOnFailure))
		manifest := staticPod("manifest", "0123", withRestart(corev1.RestartPolicyNever))
		w.run(job, manifest, apiPod("web"))
		w.sleep(time.Second)
		exit := func(pod string, code int32) {
			t.Helper()
			for _, c := range w.runtime.Containers() {
				if c.Labels["io.kubernetes.pod.name"] == pod && c.State == running {
					w.runtime.ExitContainer(c.Id, code, "")
				}
			}
		}
		exit("job", 1)
		w.sleep(time.Minute)
		exit("job", 0)
		exit("manifest", 0)
		w.sleep(time.Minute)
		logs := map[string]string{} // the pod of each log
		for _, c := range w.runtime.Containers() {
			logs[c.LogPath] = c.Labels["io.kubernetes.pod.name"]
			if err := os.WriteFile(c.LogPath, nil, 0o640); err != nil {
				t.Fatal(err)
			}
		}
		left := func() int { return len(w.runtime.Containers()) + len(w.runtime.Sandboxes()) }
		before := left()
		w.agent.RemoveEnded(t.Context())
		if got := left(); got != before {
			t.Errorf("before the API server shows the end: got %d containers and sandboxes, want %d", got, before)
		}
		w.publish(w.agent)
		w.deliver()
		w.sleep(time.Second)
		w.agent.RemoveEnded(t.Context())
		pods := map[string]int{}
		for _, c := range w.runtime.Containers() {
			pods[c.Labels["io.kubernetes.pod.name"]]++
		}
		if len(pods) != 2 || pods["web"] != 1 || pods["manifest"] != 1 || len(w.runtime.Sandboxes()) != 2 {
			t.Errorf("the runtime keeps containers of %v and %d sandboxes, want web's and manifest's alone",
				pods, len(w.runtime.Sandboxes()))
		}
		for file, pod := range logs {
			if _, err := os.Stat(file); errors.Is(err, os.ErrNotExist) != (pod == "job") {
				t.Errorf("log of pod %s: got %v, want those of the ended pod removed, and no other", pod, err)
			}
		}
		check := func(when string) {
			t.Helper()
			st := w.status(job)
			c := containerStatus(st, "app")
			if st.Phase != corev1.PodSucceeded || c == nil || c.RestartCount != 1 || c.State.Terminated == nil {
				t.Errorf("%s: got status %+v, want Succeeded after one restart", when, st)
			}
		}
		check("after the removal")
		w.sleep(5 * time.Minute)
		w.restart()
		w.sleep(5 * time.Minute)
		check("after a restart of the agent")
		w.checkRunning("web/app#0")
	})
}

// TestRemoveEvicted checks that what is left of an evicted pod is removed before the API server shows its end, but not
// if the pod had completed before: then only its containers show its result.
func TestRemoveEvicted(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		job, web := apiPod("job", withRestart(corev1.RestartPolicyNever)), apiPod("web")
		w.run(job, web)
		w.sleep(time.Second)
		for _, c := range w.runtime.Containers() {
			if c.Labels["io.kubernetes.pod.name"] == "job" {
				w.runtime.ExitContainer(c.Id, 0, "")
			}
		}
		w.sleep(time.Second)
		for _, pod := range []*corev1.Pod{job, web} {
			w.agent.Evict(t.Context(), pod.UID, agent.Eviction{Reason: "Evicted", Message: "The node was low on memory"})
		}
		w.sleep(time.Minute)
		w.agent.RemoveEnded(t.Context())
		var left []string
		for _, c := range w.runtime.Containers() {
			left = append(left, c.Labels["io.kubernetes.pod.name"])
		}
		if len(left) != 1 || left[0] != "job" {
			t.Errorf("got containers of the pods %q, want one of job", left)
		}
	})
}

// TestImagesOfEndedPods checks that the image of a pod that has ended can be removed once the runtime keeps nothing
// of the pod.
func TestImagesOfEndedPods(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		c := images.NewCollector(w.agent.runtime, images.CollectorOptions{
			HighPercent: 100,
			Removed:     func() {},
			Collected:   func(string) {},
			Log:         slog.New(slog.NewTextHandler(t.Output(), nil)),
		})
		collect := func() int {
			t.Helper()
			if err := c.RemoveUnused(t.Context()); err != nil {
				t.Fatal(err)
			}
			all, err := w.agent.runtime.ListImages(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return len(all)
		}
		job := apiPod("job", withRestart(corev1.RestartPolicyNever))
		w.run(job)
		w.sleep(time.Second)
		w.runtime.ExitContainer(w.runtime.Containers()[0].Id, 0, "")
		w.sleep(time.Hour)
		w.publish(w.agent)
		w.deliver()
		w.sleep(time.Hour)
		if got := collect(); got != 1 {
			t.Fatalf("got %d images while the runtime keeps the container, want 1", got)
		}
		w.agent.RemoveEnded(t.Context())
		if got := collect(); got != 0 {
			t.Errorf("got %d images after the container's removal, want none", got)
		}
	})
}
