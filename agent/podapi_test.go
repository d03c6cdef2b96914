package agent_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent"
	"github.com/nodelet/nodelet/agent/podapi"
	"github.com/nodelet/nodelet/cri/logs"
	"github.com/nodelet/nodelet/kube/pods"
	"github.com/nodelet/nodelet/kube/server"
	"github.com/nodelet/nodelet/test/cri/fake"
)

func (w *world) podAPI() *podapi.Server {
	return podapi.New(podapi.Config{
		Pods:      w.agent.Supervisor,
		Runtime:   w.agent.runtime,
		Logs:      logs.New(w.path("logs")),
		Allocated: true,
	})
}

// log puts lines into the log of the newest instance, as the runtime does.
func (w *world) log(lines string) {
	w.t.Helper()
	all := w.runtime.Containers()
	path := all[len(all)-1].LogPath
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err == nil {
		_, err = f.WriteString(lines)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// TestPodAPIFollows checks that a followed log goes on until its container has ended, and has all that was written by
// then.
func TestPodAPIFollows(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.run(apiPod("web", func(pod *corev1.Pod) { pod.Spec.RestartPolicy = corev1.RestartPolicyNever }))
		synctest.Wait()
		w.checkRunning("web/app#0")
		w.log("2026-01-02T03:04:05.000000000Z stdout F first\n")
		var out bytes.Buffer
		done := make(chan error, 1)
		go func() {
			done <- w.podAPI().Logs(t.Context(), server.Container{Namespace: "default", Pod: "web", Name: "app"},
				&corev1.PodLogOptions{Follow: true}, &out, &out)
		}()
		w.log("2026-01-02T03:04:06.000000000Z stdout F last\n")
		w.runtime.ExitContainer(w.runtime.Containers()[0].Id, 0, "")
		if err := <-done; err != nil || out.String() != "first\nlast\n" {
			t.Errorf("followed log: got %q, %v, want both lines", out.String(), err)
		}
	})
}

// TestPodAPIFollowsInPostStart checks that the log of a container whose postStart hook runs is read and followed until
// the container has ended, and that the one before it is the previous one.
func TestPodAPIFollowsInPostStart(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.run(apiPod("web", func(pod *corev1.Pod) {
			pod.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{Exec: command("warm")}}
		}))
		synctest.Wait()
		w.log("2026-01-02T03:04:05.000000000Z stdout F before\n")
		w.commandsEnd(fake.ExecOutcome{Takes: time.Hour})
		w.exit("app", 1)
		w.sleep(time.Minute)
		w.checkRunning("web/app#1")
		w.log("2026-01-02T03:05:05.000000000Z stdout F first\n")
		read := func(o corev1.PodLogOptions) string {
			var out bytes.Buffer
			err := w.podAPI().Logs(t.Context(), server.Container{Namespace: "default", Pod: "web", Name: "app"}, &o, &out, &out)
			if err != nil {
				t.Error(err)
			}
			return out.String()
		}
		if got := read(corev1.PodLogOptions{Previous: true}); got != "before\n" {
			t.Errorf("previous log: got %q, want that of the first instance", got)
		}
		followed := make(chan string, 1)
		go func() { followed <- read(corev1.PodLogOptions{Follow: true}) }()
		w.log("2026-01-02T03:05:06.000000000Z stdout F last\n")
		w.exit("app", 1)
		if got := <-followed; got != "first\nlast\n" {
			t.Errorf("followed log: got %q, want both lines of the instance whose hook runs", got)
		}
	})
}

// TestPodAPIFollowsToTheEnd checks that the end of the agent ends those who follow.
func TestPodAPIFollowsToTheEnd(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.run(apiPod("web"))
		synctest.Wait()
		w.log("2026-01-02T03:04:05.000000000Z stdout F only\n")
		api, done := w.podAPI(), make(chan error, 1)
		var out bytes.Buffer
		go func() {
			done <- api.Logs(t.Context(), server.Container{Namespace: "default", Pod: "web", Name: "app"},
				&corev1.PodLogOptions{Follow: true}, &out, &out)
		}()
		w.end()
		if err := <-done; err != nil && !strings.Contains(err.Error(), "try again") {
			t.Error(err)
		}
		w.begin()
	})
}

// TestPodAPIRefuses checks that what cannot be read is refused in the kubelet's words.
func TestPodAPIRefuses(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		absent := container("absent")
		absent.Image = "nothing:1"
		absent.ImagePullPolicy = corev1.PullNever
		w.run(apiPod("web", func(pod *corev1.Pod) { pod.Spec.Containers = append(pod.Spec.Containers, absent) }))
		synctest.Wait()
		for _, c := range []struct {
			pod, name string
			previous  bool
			code      int
			says      string
		}{
			{"nothing", "app", false, http.StatusNotFound, "nothing"},
			{"web", "other", false, http.StatusNotFound, `container "other" not found in pod "web"`},
			{"web", "absent", false, http.StatusBadRequest,
				`container "absent" in pod "web" is waiting to start: ErrImageNeverPull`},
			{"web", "app", true, http.StatusBadRequest, `previous terminated container "app" in pod "web" not found`},
			{"web", "app", false, http.StatusBadRequest, "unable to retrieve container logs"}, // nothing has written one yet
		} {
			var out bytes.Buffer
			err := w.podAPI().Logs(t.Context(), server.Container{Namespace: "default", Pod: c.pod, Name: c.name},
				&corev1.PodLogOptions{Previous: c.previous}, &out, &out)
			reported, ok := errors.AsType[*server.Error](err)
			if !ok || reported.Code != c.code || !strings.Contains(reported.Text, c.says) || out.Len() > 0 {
				t.Errorf("%s/%s: got %v, %q, want %d and %q, and no log", c.pod, c.name, err, out.String(), c.code, c.says)
			}
		}
	})
}

// TestRunningLogs checks that the logs of running containers are listed for rotation, with their paths.
func TestRunningLogs(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.run(apiPod("web", func(pod *corev1.Pod) { pod.Spec.RestartPolicy = corev1.RestartPolicyNever }))
		synctest.Wait()
		all, err := w.agent.RunningLogs(t.Context())
		if err != nil || len(all) != 1 || all[0].Path != w.runtime.Containers()[0].LogPath ||
			filepath.Base(all[0].Path) != "0.log" {
			t.Errorf("got %v, %v, want one", all, err)
		}
		w.runtime.ExitContainer(all[0].ID, 1, "")
		synctest.Wait()
		if all, err := w.agent.RunningLogs(t.Context()); err != nil || len(all) != 0 {
			t.Errorf("after the end: got %v, %v, want none", all, err)
		}
	})
}

// TestLogsOfUnknownPods checks that the logs of running pods are listed which an agent does not know, because it has
// started while the API server is away.
func TestLogsOfUnknownPods(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.strand("web")
		w.change(func(set *pods.Set) { set.Synced, set.Waiting = false, []pods.Source{pods.SourceAPI} })
		w.begin()
		w.sleep(time.Second)
		all, err := w.agent.RunningLogs(t.Context())
		if err != nil || len(all) != 1 || all[0].Path != w.runtime.Containers()[0].LogPath {
			t.Errorf("got %v, %v, want the log of the container that runs", all, err)
		}
		w.runtime.ExitContainer(all[0].ID, 1, "")
		if all, err := w.agent.RunningLogs(t.Context()); err != nil || len(all) != 0 {
			t.Errorf("after the end: got %v, %v, want none", all, err)
		}
	})
}

// TestPodAPIBeforeTheRuntime checks that nobody who asks about pods waits for a container runtime that has not answered
// since the agent started.
func TestPodAPIBeforeTheRuntime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waiting := errors.New("waiting for the container runtime")
		supervisor := agent.NewSupervisor(agent.Config{Waiting: func() error { return waiting }})
		api := podapi.New(podapi.Config{Pods: supervisor})
		for name, ask := range map[string]func() error{
			"list": func() error { _, err := api.Pods(t.Context()); return err },
			"log": func() error {
				of := server.Container{Namespace: "default", Pod: "web", Name: "app"}
				return api.Logs(t.Context(), of, &corev1.PodLogOptions{}, io.Discard, io.Discard)
			},
			"metrics": func() error { _, err := supervisor.SyncedPods(t.Context()); return err },
			"explain": func() error { _, err := supervisor.Explain(t.Context()); return err },
		} {
			if err := ask(); !errors.Is(err, waiting) {
				t.Errorf("%s: got %v, want what is waited for", name, err)
			}
		}
	})
}

// TestPodAPIShowsPendingResize checks that the lists of pods have the resources that are desired of a pod, as its
// generation says. Only the list of allocated pods has those that the pod was given.
func TestPodAPIShowsPendingResize(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		pod := apiPod("web", wants("1", "1Gi"))
		w.run(pod)
		w.sleep(time.Second)
		w.resize(pod, "5", "1Gi")
		w.checkSize(pod, 1000, "1Gi", "PodResizePending Deferred 2")
		api := w.podAPI()
		for name, of := range map[string]struct {
			list func(context.Context) ([]*corev1.Pod, error)
			want int64
		}{"pods": {api.Pods, 5}, "local pods": {api.LocalPods, 5}, "allocated pods": {api.Allocated, 1}} {
			all, err := of.list(t.Context())
			if err != nil || len(all) != 1 {
				t.Fatalf("%s: got %d, %v, want one", name, len(all), err)
			}
			if got := all[0].Spec.Containers[0].Resources.Requests.Cpu().Value(); got != of.want {
				t.Errorf("%s: got %d CPUs, want %d", name, got, of.want)
			}
		}
	})
}
