package eviction

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/agent/eviction/policy"
	"github.com/nodelet/nodelet/host/cgroups"
	"github.com/nodelet/nodelet/host/pressure"
	"github.com/nodelet/nodelet/metrics/usage"
	"github.com/nodelet/nodelet/test/ownmounts"
)

// runtimeStub is a runtime that keeps images in a directory and layers in another one, if that is not empty. Each pod
// has a container app; layer is the size of its layer in bytes, and err why that is not known.
type runtimeStub struct {
	usage.Runtime
	dir, layers string
	layer       uint64
	err         error
	connections uint64
}

func (r *runtimeStub) Connections() uint64 { return r.connections }

func (r *runtimeStub) AnsweredAfter(time.Time) bool { return true }

func (r *runtimeStub) ImageFsInfo(context.Context) (*runtimeapi.ImageFsInfoResponse, error) {
	if r.dir == "" {
		return nil, errors.New("no answer")
	}
	at := func(dir string) []*runtimeapi.FilesystemUsage {
		if dir == "" {
			return nil
		}
		return []*runtimeapi.FilesystemUsage{{FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: dir}}}
	}
	return &runtimeapi.ImageFsInfoResponse{ImageFilesystems: at(r.dir), ContainerFilesystems: at(r.layers)}, nil
}

func (r *runtimeStub) List(context.Context) ([]*runtimeapi.PodSandbox, []*runtimeapi.Container, error) {
	return nil, []*runtimeapi.Container{{Id: "1", State: runtimeapi.ContainerState_CONTAINER_RUNNING}}, nil
}

func (r *runtimeStub) PodContainerStats(context.Context, string) ([]*runtimeapi.ContainerStats, error) {
	if r.layer == 0 {
		return nil, r.err
	}
	return []*runtimeapi.ContainerStats{{
		Attributes:    &runtimeapi.ContainerAttributes{Id: "1", Metadata: &runtimeapi.ContainerMetadata{Name: "app"}},
		WritableLayer: &runtimeapi.FilesystemUsage{UsedBytes: &runtimeapi.UInt64Value{Value: r.layer}},
	}}, nil
}

// newMachine makes a Machine whose directories are below root.
func newMachine(t *testing.T, root, images string) *Machine {
	t.Helper()
	return machineWith(t, root, &runtimeStub{dir: images})
}

func machineWith(t *testing.T, root string, runtime *runtimeStub) *Machine {
	t.Helper()
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	tree, err := cgroups.New(cgroups.Config{Driver: "cgroupfs"})
	if err != nil {
		t.Skip("cgroups cannot be read: ", err)
	}
	return NewMachine(MachineConfig{
		RootDir: root,
		Cgroups: tree,
		Usage: usage.New(usage.Config{
			Hierarchy: usage.NewHierarchy(tree.Mounts()),
			Runtime:   runtime,
			RootDir:   root,
			PodsDir:   filepath.Join(root, "pods"),
			LogsDir:   filepath.Join(root, "logs"),
			Log:       log,
		}),
		Runtime: runtime,
		Log:     log,
	})
}

// TestHostsFileCountsAgainstLimit checks that a pod that writes more into /etc/hosts than its limit of ephemeral
// storage allows has exceeded that limit (CVE-2020-8557), and is charged for it when the disk is short.
func TestHostsFileCountsAgainstLimit(t *testing.T) {
	root := t.TempDir()
	m := newMachine(t, root, root)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "u1"}}
	pod.Spec.Containers = []corev1.Container{{Name: "app", Resources: corev1.ResourceRequirements{
		Limits: corev1.ResourceList{corev1.ResourceEphemeralStorage: resource.MustParse("1Mi")},
	}}}
	if err := os.MkdirAll(filepath.Join(root, "pods/u1"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "pods/u1/etc-hosts"), make([]byte, 2<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	used := m.Use(t.Context(), policy.NodeFSAvailable, []*corev1.Pod{pod})
	if got := used[0].Disk; got < 2<<20 || !used[0].Known {
		t.Errorf("use of the disk: got %+v, want at least 2 MiB", used[0].Usage)
	}
	all := m.Storage(t.Context(), []*corev1.Pod{pod})
	if over := policy.Exceeded(pod, all[0]); over == nil || over.Signal != policy.PodLimit {
		t.Errorf("got %+v for %+v, want the pod's limit exceeded", over, all[0])
	}
}

// TestOldSizesEvictNobody checks that an eviction for disk measures what a pod takes now, also if that was measured
// long ago and nobody has asked since.
func TestOldSizesEvictNobody(t *testing.T) {
	root := t.TempDir()
	m := newMachine(t, root, root)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "u1"}}
	if err := os.MkdirAll(filepath.Join(root, "pods/u1"), 0o755); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		for _, mib := range []int64{1, 5, 2} {
			file := filepath.Join(root, "pods/u1/etc-hosts")
			if err := os.WriteFile(file, make([]byte, mib<<20), 0o600); err != nil {
				t.Fatal(err)
			}
			got := m.Use(t.Context(), policy.NodeFSAvailable, []*corev1.Pod{pod})[0].Usage
			if !got.Known || got.Disk>>20 != mib {
				t.Errorf("got %+v, want %d MiB", got, mib)
			}
			time.Sleep(time.Duration(mib) * 2 * time.Minute) // of sizes that are kept and of such that are not
		}
	})
}

// TestLateDirectories checks that what a pod takes is unknown only while nothing of it has been measured: while none of
// its directories has been, and it has no layers or these are on another file system.
func TestLateDirectories(t *testing.T) {
	layers := map[string]usage.Amount{"app": {Bytes: 5}}
	for name, c := range map[string]struct {
		local               usage.Local
		directories, layers bool
		want                policy.Usage
	}{
		"nothing":               {usage.Local{Late: true}, true, true, policy.Usage{}},
		"layers":                {usage.Local{Late: true, Layers: layers}, true, true, policy.Usage{Known: true, Disk: 5}},
		"layers alone are here": {usage.Local{Late: true, Layers: layers}, false, true, policy.Usage{Known: true, Disk: 5}},
		"layers not measured":   {usage.Local{}, false, true, policy.Usage{}},
		"neither is here":       {usage.Local{}, false, false, policy.Usage{Known: true}},
		"empty directories":     {usage.Local{}, true, false, policy.Usage{Known: true}},
	} {
		if got := useOf(&c.local, c.directories, c.layers); got != c.want {
			t.Errorf("%s: got %+v, want %+v", name, got, c.want)
		}
	}
}

// TestLimitsWithoutLayers checks that limits of emptyDirs hold while the runtime does not say how large the writable
// layers of containers are, or where they are.
func TestLimitsWithoutLayers(t *testing.T) {
	root := t.TempDir()
	file := filepath.Join(root, "pods/u1/volumes/kubernetes.io~empty-dir/data/file")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, make([]byte, 2<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	limit := resource.MustParse("1Mi")
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "full", UID: "u1"}}
	pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
		EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: &limit},
	}}}
	other := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "limited", UID: "u2"}}
	other.Spec.Containers = []corev1.Container{{Name: "app", Resources: corev1.ResourceRequirements{
		Limits: corev1.ResourceList{corev1.ResourceEphemeralStorage: limit},
	}}}
	for name, runtime := range map[string]runtimeStub{
		"no statistics": {dir: root, err: errors.New("no statistics")},
		"no answer":     {err: errors.New("no answer")},
	} {
		all := machineWith(t, root, &runtime).Storage(t.Context(), []*corev1.Pod{pod, other})
		if over := policy.Exceeded(pod, all[0]); over == nil || over.Signal != policy.EmptyDirLimit {
			t.Errorf("%s: got %+v for %+v, want the limit of the emptyDir exceeded", name, over, all[0])
		}
	}
}

// TestMachine reads the machine that the test runs on: all levels with a runtime, and those of the node's own file
// system without one. Images on the node's file system help against its signals, images elsewhere do not.
func TestMachine(t *testing.T) {
	root := t.TempDir()
	m := newMachine(t, root, root)
	levels := m.Levels()
	disks, complete := m.DiskLevels(t.Context())
	maps.Copy(levels, disks)
	for _, signal := range []string{
		policy.MemoryAvailable, policy.PIDAvailable, policy.NodeFSAvailable, policy.ImageFSAvailable,
	} {
		if l := levels[signal]; l.Capacity <= 0 || l.Available > l.Capacity {
			t.Errorf("%s: got %+v", signal, l)
		}
	}
	if !complete {
		t.Error("levels of the disks: got that they are not complete, want that they are")
	}
	if !m.Frees(t.Context(), policy.NodeFSAvailable) {
		t.Error("images on the node's file system do not help against nodefs.available, want that they do")
	}
	apart := newMachine(t, root, "/proc")
	if apart.Frees(t.Context(), policy.NodeFSAvailable) || !apart.Frees(t.Context(), policy.ImageFSAvailable) {
		t.Error("images on another file system: want them to help against imagefs.available alone")
	}
	silent, complete := newMachine(t, root, "").DiskLevels(t.Context())
	if _, known := silent[policy.ImageFSAvailable]; known || complete || silent[policy.NodeFSAvailable].Capacity <= 0 {
		t.Errorf("without an answer of the runtime: got %+v, want the node's file system alone", silent)
	}
}

// TestRuntimeKeepsFilesElsewhere checks that the disk of the images is measured where a restarted runtime keeps them,
// and where they were before while it does not say that.
func TestRuntimeKeepsFilesElsewhere(t *testing.T) {
	root, images := t.TempDir(), t.TempDir()
	runtime := &runtimeStub{dir: images, connections: 1}
	m := machineWith(t, root, runtime)
	measured := func() bool {
		levels, complete := m.DiskLevels(t.Context())
		return complete && levels[policy.ImageFSAvailable].Capacity > 0
	}
	if !measured() {
		t.Error("at first: got no level of the disk of the images, want one")
	}
	runtime.dir, runtime.connections = "", 2
	if !measured() {
		t.Error("while the runtime does not answer: got no level of the disk of the images, want one")
	}
	runtime.dir = root
	if err := os.Remove(images); err != nil {
		t.Fatal(err)
	}
	if !measured() {
		t.Error("with images elsewhere: got no level of their disk, want one")
	}
}

// TestLayouts checks, for each way in which the node, images and layers can share file systems, what a pod takes of the
// file system of each signal, whether the removal of images helps, that containerfs is measured if nothing else is, and
// that the limit of a container counts its layer.
func TestLayouts(t *testing.T) {
	const elsewhere, mib = "/dev/shm", 1 << 20
	root := t.TempDir()
	_, _, node, err := pressure.Disk(root)
	other, _, device, errOther := pressure.Disk(elsewhere)
	if err = errors.Join(err, errOther); err == nil && node == device {
		err = fmt.Errorf("%s is on the same", root)
	}
	ownmounts.Need(t, "a second file system at "+elsewhere, err)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "u1"}}
	pod.Spec.Containers = []corev1.Container{{Name: "app", Resources: corev1.ResourceRequirements{
		Limits: corev1.ResourceList{corev1.ResourceEphemeralStorage: resource.MustParse("1Mi")},
	}}}
	if err := os.MkdirAll(filepath.Join(root, "pods/u1"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "pods/u1/etc-hosts"), make([]byte, 2*mib), 0o600); err != nil {
		t.Fatal(err)
	}
	type of struct {
		uses  int64 // in MiB
		frees bool
	}
	for name, c := range map[string]struct {
		runtime                 runtimeStub
		node, images, layers    of
		layersAlone, imagesAway bool
	}{
		"one file system": {
			runtime: runtimeStub{dir: root},
			node:    of{7, true}, images: of{7, true}, layers: of{7, true},
		},
		"images and layers apart": {
			runtime: runtimeStub{dir: elsewhere},
			node:    of{2, false}, images: of{5, true}, layers: of{5, true}, imagesAway: true,
		},
		"images apart": {
			runtime: runtimeStub{dir: elsewhere, layers: root},
			node:    of{7, false}, images: of{0, true}, layers: of{7, false}, imagesAway: true,
		},
		"layers apart": {
			runtime: runtimeStub{dir: root, layers: elsewhere},
			node:    of{2, true}, images: of{2, true}, layers: of{5, false}, layersAlone: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			c.runtime.layer = 5 * mib
			m := machineWith(t, root, &c.runtime)
			for signal, want := range map[string]of{
				policy.NodeFSAvailable:      c.node,
				policy.ImageFSAvailable:     c.images,
				policy.ContainerFSAvailable: c.layers,
			} {
				got := m.Use(t.Context(), signal, []*corev1.Pod{pod})[0]
				if !got.Known || got.Disk/mib != want.uses {
					t.Errorf("%s: got %+v, want %d MiB", signal, got.Usage, want.uses)
				}
				if frees := m.Frees(t.Context(), signal); frees != want.frees {
					t.Errorf("%s: got that the removal of images helps: %t, want %t", signal, frees, want.frees)
				}
			}
			levels, _ := m.DiskLevels(t.Context())
			got, measured := levels[policy.ContainerFSAvailable]
			if measured != c.layersAlone || measured && got.Capacity != other.Capacity {
				t.Errorf("containerfs: got %+v, want it measured only if layers are alone: %t", got, c.layersAlone)
			}
			if got := levels[policy.ImageFSAvailable].Capacity == other.Capacity; got != c.imagesAway {
				t.Errorf("imagefs is measured elsewhere: got %t, want %t", got, c.imagesAway)
			}
			all := m.Storage(t.Context(), []*corev1.Pod{pod})
			if all[0].Containers["app"] != 5*mib {
				t.Errorf("limits of containers: got %+v, want 5 MiB", all)
			}
		})
	}
}
