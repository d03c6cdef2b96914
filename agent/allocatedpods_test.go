package agent_test

import (
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/agent/placement/state"
)

// checkpointed returns what the kubelet would find as the CPU limits of the container app, by pod; nil without a file.
func (w *world) checkpointed() map[types.UID]string {
	w.t.Helper()
	text, err := os.ReadFile(w.path("allocated_pods_state"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		w.t.Fatal(err)
	}
	entries, err := state.UnmarshalPods(text)
	if err != nil {
		w.t.Fatal(err)
	}
	all := map[types.UID]string{}
	for uid, e := range entries {
		cpu := e.ContainerResources["app"].Limits["cpu"]
		all[uid] = cpu.String()
	}
	return all
}

// leaveCheckpoint writes the file as a kubelet does, with the CPU limits of the container app.
func (w *world) leaveCheckpoint(cpus map[types.UID]string) {
	w.t.Helper()
	entries := map[types.UID]state.PodResources{}
	for uid, cpu := range cpus {
		pod := apiPod("any", wants(cpu, "1Gi"))
		entries[uid] = state.PodResources{
			ContainerResources: map[string]corev1.ResourceRequirements{"app": pod.Spec.Containers[0].Resources},
		}
	}
	text, err := state.MarshalPods(entries)
	if err == nil {
		err = os.WriteFile(w.path("allocated_pods_state"), text, 0o600)
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) checkCheckpoint(what string, want map[types.UID]string) {
	w.t.Helper()
	if diff := cmp.Diff(want, w.checkpointed()); diff != "" {
		w.t.Errorf("%s: the kubelet would find other CPU limits (-want +got): %s", what, diff)
	}
}

// TestCheckpointForTheKubelet checks that a kubelet that follows finds what pods hold that were resized, or are to be.
// Without that it admits them with what they request, and refuses pods that run.
func TestCheckpointForTheKubelet(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, b := apiPod("a", wants("1", "1Gi")), apiPod("b", wants("1", "1Gi"))
		w.run(a, b)
		w.sleep(time.Second)
		w.restart()
		w.sleep(time.Minute)
		w.checkCheckpoint("pods that hold what they request", nil)
		w.resize(a, "8", "1Gi")
		want := map[types.UID]string{"uid-a": "1"}
		w.checkCheckpoint("a resize that cannot be done", want)
		w.resize(b, "2", "1Gi")
		want["uid-b"] = "2"
		w.checkCheckpoint("a resize", want)
		w.resize(a, "1", "1Gi")
		w.checkCheckpoint("a resize that was called off", want)
		w.remove(b.UID)
		w.sleep(time.Minute)
		w.resize(a, "8", "1Gi")
		w.resize(a, "2", "1Gi")
		w.checkCheckpoint("a pod that has gone", map[types.UID]string{"uid-a": "2"})
	})
}

// TestCheckpointOfTheKubelet checks that an entry of a kubelet is made right when it is wrong, that the file is not
// written otherwise, and that entries of pods stay as long as any of them may be wanted.
func TestCheckpointOfTheKubelet(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, b := apiPod("a", wants("1", "1Gi")), apiPod("b", wants("1", "1Gi"))
		w.run(a, b)
		w.sleep(time.Second)
		w.end()
		of := map[types.UID]string{"uid-a": "1", "uid-b": "1", "uid-gone": "3"}
		w.leaveCheckpoint(of)
		before, err := os.Stat(w.path("allocated_pods_state"))
		if err != nil {
			t.Fatal(err)
		}
		w.begin()
		w.sleep(time.Minute)
		if now, err := os.Stat(w.path("allocated_pods_state")); err != nil || !os.SameFile(before, now) {
			t.Errorf("the file was written (%v) although nothing was wrong", err)
		}
		w.end()
		w.set.Synced = false
		wrong := maps.Clone(of)
		wrong["uid-b"] = "3"
		w.leaveCheckpoint(wrong)
		w.begin()
		w.sleep(time.Minute)
		w.checkCheckpoint("an entry from before the last resize", of)
		w.checkSize(b, 1000, "1Gi")
	})
}

// TestCheckpointIsWhole checks that the file has the resources of the pod and of its init containers, and those that
// are not CPU or memory: the kubelet takes an entry in place of what is in the spec.
func TestCheckpointIsWhole(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.end()
		w.allocatable["ephemeral-storage"] = resource.MustParse("1Gi")
		w.begin()
		list := func(cpu string) corev1.ResourceList {
			return corev1.ResourceList{"cpu": resource.MustParse(cpu), "ephemeral-storage": resource.MustParse("1Mi")}
		}
		pod := apiPod("a", func(pod *corev1.Pod) {
			pod.Spec.Resources = &corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("2")}}
			pod.Spec.Containers[0].Resources.Requests = list("1")
			first := *pod.Spec.Containers[0].DeepCopy()
			first.Name = "first"
			pod.Spec.InitContainers = []corev1.Container{first}
		})
		w.run(pod)
		w.sleep(time.Second)
		w.exit("first", 0)
		w.sleep(time.Second)
		w.changeSpec(pod, func(pod *corev1.Pod) { pod.Spec.Resources.Requests["cpu"] = resource.MustParse("20") })
		w.sleep(time.Second)
		text, err := os.ReadFile(w.path("allocated_pods_state"))
		if err != nil {
			t.Fatal(err)
		}
		got, err := state.UnmarshalPods(text)
		want := map[types.UID]state.PodResources{pod.UID: {
			ContainerResources: map[string]corev1.ResourceRequirements{
				"first": pod.Spec.InitContainers[0].Resources, "app": pod.Spec.Containers[0].Resources,
			},
			PodLevelResources:    pod.Spec.Resources,
			EmptyDirVolumeLimits: json.RawMessage("null"),
		}}
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("got error %v, difference %s", err, diff)
		}
	})
}

// TestCheckpointDamaged checks that a damaged file, with which no kubelet starts, does not stop the agent, which
// replaces it.
func TestCheckpointDamaged(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		pod := apiPod("a", wants("1", "1Gi"))
		if err := os.WriteFile(w.path("allocated_pods_state"), []byte(`{"data":"{}","checksum":1}`), 0o600); err != nil {
			t.Fatal(err)
		}
		w.run(pod)
		w.sleep(time.Second)
		w.resize(pod, "8", "1Gi")
		w.checkCheckpoint("after damage", map[types.UID]string{"uid-a": "1"})
	})
}

// TestCheckpointIsMadeUpFor checks that an entry which could not be written when a pod was resized, as on a full disk,
// gets there although the pod does not change again.
func TestCheckpointIsMadeUpFor(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, b := apiPod("a", wants("1", "1Gi")), apiPod("b", wants("1", "1Gi"))
		w.run(a, b)
		w.sleep(time.Second)
		inTheWay := w.path("allocated_pods_state/file")
		if err := os.MkdirAll(inTheWay, 0o700); err != nil {
			t.Fatal(err)
		}
		w.resize(a, "8", "1Gi")
		w.resize(b, "2", "1Gi")
		if err := os.RemoveAll(filepath.Dir(inTheWay)); err != nil {
			t.Fatal(err)
		}
		w.sleep(2 * time.Minute)
		w.checkCheckpoint("when it can be written", map[types.UID]string{"uid-a": "1", "uid-b": "2"})
	})
}
