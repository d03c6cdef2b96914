package volumes

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/csi"
	"github.com/nodelet/nodelet/kube/pluginname"
	"github.com/nodelet/nodelet/kube/storage"
	"github.com/nodelet/nodelet/volumes/podfs"
)

// noMetrics counts nothing.
type noMetrics struct{}

func (noMetrics) VolumeOperation(string, string, time.Duration, error) {}

func (noMetrics) CSICalled(string, string, time.Duration, error) {}

func (noMetrics) SELinux(SELinuxResult, string, string, bool) {}

// operations are those that were counted.
type operations struct {
	noMetrics
	counted []string
}

func (o *operations) VolumeOperation(name, plugin string, _ time.Duration, err error) {
	o.counted = append(o.counted, fmt.Sprintf("%s %s %t", name, plugin, err == nil))
}

// detached is a node to which nothing is attached.
type detached struct{ oneVolume }

func (*detached) AttachedInTree(context.Context, types.UID, corev1.UniqueVolumeName) error {
	return errors.New("it is not attached")
}

// TestOperations checks which operations on volumes are counted, and for which plugins.
func TestOperations(t *testing.T) {
	t.Parallel()
	emptyDir := &corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}
	local := modes(corev1.ReadWriteOnce)
	local.Name, local.Spec.Local = "pv", &corev1.LocalVolumeSource{Path: t.TempDir()}
	block := corev1.PersistentVolumeBlock
	localBlock, lunBlock := local.DeepCopy(), modes(corev1.ReadWriteOnce)
	localBlock.Spec.VolumeMode = &block
	lunBlock.Name, lunBlock.Spec.VolumeMode = "raw", &block
	lunBlock.Spec.ISCSI = &corev1.ISCSIPersistentVolumeSource{TargetPortal: "10.0.0.1", IQN: "iqn.2026-01.test:a"}
	of := func(pv *corev1.PersistentVolume) Cluster {
		return &oneVolume{claim: &storage.Claim{PVC: &corev1.PersistentVolumeClaim{}, PV: pv}}
	}
	for _, c := range []struct {
		name    string
		cluster Cluster
		volume  *corev1.Volume
		onDisk  OnDisk
		want    []string
	}{
		{"emptyDir", nil, emptyDir, OnDisk{Plugin: pluginname.EmptyDir, Name: "data"}, []string{
			"volume_mount kubernetes.io/empty-dir true",
			"volume_unmount kubernetes.io/empty-dir true",
		}},
		{"local volume", of(local), claimVolume, OnDisk{Plugin: pluginname.Local, Name: "pv"}, []string{
			"volume_mount kubernetes.io/local-volume true",
			"volume_unmount kubernetes.io/local-volume true",
		}},
		{"local device, which is none", of(localBlock), claimVolume, OnDisk{Plugin: pluginname.Local, Name: "pv"}, []string{
			"map_volume kubernetes.io/local-volume false",
			"volume_unmount kubernetes.io/local-volume true",
		}},
		{"device of a driver", of(lunBlock), claimVolume, OnDisk{Plugin: pluginname.CSI, Name: "raw"}, []string{
			"verify_controller_attached_volume kubernetes.io/iscsi true",
			"map_volume kubernetes.io/iscsi true",
			"unmap_volume kubernetes.io/iscsi true",
		}},
		{"volume of a driver", nil, lunOf("chap"), OnDisk{Plugin: pluginname.CSI, Name: "data"}, []string{
			"verify_controller_attached_volume kubernetes.io/iscsi true",
			"volume_mount kubernetes.io/iscsi true",
			"volume_unmount kubernetes.io/iscsi true",
		}},
		{"no secret", nil, lunOf("none"), OnDisk{Plugin: pluginname.CSI, Name: "data"}, []string{
			"verify_controller_attached_volume kubernetes.io/iscsi true",
			"volume_mount kubernetes.io/iscsi false",
			"volume_unmount kubernetes.io/iscsi true",
		}},
		{"no attachment", &detached{}, lunOf("chap"), OnDisk{Plugin: pluginname.CSI, Name: "data"}, []string{
			"verify_controller_attached_volume kubernetes.io/iscsi false",
			"volume_unmount kubernetes.io/iscsi true",
		}},
	} {
		o := &operations{}
		m := newTestManager(t, Config{Root: t.TempDir(), Cluster: c.cluster, Metrics: o}, &lunNode{})
		r := lunRequest(c.volume)
		if _, err := m.Mount(t.Context(), r, chapSecrets{}); err == nil && podfs.External(c.volume) {
			r.Refresh = true
			if _, err := m.Mount(t.Context(), r, chapSecrets{}); err != nil {
				t.Errorf("%s: refresh: %v", c.name, err)
			}
		}
		if err := m.Unmount(t.Context(), r.Pod.UID, c.onDisk); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if !slices.Equal(o.counted, c.want) {
			t.Errorf("%s: counted %q, want %q", c.name, o.counted, c.want)
		}
	}
}

// TestPlugin checks that the plugin of a volume has the name of its driver, and that the plugin of a claim is known
// while it is mounted.
func TestPlugin(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	m := newTestManager(t, Config{Root: root}, nil)
	pod := lunRequest(claimVolume).Pod
	v := &csi.Volume{Driver: "d", Handle: "vol", Name: "pv", AccessMode: corev1.ReadWriteOnce}
	if err := m.csi.Use(t.Context(), pod.UID, v); err != nil {
		t.Fatal(err)
	}
	inline := &corev1.Volume{VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "e"}}}
	block := claimVolume.DeepCopy()
	block.Name = "block"
	pod.Spec.Containers = []corev1.Container{{VolumeDevices: []corev1.VolumeDevice{{Name: block.Name}}}}
	for _, c := range []struct {
		volume        *corev1.Volume
		mounted, want string
	}{
		{claimVolume, filepath.Join(root, csi.Target(pod.UID, "pv", false)), "kubernetes.io/csi:d"},
		{claimVolume, "", pluginname.CSI},
		{claimVolume, filepath.Join(root, "pods/uid/volumes/kubernetes.io~nfs/pv"), pluginname.NFS},
		{claimVolume, filepath.Join(root, "pods/uid/volumes/kubernetes.io~local-volume/pv"), pluginname.Local},
		{claimVolume, "/data", pluginname.HostPath},
		{block, filepath.Join(root, "plugins/kubernetes.io/iscsi/volumeDevices/lun/uid"), pluginname.ISCSI},
		{block, "/dev/sdb", pluginname.Local},
		{inline, "", "kubernetes.io/csi:e"},
		{lunOf("chap"), "", pluginname.ISCSI},
	} {
		if got := m.Plugin(pod, c.volume, c.mounted); got != c.want {
			t.Errorf("volume at %q: got %s, want %s", c.mounted, got, c.want)
		}
	}
}
