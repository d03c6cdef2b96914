package podfs

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/kube/pluginname"
)

// enlarge makes a loop device larger, under whatever is mounted from it.
func enlarge(t *testing.T, device string, size int64) {
	t.Helper()
	image, err := os.ReadFile(filepath.Join("/sys/block", filepath.Base(device), "loop/backing_file"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(strings.TrimSpace(string(image)), size); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("losetup", "--set-capacity", device).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

func sizeOfFS(t *testing.T, path string) int64 {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		t.Fatal(err)
	}
	return int64(st.Blocks) * st.Bsize
}

// mayGrowMounted: the kernel lets this process grow a mounted ext file system.
func mayGrowMounted(t *testing.T) bool {
	t.Helper()
	data := [2]unix.CapUserData{}
	if err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &data[0]); err != nil {
		t.Fatal(err)
	}
	return data[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}

// TestGrow checks that a file system follows its device: before it is mounted, when its claim asks for it, and while
// it is in use, if the kernel allows.
func TestGrow(t *testing.T) {
	t.Parallel()
	v := newVolumes(t)
	device := loopDevice(t)
	p := persistent(testPod(), localOf(device, nil))
	mount := func() string {
		t.Helper()
		m, err := mountDevice(t, v, p)
		if err != nil {
			t.Fatal(err)
		}
		return m.HostPath
	}
	unmount := func() {
		t.Helper()
		if err := v.Unmount(t.Context(), p.Pod.UID, OnDisk{pluginname.Local, "pv"}); err != nil {
			t.Error(err)
		}
	}
	dir := mount()
	if err := os.WriteFile(filepath.Join(dir, "data"), []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	unmount()

	enlarge(t, device, 64<<20)
	small := sizeOfFS(t, mount())
	unmount()
	if small > 33<<20 {
		t.Errorf("size without a request to grow: got %d bytes, want at most 33 MiB", small)
	}
	p.Grow = true
	if got := sizeOfFS(t, mount()); got < 50<<20 {
		t.Errorf("mounted again: got a file system of %d bytes, want at least %d", got, 50<<20)
	}
	if err := v.Grow(t.Context(), p); err != nil {
		t.Errorf("nothing left to do: got %v, want no error", err)
	}

	enlarge(t, device, 128<<20)
	err, size := v.Grow(t.Context(), p), sizeOfFS(t, dir)
	switch may := mayGrowMounted(t); {
	case may && (err != nil || size < 100<<20):
		t.Errorf("file system in use: got %d bytes, %v, want 100 MiB", size, err)
	case !may && (err == nil || !strings.Contains(err.Error(), "Permission denied")):
		t.Errorf("got %v, want the kernel's refusal", err)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "data")); err != nil || string(text) != "precious" {
		t.Errorf("data: got %q, %v, want it unchanged", text, err)
	}
	unmount()
}

// TestGrowOthers checks that what has no file system of its own has nothing to grow; for what cannot grow there is an
// error.
func TestGrowOthers(t *testing.T) {
	t.Parallel()
	v := newVolumes(t)
	if err := v.Grow(t.Context(), persistent(testPod(), localOf(t.TempDir(), nil))); err != nil {
		t.Errorf("directory: got %v, want no error", err)
	}
	device := loopDevice(t)
	p := persistent(testPod(), localOf(device, nil))
	if err := v.Grow(t.Context(), p); err == nil || !strings.Contains(err.Error(), "only ext3") {
		t.Errorf("blank device: got %v, want an error", err)
	}
	p.Block = true
	if err := v.Grow(t.Context(), p); err != nil {
		t.Errorf("device without a file system: got %v, want no error", err)
	}
}
