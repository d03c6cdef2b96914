package agent_test

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/cri"
	"github.com/nodelet/nodelet/host/userns"
	"github.com/nodelet/nodelet/test/cri/fake"
)

func ownUsers(pod *corev1.Pod) { pod.Spec.HostUsers = ptr(false) }

// mapping is the first ID on the host of a pod's newest sandbox; 0 where it has no IDs of its own.
func (w *world) mapping(pod *corev1.Pod) uint32 {
	first := uint32(0)
	for _, s := range w.runtime.Sandboxes() {
		users := s.GetLinux().GetNamespaces().GetOptions().GetUsernsOptions()
		if s.Metadata.Uid != string(pod.UID) || users.GetMode() != runtimeapi.NamespaceMode_POD {
			continue
		}
		if len(users.Uids) != 1 || len(users.Gids) != 1 || users.Uids[0].HostId != users.Gids[0].HostId ||
			users.Uids[0].ContainerId != 0 {
			w.t.Errorf("pod %s: got %v, want one range of users and groups from the same ID of the host",
				pod.Name, users)
			continue
		}
		first = users.Uids[0].HostId
	}
	return first
}

// TestUserNamespaces checks that pods with hostUsers: false have IDs of their own, none the same; they keep them over
// a restart of the agent and a new sandbox, and give them back with their directory.
func TestUserNamespaces(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, b := apiPod("a", ownUsers), apiPod("b", ownUsers)
		host := apiPod("host")
		w.run(a, b, host)
		w.sleep(time.Second)
		if got := w.running(); len(got) != 3 {
			t.Fatalf("running: got %v, want three", got)
		}
		ofA, ofB := w.mapping(a), w.mapping(b)
		if ofA == 0 || ofB == 0 || ofA == ofB || w.mapping(host) != 0 {
			t.Fatalf("first IDs: got %d for a, %d for b, %d for host, want two different ones and 0",
				ofA, ofB, w.mapping(host))
		}
		w.restart()
		w.sleep(time.Second)
		for _, s := range w.runtime.Sandboxes() {
			w.runtime.KillSandbox(s.Id)
		}
		w.sleep(time.Minute)
		c := apiPod("c", ownUsers)
		w.run(c)
		w.sleep(time.Second)
		if w.mapping(a) != ofA || w.mapping(b) != ofB || w.mapping(c) == ofA || w.mapping(c) == ofB || w.mapping(c) == 0 {
			t.Errorf("first IDs: got %d for a, %d for b, %d for c, want those of a and b as before, and another",
				w.mapping(a), w.mapping(b), w.mapping(c))
		}
		for _, pod := range []*corev1.Pod{a, b, c, host} {
			w.delete(pod, 0)
		}
		w.sleep(time.Minute)
		w.checkNothingLeft()
	})
}

// TestUserNamespaceOfEndedPod checks that a pod that has ended gives its IDs back, although the API still shows it.
func TestUserNamespaceOfEndedPod(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.runtime.Script("app", fake.Script{RunsFor: time.Second})
		w.ids = userns.Range{First: userns.Unit, Length: userns.Unit} // enough for one pod
		w.restart()
		for _, name := range []string{"a", "b", "c"} {
			pod := apiPod(name, ownUsers, func(pod *corev1.Pod) { pod.Spec.RestartPolicy = corev1.RestartPolicyNever })
			w.run(pod)
			w.sleep(time.Minute)
			if st := w.status(pod); st.Phase != corev1.PodSucceeded {
				t.Fatalf("pod %s: got phase %s, want Succeeded", name, st.Phase)
			}
			if name == "b" {
				w.restart()
			}
		}
	})
}

// TestUserNamespaceThatTheRuntimeLacks checks that a runtime handler that cannot give user namespaces makes the pod
// wait, with the reason, and nothing of it runs.
func TestUserNamespaceThatTheRuntimeLacks(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.noUserNamespaces = true
		w.restart()
		w.run(apiPod("a", ownUsers))
		w.sleep(time.Minute)
		w.checkRunning()
		if acts := strings.Join(w.acts(), "\n"); strings.Contains(acts, "RunPodSandbox") {
			t.Errorf("got calls:\n%s\nwant no RunPodSandbox", acts)
		}
		if len(w.eventsWith("runtime does not support user namespaces")) == 0 {
			t.Errorf("got events %v, want one about user namespaces", w.eventsWith(""))
		}
	})
}

// TestImageVolume checks that the image of a volume is pulled by its own policy, and mounted by the runtime.
func TestImageVolume(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.runtime.AddImage(fake.RemoteImage{Name: "data:1"})
		w.run(apiPod("a", func(pod *corev1.Pod) {
			pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
				Image: &corev1.ImageVolumeSource{Reference: "data:1", PullPolicy: corev1.PullIfNotPresent}}}}
			pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data", SubPath: "part"}}
		}))
		w.sleep(time.Second)
		w.checkRunning("a/app#0")
		for _, c := range w.runtime.Containers() {
			for _, m := range c.Mounts {
				if m.ContainerPath == "/data" && m.Image.GetUserSpecifiedImage() == "data:1" && m.ImageSubPath == "part" &&
					m.Readonly && m.HostPath == "" {
					return
				}
			}
			t.Errorf("got mounts %v, want one with the IDs of the pod", c.Mounts)
		}
	})
}

// TestImageSubPathThatTheRuntimeLacks checks that a container with a subPath of an image volume is not created, and
// says why, if the runtime would mount the whole image. One that mounts the image as a whole runs.
func TestImageSubPathThatTheRuntimeLacks(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.noImageSubPath = cri.NoImageSubPath("containerd", "2.1.6")
		w.runtime.AddImage(fake.RemoteImage{Name: "data:1"})
		pods := map[string]*corev1.Pod{}
		for name, sub := range map[string]string{"part": "dark", "whole": ""} {
			pods[name] = apiPod(name, func(pod *corev1.Pod) {
				pod.Spec.Volumes = []corev1.Volume{{Name: "theme", VolumeSource: corev1.VolumeSource{
					Image: &corev1.ImageVolumeSource{Reference: "data:1", PullPolicy: corev1.PullIfNotPresent}}}}
				pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "theme", MountPath: "/data", SubPath: sub}}
			})
			w.run(pods[name])
		}
		w.sleep(time.Minute)
		w.checkRunning("whole/app#0")
		const want = `volume "theme": containerd 2.1.6 does not support a subPath of an image volume`
		got := w.status(pods["part"]).ContainerStatuses[0].State.Waiting
		if got == nil || got.Reason != "CreateContainerConfigError" || !strings.HasPrefix(got.Message, want) {
			t.Errorf("got %v, want that it waits: %s", got, want)
		}
	})
}

// TestImageVolumeBackOff checks that the event names the image that failed: that of the volume, not of the container.
func TestImageVolumeBackOff(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.run(apiPod("a", func(pod *corev1.Pod) {
			pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
				Image: &corev1.ImageVolumeSource{Reference: "data:1", PullPolicy: corev1.PullIfNotPresent}}}}
			pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
		}))
		w.sleep(15 * time.Second)
		if events := w.eventsWith("BackOff "); len(events) != 1 ||
			!strings.Contains(events[0], `Back-off pulling image "data:1"`) {
			t.Errorf("events: got %q", events)
		}
	})
}
