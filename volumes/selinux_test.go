package volumes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/nodelet/nodelet/agent/spec"
	"github.com/nodelet/nodelet/csi"
	"github.com/nodelet/nodelet/host/mounts"
	"github.com/nodelet/nodelet/kube/pluginname"
	"github.com/nodelet/nodelet/kube/storage"
	"github.com/nodelet/nodelet/plugins"
	"github.com/nodelet/nodelet/test/csi/fake"
	"github.com/nodelet/nodelet/test/waittest"
)

const (
	policyLabel = "system_u:object_r:container_file_t:s0"
	labelOne    = policyLabel + ":c1,c2"
)

// verdicts hears what is counted of SELinux labels.
type verdicts struct {
	noMetrics
	heard []string
}

func (v *verdicts) SELinux(verdict SELinuxResult, driver, mode string, applies bool) {
	text := string(verdict) + " " + driver + " " + mode
	if !applies {
		text += " warning"
	}
	v.heard = append(v.heard, text)
}

// levelPod has one container with the volume data for each level.
func levelPod(uid types.UID, levels ...string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: string(uid), Namespace: "default", UID: uid}}
	for _, level := range levels {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{
			Name:            "app",
			VolumeMounts:    []corev1.VolumeMount{{Name: "data"}},
			SecurityContext: &corev1.SecurityContext{SELinuxOptions: &corev1.SELinuxOptions{Level: level}},
		})
	}
	return pod
}

func recursively(pod *corev1.Pod) *corev1.Pod {
	policy := corev1.SELinuxChangePolicyRecursive
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{SELinuxChangePolicy: &policy}
	return pod
}

func modes(all ...corev1.PersistentVolumeAccessMode) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{AccessModes: all}}
}

func labelDriver(name string, mounts bool) *storagev1.CSIDriver {
	yes, no := true, false
	policy := storagev1.NoneFSGroupPolicy
	return &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: storagev1.CSIDriverSpec{AttachRequired: &no, PodInfoOnMount: &no,
			RequiresRepublish: &no, ServiceAccountTokenInSecrets: &no,
			VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent},
			SELinuxMount:         map[bool]*bool{true: &yes, false: &no}[mounts], FSGroupPolicy: &policy},
	}
}

var dataVolume = &corev1.Volume{Name: "data"}

// selinuxRequest is for a volume of a pod, with what the agent says of the pod's labels.
func selinuxRequest(pod *corev1.Pod, v *corev1.Volume, node *spec.Node) Request {
	r := requestFor(pod, v)
	r.SELinux = SELinux{
		Enabled:   node.SELinux,
		EveryMode: node.SELinuxMount,
		Labels:    func() ([]string, error) { return spec.VolumeLabels(node, pod, "data") },
	}
	return r
}

// TestSELinuxLabel checks when a volume is mounted with the label of its pod, and when that is counted or refused.
func TestSELinuxLabel(t *testing.T) {
	t.Parallel()
	const pod1, rwo, rwx = corev1.ReadWriteOncePod, corev1.ReadWriteOnce, corev1.ReadWriteMany
	on, gate := spec.Node{SELinux: true, SELinuxFileLabel: policyLabel}, spec.Node{
		SELinux:          true,
		SELinuxFileLabel: policyLabel,
		SELinuxMount:     true,
	}
	one, mixed := levelPod("p", "s0:c1,c2"), levelPod("p", "s0:c1,c2", "s0:c3,c4")
	mounts, not := labelDriver("d", true), labelDriver("d", false)
	for _, c := range []struct {
		name   string
		node   spec.Node
		pod    *corev1.Pod
		pv     *corev1.PersistentVolume
		driver *storagev1.CSIDriver
		want   string // the label, or what is in the error
		heard  string
	}{
		{"one pod's volume", on, one, modes(pod1), mounts, labelOne, ""},
		{"no SELinux", spec.Node{SELinuxFileLabel: policyLabel}, one, modes(pod1), mounts, "", ""},
		{"a driver that cannot", on, one, modes(pod1), not, "", ""},
		{"a volume for more pods", on, one, modes(rwo), mounts, "", ""},
		{"a mode beside it", on, one, modes(pod1, rwx), mounts, "", ""},
		{"the gate", gate, one, modes(rwx), mounts, labelOne, ""},
		{"the pod wants it file by file", gate, recursively(levelPod("p", "s0:c1,c2")), modes(pod1), mounts, "", ""},
		{"no level", gate, levelPod("p"), modes(pod1), mounts, "", ""},
		{"the runtime makes the level up", gate, levelPod("p", ""), modes(pod1), mounts, "", ""},
		{"two labels", on, mixed, modes(pod1), mounts, "multiple SELinux labels found", "mixed d RWOP"},
		{"two labels, which do no harm", on, mixed, modes(rwo, rwx), mounts, "", "mixed d RWX warning"},
		{"two labels, file by file", on, recursively(levelPod("p", "s0:c1,c2", "s0")), modes(pod1), mounts, "", ""},
		{"no policy", spec.Node{SELinux: true}, one, modes(pod1), mounts, "install a policy", "unknown d RWOP"},
		{"no policy, which does no harm", spec.Node{SELinux: true}, one, modes(corev1.ReadOnlyMany), mounts, "",
			"unknown d ROX warning"},
	} {
		ear := &verdicts{}
		m := &mounting{
			Manager: &Manager{cfg: Config{Metrics: ear}},
			Request: selinuxRequest(c.pod, dataVolume, &c.node),
		}
		label, err := (&driven{mounting: m, driver: c.driver, pv: c.pv}).seLinux()
		got := label.Mount
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, c.want) || c.want == "" && got != "" || strings.Join(ear.heard, ";") != c.heard {
			t.Errorf("%s: got %q, %v, counted %q", c.name, got, err, ear.heard)
		}
	}
}

// TestSELinuxWanted checks what is counted of a volume when a pod begins to use it, also if volumes of its access mode
// are mounted without labels: its first pod that wants a label, and a pod that wants another one than that.
func TestSELinuxWanted(t *testing.T) {
	t.Parallel()
	const unknown, once = "unknown", corev1.ReadWriteOnce
	on, one := spec.Node{SELinux: true, SELinuxFileLabel: policyLabel}, levelPod("p", "s0:c1,c2")
	can, cannot := labelDriver("d", true), labelDriver("d", false)
	for _, c := range []struct {
		name        string
		pod         *corev1.Pod
		mode        corev1.PersistentVolumeAccessMode
		driver      *storagev1.CSIDriver
		want        string // the label
		first, next string // what is counted of the first pod, and of one after others with another label
	}{
		{"a volume for more pods", one, once, can, labelOne, "admitted d RWO warning", "conflict d RWO warning"},
		{"one pod's volume", one, corev1.ReadWriteOncePod, can, labelOne, "admitted d RWOP", "conflict d RWOP"},
		{"no label", levelPod("p"), once, can, "", "", "conflict d RWO warning"},
		{"file by file", recursively(levelPod("p", "s0:c1,c2")), once, can, "", "", "conflict d RWO warning"},
		{"two labels", levelPod("p", "s0:c1,c2", "s0"), once, can, unknown, "", ""},
		{"a driver that cannot", one, once, cannot, unknown, "", ""},
	} {
		ear := &verdicts{}
		m := &mounting{
			Manager: &Manager{cfg: Config{Metrics: ear}},
			Request: selinuxRequest(c.pod, dataVolume, &on),
		}
		label, err := (&driven{mounting: m, driver: c.driver, pv: modes(c.mode)}).seLinux()
		if got := ptr.Deref(label.Wanted, unknown); err != nil || got != c.want {
			t.Errorf("%s: got label %q, %v, want %q", c.name, got, err, c.want)
		}
		if (label.Begun == nil) != (c.want == unknown) {
			t.Errorf("%s: got that the use is counted %t, want it if the label is known", c.name, label.Begun != nil)
		}
		if label.Begun == nil {
			continue
		}
		for _, begun := range []struct {
			first bool
			want  string
		}{{true, c.first}, {false, c.next}} {
			ear.heard = nil
			label.Begun(begun.first, !begun.first)
			if got := strings.Join(ear.heard, ";"); got != begun.want {
				t.Errorf("%s, first %t: counted %q, want %q", c.name, begun.first, got, begun.want)
			}
		}
		ear.heard = nil
		if label.Begun(false, false); len(ear.heard) > 0 {
			t.Errorf("%s, a pod after others with the same label: counted %q, want nothing", c.name, ear.heard)
		}
	}
}

// TestSELinuxMount checks the way from a pod's options to the flags that its driver gets, and to a volume that the
// runtime leaves as it is.
func TestSELinuxMount(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root: the driver mounts")
	}
	dir, err := os.MkdirTemp("", "selinux") // short: a socket's path has at most 107 characters
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		left, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
		for _, m := range left {
			err = errors.Join(err, fmt.Errorf("left mounted: %s", m.Mountpoint), unix.Unmount(m.Mountpoint, unix.MNT_DETACH))
		}
		if err = errors.Join(err, os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	})
	image := filepath.Join(dir, "state", "volumes", "vol.img")
	if err := os.MkdirAll(image, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "state", "volumes", "vol.json"), []byte(`{"ID":"vol","Name":"vol"}`),
		0o644); err != nil {
		t.Fatal(err)
	}
	driver, err := fake.Start(fake.Config{
		Name:     "d",
		NodeID:   "node",
		State:    filepath.Join(dir, "state"),
		Socket:   filepath.Join(dir, "csi.sock"),
		Registry: filepath.Join(dir, "plugins_registry"),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(driver.Close)
	heard := &verdicts{}
	cluster := &oneVolume{driver: labelDriver("d", true)}
	manager := newTestManager(t, Config{Root: dir, Metrics: heard, Cluster: cluster}, nil)
	ctx, cancel := context.WithCancel(t.Context())
	registry := plugins.New(plugins.Config{
		Root:     dir,
		Handlers: map[string]plugins.Handler{csi.PluginType: manager.Plugins()},
	})
	var running sync.WaitGroup
	running.Go(func() { manager.Run(ctx) })
	running.Go(func() { registry.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })

	node := spec.Node{SELinux: true, SELinuxFileLabel: policyLabel, SELinuxMount: true}
	pv := modes(corev1.ReadWriteMany)
	pv.Name, pv.Spec.MountOptions = "pv", []string{"noatime"}
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: "vol"}
	cluster.claim = &storage.Claim{PVC: &corev1.PersistentVolumeClaim{}, PV: pv}
	mount := func(pod *corev1.Pod) (Mounted, error) {
		return manager.Mount(t.Context(), selinuxRequest(pod, claimVolume, &node), nil)
	}
	if m, err := mount(levelPod("pod-1", "s0:c1,c2")); err != nil || m.SELinuxRelabel {
		t.Errorf("got %+v, %v, want no relabelling", m, err)
	}
	for _, method := range []string{"NodeStageVolume", "NodePublishVolume"} {
		if got := driver.MountFlags(method, "vol"); !slices.Equal(got, []string{"noatime", `context="` + labelOne + `"`}) {
			t.Errorf("%s got the flags %q", method, got)
		}
	}
	if m, err := mount(levelPod("pod-4", "s0:c1,c2")); err != nil || m.SELinuxRelabel {
		t.Errorf("pod with the same label: got %+v, %v, want no relabelling", m, err)
	}
	if _, err := mount(levelPod("pod-2", "s0:c3,c4")); err == nil ||
		!strings.Contains(err.Error(), "conflicting SELinux labels of volume pv") {
		t.Errorf("pod with another label: got %v, want a conflict", err)
	}
	if m, err := mount(levelPod("pod-1", "s0:c1,c2", "s0:c9")); err != nil || m.SELinuxRelabel {
		t.Errorf("container that joins later: got %+v, %v, want no relabelling", m, err)
	}
	if want := []string{"admitted d RWX", "conflict d RWX"}; !slices.Equal(heard.heard, want) {
		t.Errorf("counted %q, want %q", heard.heard, want)
	}
	for _, pod := range []types.UID{"pod-1", "pod-4"} {
		if err := manager.Unmount(t.Context(), pod, OnDisk{Plugin: pluginname.CSI, Name: "pv"}); err != nil {
			t.Error(err)
		}
	}
	m, err := mount(recursively(levelPod("pod-3", "s0:c3,c4")))
	if err != nil {
		t.Fatal(err)
	}
	if keeps, err := mounts.KeepsLabels(m.HostPath); err != nil || m.SELinuxRelabel != keeps {
		t.Errorf("recursive policy: got relabelling %t, %v, want it if the file system keeps labels", m.SELinuxRelabel, err)
	}
	if got := driver.MountFlags("NodeStageVolume", "vol"); !slices.Equal(got, pv.Spec.MountOptions) {
		t.Errorf("staged again: got flags %q, want %q", got, pv.Spec.MountOptions)
	}
	if err := manager.Unmount(t.Context(), "pod-3", OnDisk{Plugin: pluginname.CSI, Name: "pv"}); err != nil {
		t.Error(err)
	}
	waittest.Until(t, "the volume is unstaged, in the background, and its record is removed", func() bool {
		records, err := os.ReadDir(filepath.Join(dir, "nodelet", "csi"))
		return err == nil && len(records) == 0
	})
}
