package podfs

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/kube/pluginname"
)

func TestPodDirectory(t *testing.T) {
	t.Parallel()
	v, pod := newVolumes(t), testPod()
	for range 2 {
		if err := v.MakePodDir(pod.UID); err != nil {
			t.Fatal(err)
		}
	}
	root := filepath.Join(v.podsDir, string(pod.UID))
	if st := statPath(t, root); st.Mode != unix.S_IFDIR|0o750 {
		t.Errorf("got mode %o, want a directory of mode 750", st.Mode)
	}
	hosts, log := filepath.Join(root, "etc-hosts"), filepath.Join(root, "containers/main/0badcafe")
	if err := v.WriteHosts(pod.UID, []byte("127.0.0.1 localhost and more\n")); err != nil {
		t.Fatal(err)
	}
	before := statPath(t, hosts)
	if err := v.WriteHosts(pod.UID, []byte("127.0.0.1 localhost\n")); err != nil {
		t.Fatal(err)
	}
	after := statPath(t, hosts)
	if raw, _ := os.ReadFile(hosts); string(raw) != "127.0.0.1 localhost\n" || after.Ino != before.Ino ||
		after.Mode&0o777 != 0o644 {
		t.Errorf("got %q, same file %v, mode %o, want the new text in the same file of mode 644",
			raw, after.Ino == before.Ino, after.Mode)
	}
	if err := v.TerminationLog(pod.UID, "main", "0badcafe"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(log, []byte("last words"), 0); err != nil {
		t.Fatal(err)
	}
	if err := v.TerminationLog(pod.UID, "main", "0badcafe"); err != nil {
		t.Fatal(err)
	}
	if raw, _ := os.ReadFile(log); string(raw) != "last words" || statPath(t, log).Mode&0o777 != 0o666 {
		t.Errorf("termination log: got %q and mode %o, want it unchanged with 666", raw, statPath(t, log).Mode)
	}
	for _, name := range []string{"..", "a/b", ""} {
		if err := v.TerminationLog(pod.UID, name, "x"); err == nil {
			t.Errorf("container %q: got no error, want one", name)
		}
		if err := v.TerminationLog(pod.UID, "main", name); err == nil {
			t.Errorf("log %q: got no error, want one", name)
		}
	}
	if err := os.Mkdir(root+"~", 0o750); err != nil { // a copy that somebody made: its name is no UID
		t.Fatal(err)
	}
	if uids, err := v.Pods(); err != nil || !slices.Equal(uids, []types.UID{pod.UID}) {
		t.Errorf("pods: got %v, %v, want %v", uids, err, pod.UID)
	}
	for range 2 {
		if err := v.RemovePodDir(t.Context(), pod.UID); err != nil {
			t.Fatal(err)
		}
	}
	if uids, err := v.Pods(); err != nil || len(uids) != 0 {
		t.Errorf("Pods: got %v, %v, want none", uids, err)
	}
}

func TestHostsFileThatIsALinkIsRefused(t *testing.T) {
	t.Parallel()
	v, pod := newVolumes(t), testPod()
	if err := v.MakePodDir(pod.UID); err != nil {
		t.Fatal(err)
	}
	precious := filepath.Join(t.TempDir(), "precious")
	if err := os.WriteFile(precious, []byte("data"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(precious, filepath.Join(v.podsDir, string(pod.UID), "etc-hosts")); err != nil {
		t.Fatal(err)
	}
	if err := v.WriteHosts(pod.UID, []byte("x")); err == nil {
		t.Error("write through a link: got the target changed, want it as it was")
	}
	if raw, _ := os.ReadFile(precious); string(raw) != "data" {
		t.Errorf("file outside: got %q, want it unchanged", raw)
	}
}

func TestListUnmountRemove(t *testing.T) {
	t.Parallel()
	v, pod := newVolumes(t), testPod()
	o := testObjects()
	if found, err := v.List(pod.UID); err != nil || len(found) != 0 {
		t.Errorf("List of a pod without directory: got %v, %v, want none", found, err)
	}
	mustMount(t, v, request(pod, "cfg", configMapVolume("cfg")), o)
	mustMount(t, v, request(pod, "cred", corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "cred"}}), o)
	mustMount(t, v, request(pod, "tmp", emptyDir("")), o)
	mustMount(t, v, request(pod, "mem", emptyDir(corev1.StorageMediumMemory)), o)
	pvc := filepath.Join(v.podsDir, string(pod.UID), "volumes/kubernetes.io~csi/pvc-1/mount")
	if err := os.MkdirAll(pvc, 0o750); err != nil {
		t.Fatal(err)
	}
	found, err := v.List(pod.UID)
	want := []OnDisk{
		{"kubernetes.io/configmap", "cfg"}, {"kubernetes.io/csi", "pvc-1"}, {"kubernetes.io/empty-dir", "mem"},
		{"kubernetes.io/empty-dir", "tmp"}, {"kubernetes.io/secret", "cred"},
	}
	slices.SortFunc(found, func(a, b OnDisk) int { return strings.Compare(a.path(), b.path()) })
	if err != nil || !slices.Equal(found, want) {
		t.Fatalf("List: got %v, %v\nwant %v", found, err, want)
	}
	if err := v.Unmount(t.Context(), pod.UID, OnDisk{"kubernetes.io/csi", "pvc-1"}); !errors.Is(err, ErrUnsupported) {
		t.Errorf("Unmount of a CSI volume: got %v, want %v", err, ErrUnsupported)
	}
	err = v.RemovePodDir(t.Context(), pod.UID)
	if err == nil || !strings.Contains(err.Error(), "is still there, unmount it first") {
		t.Errorf("RemovePodDir with volumes: got %v, want an error about them", err)
	}
	for range 2 {
		for _, on := range want {
			if on.Plugin == "kubernetes.io/csi" {
				continue
			}
			if err := v.Unmount(t.Context(), pod.UID, on); err != nil {
				t.Error(err)
			}
		}
	}
	err = v.RemovePodDir(t.Context(), pod.UID)
	if err == nil || !strings.Contains(err.Error(), `volume "pvc-1" of kubernetes.io/csi is still there`) {
		t.Errorf("RemovePodDir: got %v, want an error that names the volume", err)
	}
	if _, err := os.Stat(pvc); err != nil {
		t.Errorf("directory of the claim: got %v, want it left", err)
	}
	if err := os.RemoveAll(filepath.Dir(pvc)); err != nil {
		t.Fatal(err)
	}
	if err := v.RemovePodDir(t.Context(), pod.UID); err != nil {
		t.Error(err)
	}
}

// TestUnmountStopsAtMountsBelow checks that data of another owner that is still mounted below a volume is not
// deleted.
func TestUnmountStopsAtMountsBelow(t *testing.T) {
	t.Parallel()
	for _, medium := range []corev1.StorageMedium{corev1.StorageMediumDefault, corev1.StorageMediumMemory} {
		t.Run("medium "+string(medium), func(t *testing.T) {
			t.Parallel()
			v, pod := newVolumes(t), testPod()
			host := t.TempDir()
			if err := os.WriteFile(filepath.Join(host, "precious"), []byte("data"), 0o600); err != nil {
				t.Fatal(err)
			}
			m := mustMount(t, v, request(pod, "vol", emptyDir(medium)), nil)
			below := filepath.Join(m.HostPath, "a/mnt")
			if err := os.MkdirAll(below, 0o755); err != nil {
				t.Fatal(err)
			}
			bindMount(t, host, below)
			for range 2 {
				err := v.Unmount(t.Context(), pod.UID, OnDisk{pluginname.EmptyDir, "vol"})
				if err == nil || !strings.Contains(err.Error(), "a/mnt") {
					t.Errorf("got %v, want an error naming the mount", err)
				}
				if err := v.RemovePodDir(t.Context(), pod.UID); err == nil {
					t.Error("RemovePodDir with a volume: got no error, want one")
				}
			}
			wantFiles(t, host, map[string]string{"precious": "data"})
			if err := unix.Unmount(below, 0); err != nil {
				t.Fatal(err)
			}
			if err := v.Unmount(t.Context(), pod.UID, OnDisk{pluginname.EmptyDir, "vol"}); err != nil {
				t.Error(err)
			}
			if err := v.RemovePodDir(t.Context(), pod.UID); err != nil {
				t.Error(err)
			}
			wantFiles(t, host, map[string]string{"precious": "data"})
		})
	}
}

// TestUnmountOfBusyTmpfs checks that a process that sits in a secret does not keep the pod from going.
func TestUnmountOfBusyTmpfs(t *testing.T) {
	t.Parallel()
	v, pod := newVolumes(t), testPod()
	r := request(pod, "cred", corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "cred"}})
	m := mustMount(t, v, r, testObjects())
	held, err := os.Open(filepath.Join(m.HostPath, "user"))
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if err := v.Unmount(t.Context(), pod.UID, OnDisk{pluginname.Secret, "cred"}); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(m.HostPath); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("volume directory: got %v, want it removed", err)
	}
}

// TestUnmountOfStackedMounts checks that mounts that lie on top of each other, as two set-ups at the same time would
// leave them, all go.
func TestUnmountOfStackedMounts(t *testing.T) {
	t.Parallel()
	v, pod := newVolumes(t), testPod()
	m := mustMount(t, v, request(pod, "mem", emptyDir(corev1.StorageMediumMemory)), nil)
	if err := unix.Mount("tmpfs", m.HostPath, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	if err := v.Unmount(t.Context(), pod.UID, OnDisk{pluginname.EmptyDir, "mem"}); err != nil {
		t.Error(err)
	}
	if err := v.RemovePodDir(t.Context(), pod.UID); err != nil {
		t.Error(err)
	}
}

func TestForeignMountOnVolumeIsNotTakenForIt(t *testing.T) {
	t.Parallel()
	v, pod := newVolumes(t), testPod()
	target := filepath.Join(v.podsDir, string(pod.UID), OnDisk{pluginname.Secret, "cred"}.path())
	if err := os.MkdirAll(target, 0o750); err != nil {
		t.Fatal(err)
	}
	bindMount(t, t.TempDir(), target)
	r := request(pod, "cred", corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "cred"}})
	_, err := v.Mount(t.Context(), r, testObjects())
	if err == nil || !strings.Contains(err.Error(), "unmount it first") {
		t.Errorf("got %v", err)
	}
}

func TestNew(t *testing.T) {
	t.Parallel()
	if _, err := New(Config{Log: discard, Root: "relative"}); err == nil {
		t.Error("a relative path: got no error, want one")
	}
	dir := t.TempDir()
	if err := os.Symlink(t.TempDir(), filepath.Join(dir, "kubelet")); err != nil {
		t.Fatal(err)
	}
	v, err := New(Config{Log: discard, Root: filepath.Join(dir, "kubelet")})
	if err != nil {
		t.Fatal(err)
	}
	// The pods directory itself may be reached through a link.
	if err := v.MakePodDir("uid"); err != nil {
		t.Error(err)
	}
}

// TestHasPodDir checks that a directory is absent only if the kernel says so.
func TestHasPodDir(t *testing.T) {
	v := newVolumes(t)
	if err := v.MakePodDir("here"); err != nil {
		t.Fatal(err)
	}
	for uid, want := range map[types.UID]bool{"here": true, "gone": false} {
		if got, err := v.HasPodDir(uid); got != want || err != nil {
			t.Errorf("%s: got %v, %v, want %v", uid, got, err, want)
		}
	}
	if _, err := v.HasPodDir(types.UID(strings.Repeat("x", 1000))); err == nil {
		t.Error("a name that the kernel refuses: got no error, want one")
	}
}
