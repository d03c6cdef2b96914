package volumes

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodelet/nodelet/csi"
	"github.com/nodelet/nodelet/kube/pluginname"
	"github.com/nodelet/nodelet/kube/storage"
)

// TestSetsGroup checks who gives the files of a CSI volume to the pod's fsGroup, by the policy of its CSIDriver.
func TestSetsGroup(t *testing.T) {
	t.Parallel()
	const (
		none   = storagev1.NoneFSGroupPolicy
		file   = storagev1.FileFSGroupPolicy
		byType = storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy
	)
	once, pod := modes(corev1.ReadWriteOnce), modes(corev1.ReadWriteOncePod)
	many, both := modes(corev1.ReadWriteMany), modes(corev1.ReadOnlyMany, corev1.ReadWriteOnce)
	for _, c := range []struct {
		volume csi.Volume
		pv     *corev1.PersistentVolume
		policy storagev1.FSGroupPolicy
		want   bool
	}{
		{csi.Volume{FSType: "ext4"}, once, byType, true},
		{csi.Volume{FSType: "ext4"}, pod, byType, true},
		{csi.Volume{FSType: "ext4"}, many, byType, false},
		{csi.Volume{FSType: "ext4"}, both, byType, true},
		{csi.Volume{}, once, byType, false},
		{csi.Volume{FSType: "ext4", Ephemeral: true}, nil, byType, true},
		{csi.Volume{}, many, file, true},
		{csi.Volume{ReadOnly: true}, many, file, false},
		{csi.Volume{Block: true}, once, file, false},
		{csi.Volume{FSType: "ext4"}, once, none, false},
	} {
		if got := setsGroup(&c.volume, c.pv, c.policy); got != c.want {
			t.Errorf("%+v with policy %s: got %t, want %t", c.volume, c.policy, got, c.want)
		}
	}
}

// TestClaimIsBeingDeleted checks that a pod starts with a claim that is being deleted and is still protected: the claim
// stays until the pod has ended. Without the protection it goes, and the pod does not get it.
func TestClaimIsBeingDeleted(t *testing.T) {
	t.Parallel()
	now, pv := metav1.Now(), modes(corev1.ReadWriteOnce)
	pv.Name, pv.Spec.HostPath = "pv", &corev1.HostPathVolumeSource{Path: t.TempDir()}
	pvc := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
		DeletionTimestamp: &now,
		Finalizers:        []string{"kubernetes.io/pvc-protection", "example.com/backup"},
	}}
	cluster := &oneVolume{claim: &storage.Claim{PVC: pvc, PV: pv}}
	manager := newTestManager(t, Config{Root: t.TempDir(), Cluster: cluster}, nil)
	if _, err := manager.Mount(t.Context(), lunRequest(claimVolume), nil); err != nil {
		t.Errorf("a claim that is protected: got %v, want the volume", err)
	}
	pvc.Finalizers = pvc.Finalizers[1:]
	if _, err := manager.Mount(t.Context(), lunRequest(claimVolume), nil); err == nil ||
		!strings.Contains(err.Error(), "is being deleted") {
		t.Errorf("a claim that is not protected: got %v, want that it is being deleted", err)
	}
}

// TestReadOnlyOption checks that a volume with the mount option ro is read-only in every way: its device is neither
// formatted nor repaired.
func TestReadOnlyOption(t *testing.T) {
	t.Parallel()
	local := modes(corev1.ReadOnlyMany)
	local.Name, local.Spec.MountOptions = "local", []string{"noatime,ro"}
	local.Spec.Local = &corev1.LocalVolumeSource{Path: t.TempDir()}
	lun := modes(corev1.ReadOnlyMany)
	lun.Name, lun.Spec.MountOptions = "lun", []string{"ro"}
	lun.Spec.ISCSI = &corev1.ISCSIPersistentVolumeSource{TargetPortal: "10.0.0.1", IQN: "iqn.2026-01.test:a"}
	cluster := &oneVolume{}
	manager, node, _ := lunManager(t, cluster)
	for _, pv := range []*corev1.PersistentVolume{local, lun} {
		cluster.claim = &storage.Claim{PVC: &corev1.PersistentVolumeClaim{}, PV: pv}
		m, err := manager.Mount(t.Context(), lunRequest(claimVolume), chapSecrets{})
		if err != nil || !m.ReadOnly {
			t.Errorf("%s: got %+v, %v, want it read-only", pv.Name, m, err)
		}
	}
	if !node.published.Readonly || !strings.Contains(node.staged.VolumeContext["lun"], `"ReadOnly":true`) {
		t.Errorf("got staged %v, published %v, want both read-only", node.staged, node.published)
	}
	if err := manager.Unmount(t.Context(), "uid", OnDisk{Plugin: pluginname.Local, Name: "local"}); err != nil {
		t.Error(err)
	}
}

// TestReadOnlySource checks that readOnly of a PersistentVolume's source makes nothing read-only: the claim of the pod
// alone says that.
func TestReadOnlySource(t *testing.T) {
	tools, options := t.TempDir(), filepath.Join(t.TempDir(), "options")
	script := "#!/bin/sh\necho \"$@\" >" + options + "\n" // it mounts nothing
	if err := os.WriteFile(filepath.Join(tools, "mount"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", tools+":"+os.Getenv("PATH"))
	share, lun := modes(corev1.ReadWriteMany), modes(corev1.ReadWriteOnce)
	share.Name, share.Spec.NFS = "share", &corev1.NFSVolumeSource{Server: "nfs.test", Path: "/e", ReadOnly: true}
	lun.Name, lun.Spec.ISCSI = "lun", &corev1.ISCSIPersistentVolumeSource{TargetPortal: "10.0.0.1",
		IQN: "iqn.2026-01.test:a", ReadOnly: true}
	cluster := &oneVolume{}
	manager, node, _ := lunManager(t, cluster)
	for _, pv := range []*corev1.PersistentVolume{share, lun} {
		cluster.claim = &storage.Claim{PVC: &corev1.PersistentVolumeClaim{}, PV: pv}
		m, err := manager.Mount(t.Context(), lunRequest(claimVolume), chapSecrets{})
		if err != nil || m.ReadOnly {
			t.Errorf("%s: got %+v, %v, want it writable", pv.Name, m, err)
		}
	}
	if got, err := os.ReadFile(options); err != nil || strings.Contains(string(got), "-o") {
		t.Errorf("got mount called with %s, %v, want no option", got, err)
	}
	if node.published.Readonly || strings.Contains(node.staged.VolumeContext["lun"], `"ReadOnly":true`) {
		t.Errorf("got staged %v, published %v, want both writable", node.staged, node.published)
	}
}

// TestClaimOfTwoVolumes checks a claim that two volumes of a pod name. They share one mount, which can be written to if
// one of them asks for that, whichever is mounted first. The other one is read-only in the containers. A volume that no
// container uses is not mounted, and asks for nothing.
func TestClaimOfTwoVolumes(t *testing.T) {
	tools, options := t.TempDir(), filepath.Join(t.TempDir(), "options")
	script := "#!/bin/sh\necho \"$@\" >>" + options + "\n" // it mounts nothing
	if err := os.WriteFile(filepath.Join(tools, "mount"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", tools+":"+os.Getenv("PATH"))
	named := func(name, claim string, readOnly bool) corev1.Volume {
		source := &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim, ReadOnly: readOnly}
		return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: source}}
	}
	own := corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}}
	other, unused := named("other", "another", false), named("unused", "c", false)
	mounts := []corev1.VolumeMount{{Name: "a"}, {Name: "b"}, {Name: "data"}, {Name: "other"}}
	uses := []corev1.Container{{VolumeMounts: mounts}}
	for name, c := range map[string]struct {
		volumes []corev1.Volume
		writes  bool
	}{
		"read-only first":   {[]corev1.Volume{other, named("a", "c", true), named("b", "c", false)}, true},
		"read-only last":    {[]corev1.Volume{named("a", "c", false), named("b", "c", true), other}, true},
		"both read-only":    {[]corev1.Volume{named("a", "c", true), other, named("b", "c", true)}, false},
		"both writable":     {[]corev1.Volume{named("a", "c", false), named("b", "c", false)}, true},
		"unused writable":   {[]corev1.Volume{unused, named("a", "c", true)}, false},
		"claim of a volume": {[]corev1.Volume{named("a", "pod-data", true), own}, true},
	} {
		for kind, pv := range onceOfEachKind() {
			cluster := &oneVolume{claim: &storage.Claim{PVC: &corev1.PersistentVolumeClaim{}, PV: pv}}
			manager, node, _ := lunManager(t, cluster)
			for i := range c.volumes {
				v := &c.volumes[i]
				if v.Name == other.Name || v.Name == unused.Name {
					continue
				}
				r := lunRequest(v)
				r.Pod.Spec.Volumes, r.Pod.Spec.Containers = c.volumes, uses
				asks := v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ReadOnly
				if m, err := manager.Mount(t.Context(), r, chapSecrets{}); err != nil || m.ReadOnly != asks {
					t.Errorf("%s, %s: volume %s: got %+v, %v, want read-only %t", name, kind, v.Name, m, err, asks)
				}
				if node.published != nil && node.published.Readonly == c.writes {
					t.Errorf("%s, %s: volume %s: got %v, want written to: %t", name, kind, v.Name, node.published, c.writes)
				}
			}
		}
		got, err := os.ReadFile(options)
		if err != nil || strings.Contains(string(got), "-o ro") == c.writes {
			t.Errorf("%s: got mount called with %s, %v, want written to: %t", name, got, err, c.writes)
		}
		if err := os.Remove(options); err != nil {
			t.Fatal(err)
		}
	}
}

// onceOfEachKind returns PersistentVolumes that are mounted once for a pod, or for all its pods.
func onceOfEachKind() map[string]*corev1.PersistentVolume {
	share, lun := modes(corev1.ReadWriteMany), modes(corev1.ReadWriteOnce)
	share.Name, share.Spec.NFS = "share", &corev1.NFSVolumeSource{Server: "nfs.test", Path: "/e"}
	lun.Name, lun.Spec.ISCSI = "lun", &corev1.ISCSIPersistentVolumeSource{TargetPortal: "10.0.0.1",
		IQN: "iqn.2026-01.test:a"}
	return map[string]*corev1.PersistentVolume{"nfs": share, "iscsi": lun}
}

func TestPersistentVolume(t *testing.T) {
	t.Parallel()
	yes, block := true, corev1.PersistentVolumeBlock
	claim := &storage.Claim{
		PVC: &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data"}},
		PV: &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: corev1.PersistentVolumeSpec{
			VolumeMode: &block, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany},
			MountOptions: []string{"noatime"},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: "d", VolumeHandle: "h", FSType: "xfs", VolumeAttributes: map[string]string{"a": "b"}}}}},
	}
	v := persistentVolume(claim, &storagev1.CSIDriver{Spec: storagev1.CSIDriverSpec{AttachRequired: &yes}}, true)
	if v.Name != "pv" || v.Driver != "d" || v.Handle != "h" || !v.Block || !v.Attachable || !v.ReadOnly ||
		v.FSType != "xfs" || v.AccessMode != corev1.ReadWriteMany || v.MountOptions[0] != "noatime" ||
		v.Attributes["a"] != "b" {
		t.Errorf("got %+v", v)
	}
}

// TestVolumeMode checks that a volume must be used as what it is.
func TestVolumeMode(t *testing.T) {
	t.Parallel()
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		InitContainers: []corev1.Container{{VolumeDevices: []corev1.VolumeDevice{{Name: "raw"}}}},
		Containers:     []corev1.Container{{VolumeMounts: []corev1.VolumeMount{{Name: "data"}}}},
	}}
	block := corev1.PersistentVolumeBlock
	claim := &storage.Claim{
		PVC: &corev1.PersistentVolumeClaim{},
		PV:  &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{VolumeMode: &block}},
	}
	check := func(volume string) error {
		m := &mounting{&Manager{}, requestFor(pod, &corev1.Volume{Name: volume}), nil}
		return m.checkClaim(claim)
	}
	if err := check("data"); err == nil || !strings.Contains(err.Error(), "volumeMode Block") {
		t.Errorf("got %v", err)
	}
	claim.PV.Spec.VolumeMode = nil
	if err := check("raw"); err == nil || !strings.Contains(err.Error(), "volumeMode Filesystem") {
		t.Errorf("got %v", err)
	}
}

func TestPodInfo(t *testing.T) {
	t.Parallel()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web-0", Namespace: "shop", UID: "u"},
		Spec:       corev1.PodSpec{ServiceAccountName: "robot"},
	}
	got := podInfo(pod, true)
	for k, want := range map[string]string{
		"pod.name":            "web-0",
		"pod.namespace":       "shop",
		"pod.uid":             "u",
		"serviceAccount.name": "robot",
		"ephemeral":           "true",
	} {
		if got["csi.storage.k8s.io/"+k] != want {
			t.Errorf("%s: got %q, want %q", k, got["csi.storage.k8s.io/"+k], want)
		}
	}
}
