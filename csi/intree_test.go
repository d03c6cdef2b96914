package csi_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/csi"
	"github.com/nodelet/nodelet/test/ownmounts"
)

const kindName = "kubernetes.io/fake"

// kindNode is the node service of a kind of Kubernetes itself: volumes are directories and "devices" are files, below
// dir.
type kindNode struct {
	csipb.NodeClient
	dir       string
	fail      error
	limited   bool // the last NodeStageVolume had a time limit
	published int  // calls of NodePublishVolume
}

func (k *kindNode) kind() csi.InTreeDriver {
	return csi.InTreeDriver{Plugin: kindName, Node: k, Handle: func(directory string) (string, bool) {
		return filepath.Base(directory), strings.HasPrefix(directory, "by-test/")
	}}
}

func (k *kindNode) NodeStageVolume(ctx context.Context, in *csipb.NodeStageVolumeRequest,
	_ ...grpc.CallOption) (*csipb.NodeStageVolumeResponse, error) {
	_, k.limited = ctx.Deadline()
	if in.VolumeCapability.GetBlock() != nil || k.fail != nil {
		return nil, k.fail
	}
	return nil, unix.Mount(k.dir, in.StagingTargetPath, "", unix.MS_BIND, "")
}

func (k *kindNode) NodeUnstageVolume(_ context.Context, in *csipb.NodeUnstageVolumeRequest,
	_ ...grpc.CallOption) (*csipb.NodeUnstageVolumeResponse, error) {
	return nil, leave(in.StagingTargetPath)
}

func (k *kindNode) NodePublishVolume(_ context.Context, in *csipb.NodePublishVolumeRequest,
	_ ...grpc.CallOption) (*csipb.NodePublishVolumeResponse, error) {
	k.published++
	if in.VolumeCapability.GetBlock() == nil {
		return nil, unix.Mount(in.StagingTargetPath, in.TargetPath, "", unix.MS_BIND, "")
	}
	return nil, errors.Join(os.WriteFile(in.TargetPath, nil, 0o600),
		unix.Mount(filepath.Join(k.dir, "device"), in.TargetPath, "", unix.MS_BIND, ""))
}

func (k *kindNode) NodeUnpublishVolume(_ context.Context, in *csipb.NodeUnpublishVolumeRequest,
	_ ...grpc.CallOption) (*csipb.NodeUnpublishVolumeResponse, error) {
	return nil, leave(in.TargetPath)
}

// TestKindHasNoTimeLimit checks that the repair of a file system takes as long as it takes.
func TestKindHasNoTimeLimit(t *testing.T) {
	w, k := kindWorld(t)
	v := kindVolume(false)
	w.publish("pod-1", v)
	if k.limited {
		t.Error("got a call with a time limit, want none")
	}
	w.unpublish("pod-1", v)
	w.nothingLeft()
}

func leave(path string) error {
	if err := unix.Unmount(path, 0); err != nil && !errors.Is(err, unix.EINVAL) {
		return err
	}
	return nil
}

// kindWorld is a node with such a kind and no driver.
func kindWorld(t *testing.T) (*world, *kindNode) {
	t.Helper()
	w := newWorld(t, nil)
	k := &kindNode{dir: filepath.Join(w.root, "storage")}
	if err := os.MkdirAll(filepath.Join(k.dir, "data"), 0o755); err != nil {
		t.Fatal(err)
	}
	image := filepath.Join(t.TempDir(), "image")
	write(t, image, strings.Repeat("data", 256))
	if err := os.Symlink(ownmounts.Loop(t, image), filepath.Join(k.dir, "device")); err != nil {
		t.Fatal(err)
	}
	w.Kill()
	w.kinds = []csi.InTreeDriver{k.kind()}
	w.begin()
	return w, k
}

func kindVolume(block bool) *csi.Volume {
	return &csi.Volume{
		Driver:     kindName,
		Handle:     "disk",
		Directory:  "by-test/disk",
		Name:       "vol",
		Block:      block,
		Attachable: true,
		AccessMode: corev1.ReadWriteOnce,
	}
}

// where are the paths of that volume below the root, as a kubelet has them.
func where(w *world, block bool, pod string) (staging, target string) {
	if block {
		staging = filepath.Join(w.root, "plugins/kubernetes.io/fake/volumeDevices/by-test/disk")
		return staging, filepath.Join(staging, pod)
	}
	return filepath.Join(w.root, "plugins/kubernetes.io/fake/by-test/disk"),
		filepath.Join(w.root, "pods", pod, "volumes/kubernetes.io~fake/vol")
}

func gone(t *testing.T, w *world, paths ...string) {
	t.Helper()
	w.Until("nothing is in use", func() bool { return len(w.csi.InUse()) == 0 })
	for _, path := range paths {
		if _, err := os.Lstat(path); err == nil {
			t.Errorf("%s: got it left, want it removed", path)
		}
	}
	w.nothingLeft()
}

// TestKind checks that an in-tree volume is staged once and published for each pod, at the kubelet's paths, also
// across restarts.
func TestKind(t *testing.T) {
	t.Parallel()
	for _, block := range []bool{false, true} {
		w, k := kindWorld(t)
		v := kindVolume(block)
		for _, pod := range []types.UID{"pod-1", "pod-2"} {
			staging, target := where(w, block, string(pod))
			if p := w.publish(pod, v); p.Path != target {
				t.Errorf("block %t: published %+v, want %s", block, p, target)
			}
			if _, err := os.Stat(staging); err != nil {
				t.Error(err)
			}
			w.restart()
		}
		if in := w.csi.InUse(); len(in) != 1 || in[0] != "kubernetes.io/fake/disk" {
			t.Errorf("in use: got %q, want one", in)
		}
		if w.publish("pod-1", v); k.published != 2 {
			t.Errorf("got %d calls of publish for two pods, also after a crash, want 2", k.published)
		}
		if _, err := w.csi.Publish(t.Context(), "pod-3", kindVolume(!block)); err == nil ||
			!strings.Contains(err.Error(), "another volumeMode") {
			t.Errorf("another volumeMode: got %v, want an error that says so", err)
		}
		w.unpublish("pod-1", v)
		w.unpublish("pod-2", v)
		staging, target := where(w, block, "pod-2")
		gone(t, w, staging, target, filepath.Join(w.root, "pods/pod-2/volumeDevices/kubernetes.io~fake/vol"))
		if len(w.csi.Drivers()) != 1 {
			t.Errorf("drivers: got %v, want one", w.csi.Drivers()) // the fake one alone
		}
	}
}

// TestKindFails checks that a volume is taken down if staging may have happened, because the kind did not report that
// it failed for good; the kind's error is not wrapped in a message about CSI.
func TestKindFails(t *testing.T) {
	t.Parallel()
	w, k := kindWorld(t)
	k.fail = errors.New("no such disk")
	_, err := w.csi.Publish(t.Context(), "pod-1", kindVolume(false))
	if err == nil || err.Error() != `MountVolume.MountDevice failed for volume "vol" : no such disk` {
		t.Errorf("got the error %v, want the kubelet's", err)
	}
	w.unpublish("pod-1", kindVolume(false))
	staging, target := where(w, false, "pod-1")
	gone(t, w, staging, target)
}

// TestOldRecordOfKind checks that a pod is known that a kubelet has started with a volume of which there is a record
// from before: else the volume would be taken down under it.
func TestOldRecordOfKind(t *testing.T) {
	t.Parallel()
	for _, block := range []bool{false, true} {
		w, _ := kindWorld(t)
		v := kindVolume(block)
		w.publish("pod-1", v)
		old := read(t, w.journals()[0])
		w.publish("pod-2", v)
		w.Kill()
		write(t, w.journals()[0], old)
		w.begin()
		w.unpublish("pod-1", v)
		if pods := w.csi.Pods(); len(pods) != 1 || pods[0] != "pod-2" {
			t.Errorf("block %t: got the pods %q, want pod-2", block, pods)
		}
		w.unpublish("pod-2", v)
		staging, target := where(w, block, "pod-2")
		gone(t, w, staging, target)
	}
}

// TestKindOfKubelet checks that what a kubelet has staged and published is known by its paths and the mounts.
func TestKindOfKubelet(t *testing.T) {
	t.Parallel()
	for _, block := range []bool{false, true} {
		w, k := kindWorld(t)
		w.Kill()
		staging, target := where(w, block, "pod-1")
		link := filepath.Join(w.root, "pods/pod-1/volumeDevices/kubernetes.io~fake/vol")
		for _, dir := range []string{staging, filepath.Dir(link), filepath.Dir(target)} {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		var err error
		if block {
			err = errors.Join(os.WriteFile(target, nil, 0o600),
				unix.Mount(filepath.Join(k.dir, "device"), target, "", unix.MS_BIND, ""),
				os.Symlink(filepath.Join(k.dir, "device"), link))
		} else {
			// A file system of its own, as a disk has.
			err = errors.Join(os.Mkdir(target, 0o755), unix.Mount("tmpfs", staging, "tmpfs", 0, ""),
				unix.Mount(staging, target, "", unix.MS_BIND, ""))
		}
		if err != nil {
			t.Fatal(err)
		}
		w.begin()
		if pods := w.csi.Pods(); len(pods) != 1 || pods[0] != "pod-1" {
			t.Errorf("block %t: got the pods %q, want pod-1", block, pods)
		}
		if !w.csi.Has(t.Context(), "pod-1", kindVolume(block)) {
			t.Errorf("block %t: got an unknown volume, want it known", block)
		}
		w.unpublish("pod-1", kindVolume(block))
		gone(t, w, staging, target, link)
	}
}
