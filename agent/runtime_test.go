package agent_test

import (
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/agent"
	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/kube/pods"
	"github.com/nodelet/nodelet/test/cri/fake"
)

// waits are what explain says that a pod waits for.
func (w *world) waits(pod *corev1.Pod) []agent.Wait {
	w.t.Helper()
	all, err := w.agent.Explain(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	for _, e := range all {
		if e.UID == string(pod.UID) {
			return e.Waits
		}
	}
	return nil
}

// checkWaits: the first thing that the pod waits for, and why, contain these words.
func (w *world) checkWaits(pod *corev1.Pod, what, why string) {
	w.t.Helper()
	waits := w.waits(pod)
	if len(waits) == 0 || !strings.Contains(waits[0].For, what) || !strings.Contains(waits[0].Why, why) {
		w.t.Errorf("waits for %+v, want %q: %q", waits, what, why)
	}
}

// TestSideBySide checks that the sandbox, the volumes and the image of a pod are made at the same time.
func TestSideBySide(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.runtime.SandboxTakes = 10 * time.Second
		w.runtime.Publish(fake.RemoteImage{Name: "fresh:1", Takes: 10 * time.Second})
		pod := apiPod("web", withEmptyDir, func(pod *corev1.Pod) { pod.Spec.Containers[0].Image = "fresh:1" })
		w.run(pod)
		w.sleep(time.Second)
		if got := w.acts(); !slices.Contains(got, "PullImage fresh:1") ||
			!slices.Contains(got, "RunPodSandbox default/web#0") {
			t.Errorf("calls under way: got %q, want the pull and the sandbox", got)
		}
		if _, err := os.Stat(w.path("pods/uid-web/volumes/kubernetes.io~empty-dir/data")); err != nil {
			t.Errorf("volume while there is no sandbox: got %v, want it mounted", err)
		}
		w.sleep(9 * time.Second)
		w.checkRunning("web/app#0")
	})
}

// TestObjectWakesMount checks that a pod that waits for a ConfigMap starts at the moment in which there is one.
func TestObjectWakesMount(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		pod := apiPod("web", withConfigMap("settings"))
		w.run(pod)
		w.sleep(10 * time.Minute)
		w.checkRunning()
		w.checkWaits(pod, "mount volume data", "settings")
		if len(w.eventsWith("FailedMount")) == 0 {
			t.Error("got no event about the failed mount")
		}
		w.change(func(set *pods.Set) {
			set.ConfigMaps = map[types.NamespacedName]*corev1.ConfigMap{
				{Namespace: "default", Name: "settings"}: {Data: map[string]string{"color": "blue"}}}
		})
		w.sleep(0)
		w.checkRunning("web/app#0")
		w.change(func(set *pods.Set) {
			set.ConfigMaps = map[types.NamespacedName]*corev1.ConfigMap{
				{Namespace: "default", Name: "settings"}: {Data: map[string]string{"color": "red"}}}
		})
		w.sleep(0)
		got, err := os.ReadFile(w.path("pods/uid-web/volumes/kubernetes.io~configmap/data/color"))
		if string(got) != "red" {
			t.Errorf("volume of the running pod: got %q, %v, want red", got, err)
		}
	})
}

// TestImageIsGoneAgain checks that a pod whose image was collected as unused, while the pod waited for a ConfigMap,
// gets it again.
func TestImageIsGoneAgain(t *testing.T) {
	for name, with := range map[string]func(*corev1.Pod){
		"volume":      withConfigMap("settings"),
		"environment": withConfigMapEnv("settings"),
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.runtime.Publish(fake.RemoteImage{Name: "fresh:1"})
				w.run(apiPod("web", with, func(pod *corev1.Pod) { pod.Spec.Containers[0].Image = "fresh:1" }))
				w.sleep(10 * time.Minute)
				w.checkRunning()
				image := &runtimeapi.ImageSpec{Image: "fresh:1"}
				if _, err := w.runtime.RemoveImage(t.Context(), &runtimeapi.RemoveImageRequest{Image: image}); err != nil {
					t.Fatal(err)
				}
				w.change(func(set *pods.Set) {
					set.ConfigMaps = map[types.NamespacedName]*corev1.ConfigMap{
						{Namespace: "default", Name: "settings"}: {Data: map[string]string{"color": "blue"}}}
				})
				w.sleep(time.Minute)
				w.checkRunning("web/app#0")
			})
		})
	}
}

// TestTagMovesDuringWait checks that a pod with the pull policy Always, which waits for a ConfigMap while its tag moves
// to another image, starts with that one.
func TestTagMovesDuringWait(t *testing.T) {
	for name, with := range map[string]func(*corev1.Pod){
		"volume":      withConfigMap("settings"),
		"environment": withConfigMapEnv("settings"),
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.runtime.Publish(fake.RemoteImage{Name: "moves:1", ID: "sha256:old"})
				w.run(apiPod("web", with, func(pod *corev1.Pod) {
					pod.Spec.Containers[0].Image, pod.Spec.Containers[0].ImagePullPolicy = "moves:1", corev1.PullAlways
				}))
				w.sleep(time.Hour)
				w.checkRunning()
				w.runtime.Publish(fake.RemoteImage{Name: "moves:1", ID: "sha256:new"})
				w.sleep(2 * podstate.PullAgainAfter)
				w.change(func(set *pods.Set) {
					set.ConfigMaps = map[types.NamespacedName]*corev1.ConfigMap{
						{Namespace: "default", Name: "settings"}: {Data: map[string]string{"color": "blue"}}}
				})
				w.sleep(time.Minute)
				w.checkRunning("web/app#0")
				for _, c := range w.runtime.Containers() {
					if got, want := c.ImageRef, "sha256:new"; got != want {
						t.Errorf("image of the container: got %s, want %s", got, want)
					}
				}
			})
		})
	}
}

// TestImageChangesBack checks that a pod that waits for a ConfigMap starts with its image, as the user of that, if the
// image was changed meanwhile to one that cannot be pulled, and back.
func TestImageChangesBack(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.runtime.Publish(fake.RemoteImage{Name: "fresh:1", UID: ptr(int64(1000))})
		with := func(image string, generation int64) *corev1.Pod {
			return apiPod("web", withConfigMap("settings"), func(pod *corev1.Pod) {
				pod.Generation = generation
				app := &pod.Spec.Containers[0]
				app.Image, app.SecurityContext = image, &corev1.SecurityContext{RunAsNonRoot: ptr(true)}
			})
		}
		for i, image := range []string{"fresh:1", "missing:1", "fresh:1"} {
			w.run(with(image, int64(i+1)))
			w.sleep(time.Minute)
			w.checkRunning()
		}
		w.change(func(set *pods.Set) {
			set.ConfigMaps = map[types.NamespacedName]*corev1.ConfigMap{
				{Namespace: "default", Name: "settings"}: {Data: map[string]string{"color": "blue"}}}
		})
		w.sleep(10 * time.Minute)
		w.checkRunning("web/app#0")
	})
}

// TestImageIsLoaded checks that a pod whose image could not be pulled starts soon after the image has been loaded
// onto the node, however long the back-off of the pull is, and that nothing is reported meanwhile.
func TestImageIsLoaded(t *testing.T) {
	for _, policy := range []corev1.PullPolicy{corev1.PullIfNotPresent, corev1.PullNever} {
		t.Run(string(policy), func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.run(apiPod("web", func(pod *corev1.Pod) {
					pod.Spec.Containers[0].Image, pod.Spec.Containers[0].ImagePullPolicy = "fresh:1", policy
				}))
				w.sleep(16 * time.Minute) // the back-off is five minutes
				before := len(w.eventsWith(""))
				w.sleep(time.Minute)
				if got := len(w.eventsWith("")); got != before {
					t.Errorf("got %d events in a minute of back-off, want none", got-before)
				}
				w.runtime.AddImage(fake.RemoteImage{Name: "fresh:1"})
				w.sleep(15 * time.Second)
				w.checkRunning("web/app#0")
			})
		})
	}
}

// TestImageCannotBeLookedUp checks that an outage of the runtime's image service does not count as failed pulls, whose
// back-off is long.
func TestImageCannotBeLookedUp(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.runtime.Publish(fake.RemoteImage{Name: "fresh:1"})
		fault := w.runtime.Inject(&fake.Fault{Verb: "ImageStatus", Err: errors.New("database is locked")})
		pod := apiPod("web", func(pod *corev1.Pod) { pod.Spec.Containers[0].Image = "fresh:1" })
		w.run(pod)
		w.sleep(16 * time.Minute)
		if got, want := containerStatus(w.status(pod), "app").State.Waiting.Reason, "ImageInspectError"; got != want {
			t.Errorf("reason: got %s, want %s", got, want)
		}
		w.runtime.Release(fault)
		w.sleep(65 * time.Second)
		w.checkRunning("web/app#0")
	})
}

// TestNoDNSSettingsYet checks that a pod waits for the DNS settings of the node: it would keep those of its start.
func TestNoDNSSettingsYet(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.noDNS.Store(true)
		w.run(apiPod("web"))
		w.sleep(time.Minute)
		w.checkRunning()
		w.noDNS.Store(false)
		w.sleep(time.Minute)
		w.checkRunning("web/app#0")
	})
}

// TestMetadataReachesVolumes checks that a volume of the downward API follows the labels of the pod.
func TestMetadataReachesVolumes(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can mount the tmpfs that such a volume is in")
	}
	inWorld(t, func(t *testing.T, w *world) {
		labels := &corev1.DownwardAPIVolumeSource{Items: []corev1.DownwardAPIVolumeFile{
			{Path: "color", FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.labels['color']"}}},
			DefaultMode: ptr(int32(0o644))}
		pod := apiPod("web", withVolume("labels", corev1.VolumeSource{DownwardAPI: labels}))
		for _, color := range []string{"blue", "red"} {
			next := pod.DeepCopy()
			next.Labels = map[string]string{"color": color}
			w.run(next)
			w.sleep(0)
			got, err := os.ReadFile(w.path("pods/uid-web/volumes/kubernetes.io~downward-api/labels/color"))
			if string(got) != color {
				t.Errorf("the volume: got %q, want %q: %v", got, color, err)
			}
		}
		w.checkOnce()
		w.remove(pod.UID)
		w.sleep(time.Second)
		w.checkNothingLeft()
	})
}

// TestClockMoves checks that volumes are looked at again after the machine was suspended, or its clock was set: a token
// may have expired, and the timer for its renewal does not notice that.
func TestClockMoves(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can mount the tmpfs that such a volume is in")
	}
	inWorld(t, func(t *testing.T, w *world) {
		name := &corev1.DownwardAPIVolumeSource{Items: []corev1.DownwardAPIVolumeFile{
			{Path: "name", FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.name"}}},
			DefaultMode: ptr(int32(0o644))}
		pod := apiPod("web", withVolume("name", corev1.VolumeSource{DownwardAPI: name}))
		w.run(pod)
		w.sleep(time.Second)
		link := w.path("pods/uid-web/volumes/kubernetes.io~downward-api/name/..data")
		shown := func() bool {
			w.sleep(3 * time.Minute)
			_, err := os.Lstat(link)
			return err == nil
		}
		for _, moved := range []time.Duration{8 * time.Hour, -time.Hour} {
			if err := os.Remove(link); err != nil {
				t.Fatal(err)
			}
			if shown() {
				t.Error("no reason: got the volume mounted again, want it left alone")
			}
			w.clockMoved.Add(int64(moved))
			if !shown() {
				t.Errorf("after the clock has moved by %s: got no link, want the volume mounted again", moved)
			}
		}
		w.remove(pod.UID)
		w.sleep(time.Second)
		w.checkNothingLeft()
	})
}

// TestOnePodHangs checks that a runtime that is stuck with one pod holds up no other, and explain names the step.
func TestOnePodHangs(t *testing.T) {
	for _, c := range []struct{ verb, object, step string }{
		{"RunPodSandbox", "default/stuck#0", "create sandbox attempt 0"},
		{"CreateContainer", "slow#0", "create container slow attempt 0"},
	} {
		t.Run(c.verb, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				hang := w.runtime.Inject(&fake.Fault{Verb: c.verb, Object: c.object, Hang: true, Inside: true})
				stuck := apiPod("stuck", func(pod *corev1.Pod) { pod.Spec.Containers[0].Name = "slow" })
				w.run(stuck)
				w.sleep(time.Second)
				w.run(apiPod("web"))
				w.sleep(0)
				w.checkRunning("web/app#0")
				w.checkWaits(stuck, c.step, "in progress")
				w.sleep(10 * time.Minute)
				if hang.Hits() < 2 {
					t.Error("a call that is never answered: got no second try, want one")
				}
				w.checkWaits(stuck, c.step, "")
				w.runtime.Release(hang)
				w.sleep(2 * time.Minute)
				w.checkRunning("web/app#0", "stuck/slow#0")
			})
		})
	}
}

// TestDeleteWhileSandboxHangs checks that the pod that the runtime is stuck with can be deleted.
func TestDeleteWhileSandboxHangs(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.runtime.Inject(&fake.Fault{Verb: "RunPodSandbox", Hang: true, Inside: true})
		pod := apiPod("web")
		w.run(pod)
		w.sleep(time.Second)
		w.delete(pod, 30*time.Second)
		if took := w.gone(pod); took != 0 {
			t.Errorf("the pod went after %v, want at once", took)
		}
	})
}

// TestLooksHang checks that where the runtime does not even say how a pod is, explain says so; the pod goes on when
// it answers again.
func TestLooksHang(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		hang := w.runtime.Inject(&fake.Fault{Verb: "PodSandboxStatus", Hang: true})
		pod := apiPod("stuck")
		w.run(pod)
		w.sleep(time.Minute)
		w.checkWaits(pod, "read the state of the pod from the container runtime", "")
		w.sleep(10 * time.Minute)
		w.checkWaits(pod, "read the state of the pod from the container runtime", "")
		w.runtime.Release(hang)
		w.sleep(2 * time.Minute)
		w.checkRunning("stuck/app#0")
		w.checkOnce()
	})
}

// TestManyHang checks that pods that the runtime is stuck with do not hold the others up at the gate.
func TestManyHang(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.runtime.Inject(&fake.Fault{Verb: "RunPodSandbox", Object: "default/stuck-", Hang: true})
		for _, name := range strings.Split("abcdefghijklmnopqrstuvwxyz", "") {
			w.run(apiPod("stuck-"+name), apiPod("stuck-"+name+name))
		}
		w.sleep(time.Second)
		w.run(apiPod("web"))
		w.sleep(time.Minute)
		w.checkRunning("web/app#0")
	})
}

// TestRuntimeRestarts checks that pods run on while the runtime is away, and what happened meanwhile is seen when it
// is back.
func TestRuntimeRestarts(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		pod := apiPod("web")
		w.run(pod)
		w.sleep(time.Minute)
		w.runtime.Crash(false)
		w.sleep(time.Minute)
		w.runtime.ExitContainer(w.runtime.Containers()[0].Id, 1, "")
		later := apiPod("later")
		w.run(later)
		w.sleep(time.Minute)
		if len(w.waits(later)) == 0 {
			t.Error("explain: got nothing that the new pod waits for, want it")
		}
		if err := w.runtime.Restart(); err != nil {
			t.Fatal(err)
		}
		w.sleep(time.Minute)
		got := w.running()
		slices.Sort(got)
		if want := []string{"later/app#0", "web/app#1"}; !slices.Equal(got, want) {
			t.Errorf("running: got %v, want %v", got, want)
		}
	})
}

// TestRuntimeBecomesReady checks that a pod which could not get a sandbox gets one as soon as the network of the
// runtime is ready, however long the back-off is.
func TestRuntimeBecomesReady(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		fault := &fake.Fault{Verb: "RunPodSandbox", Err: errors.New("cni plugin not initialized")}
		w.runtime.Inject(fault)
		w.run(apiPod("web"))
		w.sleep(10*time.Minute + 10*time.Second)
		w.runtime.Release(fault)
		w.sleep(5 * time.Second)
		w.checkRunning() // it still waits
		w.agent.RuntimeReady()
		w.sleep(5 * time.Second)
		w.checkRunning("web/app#0")
	})
}

// TestReboot checks that after a reboot each pod gets a new sandbox, and its containers are counted on.
func TestReboot(t *testing.T) {
	for _, amnesia := range []bool{false, true} {
		t.Run("", func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.amnesia = amnesia
				w.runtime.Script("setup", fake.Script{RunsFor: time.Second})
				pod := apiPod("web", withInit("setup"))
				w.run(pod)
				w.sleep(time.Minute)
				w.end()
				w.runtime.Crash(true)
				if err := w.runtime.Restart(); err != nil {
					t.Fatal(err)
				}
				w.begin()
				w.sleep(time.Minute)
				w.checkRunning("web/app#1")
				all := w.runtime.Sandboxes()
				if n := len(all); n == 0 || all[n-1].Metadata.Attempt != 1 ||
					all[n-1].State != runtimeapi.PodSandboxState_SANDBOX_READY {
					t.Errorf("sandboxes: got %v, want a ready one of attempt 1 as the newest", all)
				}
				if st := w.status(pod); !ready(st) || containerStatus(st, "app").RestartCount != 1 {
					t.Errorf("status: got %+v, want a ready pod after one restart", st)
				}
			})
		})
	}
}

// TestSandboxKilled checks that a pod whose sandbox was killed gets another, with an event, and its container another
// instance.
func TestSandboxKilled(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.run(apiPod("web"))
		w.sleep(time.Minute)
		if got := w.eventsWith("SandboxChanged"); len(got) != 0 {
			t.Errorf("before the kill: got %q, want no such event", got)
		}
		w.runtime.KillSandbox(w.runtime.Sandboxes()[0].Id)
		w.sleep(time.Minute)
		w.checkRunning("web/app#1")
		if all := w.runtime.Sandboxes(); all[len(all)-1].Metadata.Attempt != 1 {
			t.Errorf("attempt of the newest sandbox: got %d, want 1", all[len(all)-1].Metadata.Attempt)
		}
		if got := w.eventsWith("SandboxChanged"); len(got) != 1 {
			t.Errorf("after the kill: got %q, want one such event", got)
		}
	})
}

// TestExitIsNoticed checks that an exit is noticed: by the event at once; within a moment if the runtime has no
// events, or they were lost, as those that containerd 1.7 has given to another reader.
func TestExitIsNoticed(t *testing.T) {
	for _, c := range []struct {
		name, events, version string

		cut    bool
		within time.Duration
	}{
		{"event", "", "", false, 0},
		{"no event stream", "none", "", false, 2 * time.Second},
		{"events of another reader", "taken", "v1.7.29", false, 2 * time.Second},
		{"events lost", "", "", true, time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				if c.events != "" {
					w.end()
					w.runtime.NoEvents = c.events == "none"
					w.runtime.OtherReader = c.events == "taken"
					w.runtime.RuntimeVersion = c.version
					w.begin()
				}
				pod := apiPod("web")
				w.run(pod)
				w.sleep(time.Minute + 300*time.Millisecond)
				if c.cut {
					w.runtime.CutStreams()
				}
				w.runtime.ExitContainer(w.runtime.Containers()[0].Id, 1, "")
				w.sleep(c.within)
				w.checkRunning("web/app#1")
			})
		})
	}
}

// TestLossIsNoticed checks that a pod that was removed from the runtime without an event is created again.
func TestLossIsNoticed(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.run(apiPod("web"))
		w.sleep(2 * time.Minute)
		w.runtime.CutStreams()
		if err := w.agent.runtime.RemovePodSandbox(t.Context(), w.runtime.Sandboxes()[0].Id); err != nil {
			t.Fatal(err)
		}
		w.sleep(2 * time.Second)
		w.checkRunning("web/app#1")
	})
}

// TestIdle checks that a node on which nothing happens asks the runtime for two lists a minute.
func TestIdle(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.run(apiPod("a"), apiPod("b"), apiPod("c"))
		w.sleep(10 * time.Minute)
		w.runtime.ResetCalls()
		w.sleep(10 * time.Minute)
		if n := len(w.runtime.Calls()); n != 20 {
			t.Errorf("got %d calls in ten minutes: %v, want 20", n, w.runtime.Verbs())
		}
	})
}

// TestRelistOfKnownPods checks that a list which shows what the workers know makes none of them ask the runtime.
func TestRelistOfKnownPods(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		pod := apiPod("web")
		w.run(pod)
		w.sleep(time.Second)
		w.checkRunning("web/app#0")
		w.runtime.ResetCalls()
		w.sleep(time.Minute)
		want := map[string]int{"ListPodSandbox": 1, "ListContainers": 1}
		if got := w.runtime.Verbs(); !maps.Equal(got, want) {
			t.Errorf("in a minute without a change: got the calls %v, want %v", got, want)
		}
	})
}
