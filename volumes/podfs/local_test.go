package podfs

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/host/mounts"
	"github.com/nodelet/nodelet/kube/pluginname"
	"github.com/nodelet/nodelet/test/ownmounts"
)

// loopDevice is a blank device of the node for the time of the test.
func loopDevice(t *testing.T) string {
	t.Helper()
	image := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, 32<<20); err != nil {
		t.Fatal(err)
	}
	return ownmounts.Loop(t, image)
}

func localOf(device string, fstype *string) corev1.PersistentVolumeSource {
	return corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: device, FSType: fstype}}
}

// claimTries bounds how often a test tries again while another test's losetup claims its device: half a minute.
const claimTries = 600

// mountDevice mounts a local device. losetup --find of another test claims a device for a moment before it sees that
// the device is taken.
func mountDevice(t *testing.T, v *FS, p Persistent) (m Mounted, err error) {
	claimed := func() bool {
		return err != nil && (errors.Is(err, unix.EBUSY) || strings.Contains(err.Error(), "in use by the system") ||
			strings.Contains(err.Error(), "already mounted or mount point busy"))
	}
	m, err = v.MountPersistent(t.Context(), p)
	for try := 0; claimed() && try < claimTries; try++ {
		time.Sleep(50 * time.Millisecond)
		m, err = v.MountPersistent(t.Context(), p)
	}
	return m, err
}

// unmountLocal unmounts the volume "pv" of a pod. A process that another test forks just now has a copy of this
// process's open files until it runs its program, so the mount may be busy for a moment.
func unmountLocal(t *testing.T, v *FS, pod types.UID) {
	t.Helper()
	err := v.Unmount(t.Context(), pod, OnDisk{pluginname.Local, "pv"})
	for errors.Is(err, unix.EBUSY) && t.Context().Err() == nil {
		time.Sleep(10 * time.Millisecond)
		err = v.Unmount(t.Context(), pod, OnDisk{pluginname.Local, "pv"})
	}
	if err != nil {
		t.Error(err)
	}
}

// TestLocalDevice checks that a blank device is formatted once, however many pods want it at the same time; all see
// the same files, which outlive them.
func TestLocalDevice(t *testing.T) {
	t.Parallel()
	v := newVolumes(t)
	source := localOf(loopDevice(t), nil)
	pods := make([]*corev1.Pod, 4)
	dirs := make([]string, len(pods))
	var all sync.WaitGroup
	for i := range pods {
		pods[i] = testPod()
		pods[i].UID = types.UID(strings.Repeat(string(rune('a'+i)), 8))
		pods[i].Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: new(int64(4321))}
		all.Go(func() {
			m, err := mountDevice(t, v, persistent(pods[i], source))
			if err != nil {
				t.Error(err)
			}
			dirs[i] = m.HostPath
		})
	}
	all.Wait()
	if t.Failed() {
		return
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dirs[0], &st); err != nil || st.Type != unix.EXT4_SUPER_MAGIC {
		t.Errorf("the file system is of type %x, %v, want ext4", st.Type, err)
	}
	if err := os.WriteFile(filepath.Join(dirs[0], "data"), []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		if text, err := os.ReadFile(filepath.Join(dir, "data")); err != nil || string(text) != "precious" ||
			statPath(t, dir).Gid != 4321 {
			t.Errorf("%s: got %q, %v and group %d, want the data and 4321", dir, text, err, statPath(t, dir).Gid)
		}
	}
	for i := range pods {
		unmountLocal(t, v, pods[i].UID)
	}
	m, err := mountDevice(t, v, persistent(pods[0], source))
	if err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(m.HostPath, "data")); err != nil || string(text) != "precious" {
		t.Errorf("data after all pods have gone: got %q, %v, want it unchanged", text, err)
	}
	unmountLocal(t, v, pods[0].UID)
}

// TestLocalOnePod checks that one of several pods that want a local volume with ReadWriteOncePod at the same time gets
// it. It keeps it when the agent restarts, and another pod gets it when that one has ended.
func TestLocalOnePod(t *testing.T) {
	t.Parallel()
	for name, path := range map[string]string{"directory": t.TempDir(), "device": loopDevice(t)} {
		v, pods := newVolumes(t), []types.UID{"one", "two", "three", "four"}
		attempts := func(v *FS) (got []types.UID) {
			errs := make([]error, len(pods))
			var all sync.WaitGroup
			for i := range pods {
				p := persistent(testPod(), localOf(path, nil))
				p.Pod.UID, p.Block = pods[i], name == "device"
				p.PV.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
				all.Go(func() { _, errs[i] = v.MountPersistent(t.Context(), p) })
			}
			all.Wait()
			for i, err := range errs {
				if err == nil {
					got = append(got, pods[i])
				} else if !strings.Contains(err.Error(), "already in use by another pod") {
					t.Errorf("%s, pod %s: got %v, want that another pod uses it", name, pods[i], err)
				}
			}
			return got
		}
		first := attempts(v)
		restarted, err := New(Config{Root: filepath.Dir(v.podsDir), Log: v.log})
		if err != nil {
			t.Fatal(err)
		}
		if again := attempts(restarted); len(first) != 1 || !slices.Equal(again, first) {
			t.Fatalf("%s: got it for pods %q, and after a restart for %q, want it for one", name, first, again)
		}
		unmountLocal(t, restarted, first[0])
		if on, err := v.List(first[0]); err != nil || len(on) != 0 {
			t.Errorf("%s, after the end of the pod: got volumes %v, %v, want none", name, on, err)
		}
		next := attempts(restarted)
		if len(next) != 1 {
			t.Fatalf("%s, after the end of the pod: got it for pods %q, want it for one", name, next)
		}
		if on, err := v.List(next[0]); err != nil || !slices.Equal(on, []OnDisk{{pluginname.Local, "pv"}}) {
			t.Errorf("%s: got volumes %v, %v, want the one to unmount", name, on, err)
		}
		unmountLocal(t, restarted, next[0])
	}
}

// TestLocalMountOptions checks that the mount options of a local volume count for a directory of the node too, and in
// the pod alone.
func TestLocalMountOptions(t *testing.T) {
	t.Parallel()
	v := newVolumes(t)
	disk := t.TempDir()
	p := persistent(testPod(), localOf(disk, nil))
	p.PV.Spec.MountOptions = []string{"noexec", "nosuid"}
	m, err := v.MountPersistent(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	const flags = unix.ST_NOEXEC | unix.ST_NOSUID
	for path, want := range map[string]int64{m.HostPath: flags, disk: 0} {
		var st unix.Statfs_t
		if err := unix.Statfs(path, &st); err != nil || st.Flags&flags != want {
			t.Errorf("%s: got flags %x, %v, want %x", path, st.Flags&flags, err, want)
		}
	}
	unmountLocal(t, v, p.Pod.UID)
}

// TestLocalDeviceUnmountedMeanwhile checks a pod that is to share the mount of another pod's device, while that is
// unmounted: it gets no directory of the node in place of the device.
func TestLocalDeviceUnmountedMeanwhile(t *testing.T) {
	t.Parallel()
	v := newVolumes(t)
	source := localOf(loopDevice(t), nil)
	one, two := testPod(), testPod()
	two.UID = "99999999-2222-3333-4444-555555555555"
	m, err := mountDevice(t, v, persistent(one, source))
	if err != nil {
		t.Fatal(err)
	}
	mount, first, device, err := v.localMount(t.Context(), persistent(two, source), source.Local)
	if err != nil || first {
		t.Fatalf("got first=%t, %v, want that the other pod has the volume", first, err)
	}
	if err := unix.Unmount(m.HostPath, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if err := mount(dir); err == nil || !strings.Contains(err.Error(), "has just been unmounted") {
		t.Errorf("got %v, want that the volume has just been unmounted", err)
	}
	if err := device.Close(); err != nil {
		t.Error(err)
	}
	if _, err := mountDevice(t, v, persistent(two, source)); err != nil {
		t.Errorf("the next attempt: got %v, want the device mounted", err)
	}
	unmountLocal(t, v, two.UID)
}

// TestReadOnlyDevice checks that a pod that writes to a device does not get the read-only mount of another pod, but its
// own mount when that pod has ended. A pod that only reads gets either.
func TestReadOnlyDevice(t *testing.T) {
	t.Parallel()
	v := newVolumes(t)
	source := localOf(loopDevice(t), nil)
	use := func(pod types.UID, readOnly bool) (Mounted, error) {
		p := persistent(testPod(), source)
		p.Pod.UID, p.ReadOnly = pod, readOnly
		return mountDevice(t, v, p)
	}
	if _, err := use("formats", false); err != nil {
		t.Fatal(err)
	}
	unmountLocal(t, v, "formats")
	for _, reader := range []types.UID{"reader", "reader-2"} {
		if _, err := use(reader, true); err != nil {
			t.Fatal(err)
		}
	}
	want := "mounted read-only on this node for another pod"
	if m, err := use("writer", false); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("beside readers: got %+v, %v, want that the device is %s", m, err, want)
	}
	unmountLocal(t, v, "reader")
	unmountLocal(t, v, "reader-2")
	m, err := use("writer", false)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(m.HostPath, "data"), nil, 0o600); err != nil {
		t.Errorf("after the readers: %v", err)
	}
	if _, err := use("reader", true); err != nil {
		t.Errorf("a reader beside the writer: %v", err)
	}
	unmountLocal(t, v, "reader")
	unmountLocal(t, v, "writer")
}

// TestReaderOfKubelet checks that a pod can write to a device beside one that reads, for which a kubelet has made the
// mount read-only, not the device. It can do so also after a crash before its own mount was made writable.
func TestReaderOfKubelet(t *testing.T) {
	t.Parallel()
	v := newVolumes(t)
	source := localOf(loopDevice(t), nil)
	m, err := mountDevice(t, v, persistent(testPod(), source))
	if err != nil {
		t.Fatal(err)
	}
	const flags = unix.MS_RDONLY | unix.MS_NOEXEC
	if err := unix.Mount("", m.HostPath, "", unix.MS_REMOUNT|unix.MS_BIND|flags, ""); err != nil {
		t.Fatal(err)
	}
	for uid, crashed := range map[types.UID]bool{"writer": false, "crashed": true} {
		p, own := persistent(testPod(), source), v.hostPath(uid, OnDisk{pluginname.Local, "pv"})
		p.Pod.UID = uid
		if crashed {
			if err := errors.Join(os.MkdirAll(own, 0o700), unix.Mount(m.HostPath, own, "", unix.MS_BIND, "")); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := mountDevice(t, v, p); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(own, "data"), nil, 0o600); err != nil {
			t.Error(err)
		}
		for path, want := range map[string]int64{m.HostPath: flags, own: unix.MS_NOEXEC} {
			var st unix.Statfs_t
			if err := unix.Statfs(path, &st); err != nil || st.Flags&flags != want {
				t.Errorf("%s: got flags %x, %v, want %x", path, st.Flags&flags, err, want)
			}
		}
		unmountLocal(t, v, uid)
	}
	unmountLocal(t, v, testPod().UID)
}

// TestLocalDeviceReplaced checks a volume that has been deleted and created again with another device while a pod has
// the first one mounted: the next pod gets the device that the volume names now.
func TestLocalDeviceReplaced(t *testing.T) {
	t.Parallel()
	v := newVolumes(t)
	pods := []*corev1.Pod{testPod(), testPod(), testPod()}
	pods[1].UID, pods[2].UID = "88888888-2222-3333-4444-555555555555", "99999999-2222-3333-4444-555555555555"
	old, now := localOf(loopDevice(t), nil), localOf(loopDevice(t), nil)
	for i, source := range []corev1.PersistentVolumeSource{old, now, now} {
		m, err := mountDevice(t, v, persistent(pods[i], source))
		if err != nil {
			t.Fatal(err)
		}
		defer unmountLocal(t, v, pods[i].UID)
		if got, want := statPath(t, m.HostPath).Dev, statPath(t, source.Local.Path).Rdev; got != want {
			t.Errorf("pod %d: got device %x, want %x", i, got, want)
		}
	}
}

// TestLocalDeviceKept checks that what a device holds is never written over, and a blank one is not formatted for who
// may only read.
func TestLocalDeviceKept(t *testing.T) {
	t.Parallel()
	v := newVolumes(t)
	device := loopDevice(t)
	refused := func(p Persistent, words string) {
		t.Helper()
		if _, err := v.MountPersistent(t.Context(), p); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("got %v, want %q", err, words)
		}
		unmountLocal(t, v, p.Pod.UID)
	}
	p := persistent(testPod(), localOf(device, nil))
	p.ReadOnly = true
	refused(p, "is not formatted")
	if out, err := exec.Command("mkfs.ext4", "-q", device).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	refused(persistent(testPod(), localOf(device, new("xfs"))), "it holds ext4")
	table := append(make([]byte, 446), make([]byte, 66)...)
	table[446+4] = 0x83 // one partition
	table[446+8], table[446+12] = 1, 100
	table[510], table[511] = 0x55, 0xaa
	disk := loopDevice(t)
	if err := os.WriteFile(disk, table, 0); err != nil {
		t.Fatal(err)
	}
	refused(persistent(testPod(), localOf(disk, nil)), "a partition table (dos)")
	if got, err := os.ReadFile(disk); err != nil || string(got[:512]) != string(table) {
		t.Errorf("partition table: got it overwritten or %v, want it unchanged", err)
	}
}

// bindKubelet mounts a device as a kubelet does: once for the node, which it returns, and from there for each pod.
func bindKubelet(t *testing.T, v *FS, pods ...types.UID) (global string) {
	t.Helper()
	bind := func(source, target string) {
		if err := os.MkdirAll(target, 0o750); err != nil {
			t.Fatal(err)
		}
		bindMount(t, source, target)
	}
	global = filepath.Join(filepath.Dir(v.podsDir), "plugins/kubernetes.io/local-volume/mounts/pv")
	bind(t.TempDir(), global)
	for _, pod := range pods {
		bind(global, v.hostPath(pod, OnDisk{pluginname.Local, "pv"}))
	}
	return global
}

// TestDeviceOfKubelet checks that the mount of a device that a kubelet has made for all pods goes with the last one.
func TestDeviceOfKubelet(t *testing.T) {
	t.Parallel()
	v := newVolumes(t)
	global := bindKubelet(t, v, "one", "two")
	unmountLocal(t, v, "one")
	if !isMountPoint(t, global) {
		t.Error("while another pod uses it: got the device unmounted, want it mounted")
	}
	unmountLocal(t, v, "two")
	if _, err := os.Lstat(global); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after the last pod: got %v for the mount, want it gone", err)
	}
}

// TestDeviceOfKubeletAtOnce checks the same of pods that end at the same moment.
func TestDeviceOfKubeletAtOnce(t *testing.T) {
	t.Parallel()
	v := newVolumes(t)
	pods := []types.UID{"one", "two", "three", "four"}
	for range 10 {
		global := bindKubelet(t, v, pods...)
		var ended sync.WaitGroup
		for _, pod := range pods {
			ended.Go(func() { unmountLocal(t, v, pod) })
		}
		ended.Wait()
		if _, err := os.Lstat(global); !errors.Is(err, os.ErrNotExist) {
			t.Fatalf("got %v for the mount, want it gone", err)
		}
	}
}

// TestBlockDeviceOfKubelet checks that the mount of a block volume and the loop device by which a kubelet holds it go
// with the pod.
func TestBlockDeviceOfKubelet(t *testing.T) {
	t.Parallel()
	v := newVolumes(t)
	device, link := loopDevice(t), filepath.Join(v.podsDir, "one/volumeDevices/kubernetes.io~local-volume/pv")
	all := filepath.Join(filepath.Dir(v.podsDir), "plugins/kubernetes.io~local-volume/volumeDevices/pv")
	held := filepath.Join(all, "one")
	if err := errors.Join(
		os.MkdirAll(filepath.Dir(link), 0o750),
		os.Symlink(device, link),
		os.MkdirAll(all, 0o750),
		os.WriteFile(held, nil, 0o600),
	); err != nil {
		t.Fatal(err)
	}
	bindMount(t, device, held)
	ownmounts.Loop(t, held)
	if all, err := v.List("one"); err != nil || !slices.Equal(all, []OnDisk{{pluginname.Local, "pv"}}) {
		t.Errorf("got volumes %v, %v, want the one", all, err)
	}
	unmountLocal(t, v, "one")
	if err := v.RemovePodDir(t.Context(), "one"); err != nil {
		t.Error(err)
	}
	if left := ownmounts.Attached(t, held); len(left) > 0 {
		t.Errorf("got %q attached, want it detached", left)
	}
	if _, err := os.Lstat(all); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v for the directory of the volume, want it removed", err)
	}
}

// TestBlockDeviceIsKept checks that a pod keeps the device that it has when a link leads to another one later, and that
// nothing is left of it on the node when it has ended.
func TestBlockDeviceIsKept(t *testing.T) {
	t.Parallel()
	v := newVolumes(t)
	first, second := loopDevice(t), loopDevice(t)
	link := filepath.Join(t.TempDir(), "disk")
	p := persistent(testPod(), localOf(link, nil))
	p.Block = true
	for _, device := range []string{first, second} {
		if err := errors.Join(os.RemoveAll(link), os.Symlink(device, link)); err != nil {
			t.Fatal(err)
		}
		m, err := v.MountPersistent(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		if !mounts.SameDevice(m.Device, first) {
			t.Errorf("%s is not %s, the first device", m.Device, first)
		}
	}
	unmountLocal(t, v, p.Pod.UID)
	dir := filepath.Join(filepath.Dir(v.podsDir), "plugins/kubernetes.io~local-volume/volumeDevices")
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("got %v, %v in %s, want nothing", left, err, dir)
	}
	if all, err := v.List(p.Pod.UID); err != nil || len(all) > 0 {
		t.Errorf("got volumes %v, %v, want none", all, err)
	}
}

// TestBlockDeviceOfTwoPods checks that a pod gets the device itself although its link leads to the loop device that
// holds it for another pod, as udev has it for names such as those in /dev/disk/by-uuid.
func TestBlockDeviceOfTwoPods(t *testing.T) {
	t.Parallel()
	v := newVolumes(t)
	device, link := loopDevice(t), filepath.Join(t.TempDir(), "disk")
	mount := func(pod types.UID, target string) {
		t.Helper()
		if err := errors.Join(os.RemoveAll(link), os.Symlink(target, link)); err != nil {
			t.Fatal(err)
		}
		p := persistent(testPod(), localOf(link, nil))
		p.Pod.UID, p.Block = pod, true
		m, err := v.MountPersistent(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		if !mounts.SameDevice(m.Device, device) {
			t.Errorf("%s: %s is not %s", pod, m.Device, device)
		}
	}
	mount("one", device)
	holders := ownmounts.Attached(t, v.devices.at("one", "pv"))
	if len(holders) != 1 {
		t.Fatalf("got loop devices %q that hold the device, want one", holders)
	}
	mount("two", holders[0])
	unmountLocal(t, v, "one")
	unmountLocal(t, v, "two")
}
