package podfs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodelet/nodelet/kube/pluginname"
	"github.com/nodelet/nodelet/test/ownmounts"
)

func persistent(pod *corev1.Pod, source corev1.PersistentVolumeSource) Persistent {
	return Persistent{Pod: pod, PV: &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"},
		Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: source}}}
}

// TestLocal checks that a local volume is bound into each pod that uses it; the group of its files is the first
// pod's, and its files outlive all.
func TestLocal(t *testing.T) {
	t.Parallel()
	v := newVolumes(t)
	disk := t.TempDir()
	if err := os.WriteFile(filepath.Join(disk, "data"), []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	source := corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: disk}}
	one, two := testPod(), testPod()
	two.UID = "99999999-2222-3333-4444-555555555555"
	one.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: new(int64(4321))}
	two.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: new(int64(1234))}
	p := persistent(one, source)
	p.PV.Annotations = map[string]string{"pv.beta.kubernetes.io/gid": "777"}
	m, err := v.MountPersistent(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	want := filepath.Join(v.podsDir, string(one.UID), "volumes/kubernetes.io~local-volume/pv")
	if m.HostPath != want || m.Name != "pv" || m.ExtraGroup == nil || *m.ExtraGroup != 777 ||
		!isMountPoint(t, want) {
		t.Errorf("got %+v", m)
	}
	if _, err := v.MountPersistent(t.Context(), persistent(two, source)); err != nil {
		t.Fatal(err)
	}
	if gid := statPath(t, filepath.Join(disk, "data")).Gid; gid != 4321 {
		t.Errorf("the files belong to group %d, want the first pod's 4321", gid)
	}
	if _, err := v.MountPersistent(t.Context(), p); err != nil {
		t.Error(err)
	}
	if all, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(want)); err != nil || len(all) != 1 {
		t.Errorf("again: got %d mounts, %v, want the one as before", len(all), err)
	}
	for _, pod := range []*corev1.Pod{one, two} {
		found, err := v.List(pod.UID)
		if err != nil || len(found) != 1 {
			t.Fatalf("got %+v, %v, want one", found, err)
		}
		if err := v.Unmount(t.Context(), pod.UID, found[0]); err != nil {
			t.Error(err)
		}
	}
	if text, err := os.ReadFile(filepath.Join(disk, "data")); err != nil || string(text) != "precious" {
		t.Errorf("data: got %q, %v, want it unchanged", text, err)
	}
}

// TestHostPathMountOptions checks that a hostPath PersistentVolume with mount options, such as noexec, is refused in
// the kubelet's words: nothing is mounted that could have them.
func TestHostPathMountOptions(t *testing.T) {
	t.Parallel()
	v := newVolumes(t)
	source := corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: t.TempDir()}}
	p := persistent(testPod(), source)
	if _, err := v.MountPersistent(t.Context(), p); err != nil {
		t.Errorf("without options: %v", err)
	}
	p.PV.Spec.MountOptions = []string{"noexec", "nosuid"}
	want := `MountVolume.MountOptionSupport check failed for volume "pv" : mount options are not supported`
	if _, err := v.MountPersistent(t.Context(), p); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("with options: got error %v, want %q", err, want)
	}
	p.PV.Annotations = map[string]string{corev1.MountOptionAnnotation: ""}
	if _, err := v.MountPersistent(t.Context(), p); err != nil {
		t.Errorf("with an annotation for none: %v", err)
	}
}

// TestFilesBelowMountsStay checks that files that a pod wrote to the directory of a volume while its mount was gone are
// not removed: they may be the only copy. The end of the pod waits until somebody has moved them away.
func TestFilesBelowMountsStay(t *testing.T) {
	t.Parallel()
	v, pod := newVolumes(t), testPod()
	if _, err := v.MountPersistent(t.Context(), persistent(pod, localOf(t.TempDir(), nil))); err != nil {
		t.Fatal(err)
	}
	for _, on := range []OnDisk{{pluginname.Local, "pv"}, {pluginname.NFS, "share"}, {pluginname.ISCSI, "lun"}} {
		dir := v.hostPath(pod.UID, on)
		if on.Plugin == pluginname.Local {
			if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
				t.Fatal(err)
			}
		} else if err := os.MkdirAll(dir, 0o750); err != nil {
			t.Fatal(err)
		}
		file, saved := filepath.Join(dir, "written"), filepath.Join(t.TempDir(), "saved")
		if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
			t.Fatal(err)
		}
		bindMount(t, t.TempDir(), dir) // the volume came back
		want := dir + " is not empty although its volume is gone"
		for range 2 {
			if err := v.Unmount(t.Context(), pod.UID, on); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: got %v, want that %s", on.Plugin, err, want)
			}
		}
		if err := os.Rename(file, saved); err != nil {
			t.Errorf("%s: got %v, want the file still there", on.Plugin, err)
		}
		if err := v.Unmount(t.Context(), pod.UID, on); err != nil {
			t.Errorf("%s, after its files were moved away: %v", on.Plugin, err)
		}
	}
	if found, err := v.List(pod.UID); err != nil || len(found) > 0 {
		t.Errorf("got volumes %+v, %v, want none", found, err)
	}
}

// TestPersistentRefused checks that what cannot be set up is refused in words that say why.
func TestPersistentRefused(t *testing.T) {
	t.Parallel()
	v := newVolumes(t)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		source corev1.PersistentVolumeSource
		block  bool
		want   string
	}{
		"local file": {
			corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: file}},
			false,
			"is neither a directory nor a block device",
		},
		"local missing": {
			corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: file + "x"}},
			false,
			"no such file",
		},
		"no block device": {
			corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: file}},
			true,
			"is neither a directory nor a block device",
		},
		"directory as block": {
			corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: filepath.Dir(file)}},
			true,
			"is not a block device",
		},
		"nfs as block": {
			corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{}},
			true,
			"cannot be used as a block device",
		},
		"cephfs": {corev1.PersistentVolumeSource{CephFS: &corev1.CephFSPersistentVolumeSource{}}, false,
			"use a PersistentVolume of CSI driver cephfs.csi.ceph.com"},
		"fc": {
			corev1.PersistentVolumeSource{FC: &corev1.FCVolumeSource{FSType: "xfs"}},
			false,
			"kind fc is unsupported by this node agent: use a PersistentVolume of a CSI driver",
		},
		"hostPath type": {
			corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: file,
				Type: new(corev1.HostPathDirectory)}},
			false,
			"is not a directory",
		},
	} {
		p := persistent(testPod(), c.source)
		p.Block = c.block
		if _, err := v.MountPersistent(t.Context(), p); err == nil || !strings.Contains(err.Error(), c.want) ||
			!strings.Contains(err.Error(), `"pv"`) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}

// TestMountOptions checks that the annotation for mount options has the word before the field, as it came first.
func TestMountOptions(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		annotation *string
		want       []string
	}{
		"field":            {nil, []string{"noatime"}},
		"annotation":       {new("ro,vers=4.1,"), []string{"ro", "vers=4.1"}},
		"empty annotation": {new(""), nil},
	} {
		pv := &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{MountOptions: []string{"noatime"}}}
		if c.annotation != nil {
			pv.Annotations = map[string]string{"volume.beta.kubernetes.io/mount-options": *c.annotation}
		}
		if got := MountOptions(pv); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

// TestOwn checks that Own stays below the pods directory and follows no link.
func TestOwn(t *testing.T) {
	t.Parallel()
	v := newVolumes(t)
	pod := testPod()
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: new(int64(4321))}
	outside := t.TempDir()
	mount := filepath.Join(v.podsDir, string(pod.UID), "volumes/kubernetes.io~csi/pv/mount")
	if err := os.MkdirAll(mount, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(mount, "link")); err != nil {
		t.Fatal(err)
	}
	if err := v.Own(t.Context(), pod, mount); err != nil {
		t.Fatal(err)
	}
	if statPath(t, mount).Gid != 4321 || statPath(t, outside).Gid == 4321 {
		t.Error("the group of another directory: got it changed, want it as it was")
	}
	for _, path := range []string{outside, filepath.Join(mount, "link"), filepath.Join(v.podsDir, "..")} {
		if err := v.Own(t.Context(), pod, path); err == nil {
			t.Errorf("%s: got its owner changed, want an error", path)
		}
	}
}

// TestNeedsHelper checks that a node that lacks the helper for nfs says which package to install; other failures stay
// as they are.
func TestNeedsHelper(t *testing.T) {
	t.Parallel()
	failed, here := errors.New("bad option"), os.Args[0]
	if err := needsHelper(failed, here); err != failed {
		t.Errorf("with the helper: got %v, want %v", err, failed)
	}
	if err := needsHelper(nil, "/nowhere"); err != nil {
		t.Errorf("without a failure: got %v, want no error", err)
	}
	if err := needsHelper(failed, "/nowhere"); !errors.Is(err, failed) ||
		!strings.Contains(err.Error(), "install nfs-common") {
		t.Errorf("without the helper: got %v, want the advice to install nfs-common", err)
	}
}

func TestNFSSource(t *testing.T) {
	t.Parallel()
	for server, want := range map[string]string{
		"fs.example.com": "fs.example.com:/e",
		"2001:db8::1":    "[2001:db8::1]:/e",
		"[2001:db8::1]":  "[2001:db8::1]:/e",
	} {
		if got := nfsSource(&corev1.NFSVolumeSource{Server: server, Path: "/e"}); got != want {
			t.Errorf("%s: got %s, want %s", server, got, want)
		}
	}
}

// silentServer mounts a file system whose server does not answer, until the end of the test.
func silentServer(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(path, 0o750); err != nil {
		t.Fatal(err)
	}
	ownmounts.FUSE(t, path)
}

// TestSilentNFSServer checks that a mounted share is not touched when the pod's volumes are refreshed, and that it can
// be unmounted: its server may not answer any more.
func TestSilentNFSServer(t *testing.T) {
	t.Parallel()
	v := newVolumes(t)
	pod := testPod()
	source := corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{Server: "nfs.test", Path: "/"}}
	path := filepath.Join(v.podsDir, string(pod.UID), "volumes/kubernetes.io~nfs/share")
	silentServer(t, path)
	ended := make(chan error, 1)
	go func() {
		r := Request{Pod: pod, Volume: &corev1.Volume{Name: "share", VolumeSource: source}, Now: time.Now()}
		m, err := v.Mount(t.Context(), r, testObjects())
		if err == nil && m.HostPath != path {
			err = fmt.Errorf("got %+v, want the volume at %s", m, path)
		}
		ended <- errors.Join(err, v.Unmount(t.Context(), pod.UID, OnDisk{pluginname.NFS, "share"}))
	}()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("got a refresh that waits for the server, want it to give up")
	}
}
