package volumes

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/host/mounts"
)

// fakeShares puts a tool in the place of mount(8) that mounts a file system in memory, and returns the file in which it
// writes a line about each call.
func fakeShares(t *testing.T) (calls string) {
	t.Helper()
	tool, err := exec.LookPath("mount")
	if err != nil {
		t.Fatal(err)
	}
	tools := t.TempDir()
	calls = filepath.Join(tools, "calls")
	script := "#!/bin/sh\necho \"$@\" >>" + calls + "\n" +
		"for target; do :; done\nexec " + tool + " -t tmpfs share \"$target\"\n"
	if err := os.WriteFile(filepath.Join(tools, "mount"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", tools+":"+os.Getenv("PATH"))
	return calls
}

// TestMountThatHasGone checks that a volume says whether it is a mount, and that such a volume whose mount has gone is
// mounted again: once, if several containers need it at the same moment.
func TestMountThatHasGone(t *testing.T) {
	m := newMigration(t)
	calls := fakeShares(t)
	csi, disk := m.bind().PV.Spec.PersistentVolumeSource, t.TempDir()
	for name, c := range map[string]struct {
		source     corev1.PersistentVolumeSource
		mountPoint bool
	}{
		"csi":      {csi, true},
		"local":    {corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: disk}}, true},
		"nfs":      {corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{Server: "nfs.test", Path: "/e"}}, true},
		"hostPath": {corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: disk}}, false},
	} {
		m.claim.PV.Spec.PersistentVolumeSource = c.source
		mounted, err := m.manager.Mount(t.Context(), lunRequest(claimVolume), nil)
		if err != nil || mounted.MountPoint != c.mountPoint {
			t.Fatalf("%s: got %+v, %v, want that it is a mount: %t", name, mounted, err, c.mountPoint)
		}
		if !c.mountPoint {
			continue
		}
		if err := unix.Unmount(mounted.HostPath, 0); err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				if again, err := m.manager.Mount(t.Context(), lunRequest(claimVolume), nil); err != nil || !again.MountPoint {
					t.Errorf("%s, again: got %+v, %v, want a mount", name, again, err)
				}
			})
		}
		all.Wait()
		if err := unix.Unmount(mounted.HostPath, 0); err != nil || mounts.At(mounted.HostPath) {
			t.Errorf("%s: got unmount %v and a mount below: %t, want one mount", name, err, mounts.At(mounted.HostPath))
		}
		m.takeDown(t, "uid")
	}
	if got, err := os.ReadFile(calls); bytes.Count(got, []byte("\n")) != 2 {
		t.Errorf("got mount called with %q, %v, want two calls", got, err)
	}
}
