package podfs

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/kube/pluginname"
	"github.com/nodelet/nodelet/test/ownmounts"
	"github.com/nodelet/nodelet/test/waittest"
)

func applyTo(t *testing.T, o groupOwner, path string) error {
	t.Helper()
	dir, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	return o.apply(t.Context(), dir)
}

func TestGroupOwner(t *testing.T) {
	t.Parallel()
	v := newVolumes(t)
	for _, readOnly := range []bool{false, true} {
		root := filepath.Join(filepath.Dir(v.podsDir), "rw")
		if readOnly {
			root = filepath.Join(filepath.Dir(v.podsDir), "ro")
		}
		outside := root + "-outside"
		for _, d := range []string{outside, filepath.Join(root, "d/mnt")} {
			if err := os.MkdirAll(d, 0o700); err != nil {
				t.Fatal(err)
			}
		}
		write := func(path string, mode uint32) {
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := unix.Chmod(path, mode); err != nil {
				t.Fatal(err)
			}
		}
		write(filepath.Join(root, "d/plain"), 0o600)
		write(filepath.Join(root, "suid"), 0o4755)
		write(filepath.Join(outside, "target"), 0o600)
		write(filepath.Join(outside, "mounted"), 0o600)
		for link, target := range map[string]string{"link": filepath.Join(outside, "target"), "dangling": "none"} {
			if err := os.Symlink(target, filepath.Join(root, link)); err != nil {
				t.Fatal(err)
			}
		}
		if err := unix.Mkfifo(filepath.Join(root, "fifo"), 0o600); err != nil {
			t.Fatal(err)
		}
		bindMount(t, outside, filepath.Join(root, "d/mnt"))
		for range 2 {
			if err := applyTo(t, groupOwner{gid: new(int64(4000)), readOnly: readOnly}, root); err != nil {
				t.Fatal(err)
			}
		}
		want := map[string]uint32{".": 0o2770, "d": 0o2770, "d/plain": 0o660, "suid": 0o4775, "fifo": 0o660}
		if readOnly {
			want = map[string]uint32{".": 0o2750, "d": 0o2750, "d/plain": 0o640, "suid": 0o4755, "fifo": 0o640}
		}
		for path, mode := range want {
			if st := statPath(t, filepath.Join(root, path)); st.Gid != 4000 || st.Mode&0o7777 != mode {
				t.Errorf("read-only %v: %s: got group %d mode %o, want 4000 %o", readOnly, path, st.Gid, st.Mode&0o7777, mode)
			}
		}
		if st := statPath(t, filepath.Join(root, "link")); st.Gid != 4000 {
			t.Errorf("link: got group %d, want 4000", st.Gid)
		}
		for _, path := range []string{"target", "mounted", "."} {
			st := statPath(t, filepath.Join(outside, path))
			if st.Gid == 4000 || st.Mode&0o077 != 0 {
				t.Errorf("%s outside the volume: got group %d and mode %o, want them unchanged", path, st.Gid, st.Mode&0o7777)
			}
		}
	}
}

func TestGroupChangePolicy(t *testing.T) {
	t.Parallel()
	v := newVolumes(t)
	policy := func(p corev1.PodFSGroupChangePolicy) *corev1.Pod {
		pod := testPod()
		pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: new(int64(4000)), FSGroupChangePolicy: &p}
		return pod
	}
	tests := map[string]struct {
		pod     *corev1.Pod
		mode    uint32 // of the root
		gid     int
		changed bool // the file below
	}{
		"always":               {policy(corev1.FSGroupChangeAlways), 0o2770, 4000, true},
		"root right":           {policy(corev1.FSGroupChangeOnRootMismatch), 0o2770, 4000, false},
		"root more than right": {policy(corev1.FSGroupChangeOnRootMismatch), 0o2777, 4000, false},
		"root of other group":  {policy(corev1.FSGroupChangeOnRootMismatch), 0o2770, 4001, true},
		"root not setgid":      {policy(corev1.FSGroupChangeOnRootMismatch), 0o770, 4000, true},
		"root not writable":    {policy(corev1.FSGroupChangeOnRootMismatch), 0o2750, 4000, true},
		"no fsGroup":           {testPod(), 0o770, 4000, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			file := filepath.Join(dir, "f")
			if err := os.WriteFile(file, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Chown(dir, -1, tt.gid); err != nil {
				t.Fatal(err)
			}
			if err := unix.Chmod(dir, tt.mode); err != nil {
				t.Fatal(err)
			}
			if err := os.Chown(file, -1, 0); err != nil {
				t.Fatal(err)
			}
			if err := applyTo(t, v.ownerOf(tt.pod, false), dir); err != nil {
				t.Fatal(err)
			}
			if got := statPath(t, file).Gid == 4000; got != tt.changed {
				t.Errorf("file changed: got %v, want %v", got, tt.changed)
			}
		})
	}
}

// TestGroupIsRefused checks that a volume whose server does not let root change files, as NFS with root_squash, is used
// as it is, and that the log says so once.
func TestGroupIsRefused(t *testing.T) {
	t.Parallel()
	newVolumes(t) // root only
	root := t.TempDir()
	for _, name := range []string{"a", "b"} {
		if err := os.WriteFile(filepath.Join(root, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatal(err)
	}
	dir, err := os.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	var log bytes.Buffer
	o := groupOwner{gid: new(int64(4000)), log: slog.New(slog.NewTextHandler(&log, nil))}
	if err := asNobody(t, func() error { return o.apply(t.Context(), dir) }); err != nil {
		t.Errorf("got %v, want the volume used as it is", err)
	}
	if n := strings.Count(log.String(), "level=WARN"); n != 1 || !strings.Contains(log.String(), "chown "+root) {
		t.Errorf("got the log %q, want one warning that names a file", log.String())
	}
}

// TestGroupOfUnreadable checks that a directory that root may not read, as on NFS with root_squash, is left as it is,
// also if it is the volume itself.
func TestGroupOfUnreadable(t *testing.T) {
	t.Parallel()
	newVolumes(t) // root only
	for _, private := range []string{"data", "."} {
		root := t.TempDir()
		if err := os.MkdirAll(filepath.Join(root, "data/files"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := unix.Chmod(filepath.Join(root, private), 0o700); err != nil {
			t.Fatal(err)
		}
		fd, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		dir := os.NewFile(uintptr(fd), root)
		defer dir.Close()
		var log bytes.Buffer
		o := groupOwner{gid: new(int64(4000)), log: slog.New(slog.NewTextHandler(&log, nil))}
		if err := asNobody(t, func() error { return o.apply(t.Context(), dir) }); err != nil {
			t.Errorf("%s cannot be read: got %v, want the volume used as it is", private, err)
		}
		if n := strings.Count(log.String(), "level=WARN"); n != 1 {
			t.Errorf("%s cannot be read: got the log %q, want one warning", private, log.String())
		}
	}
}

// asNobody calls do with the rights of a user to whom no file belongs.
func asNobody(t *testing.T, do func() error) error {
	t.Helper()
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		if err := unix.Setfsuid(65534); err != nil {
			result <- err
			return
		}
		result <- do()
	}()
	return <-result
}

// TestGroupOwnerUnderSwap checks that while a name is exchanged between a directory and a link out, nothing outside
// changes.
func TestGroupOwnerUnderSwap(t *testing.T) {
	t.Parallel()
	newVolumes(t) // root only
	root := t.TempDir()
	outside := filepath.Join(root, "outside")
	for _, d := range []string{outside, filepath.Join(root, "vol/dir/sub")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(outside, "shadow"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(root, "vol/link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(outside, "shadow"), filepath.Join(root, "vol/file")); err != nil {
		t.Fatal(err)
	}
	stop := swap(filepath.Join(root, "vol/dir"), filepath.Join(root, "vol/link"))
	defer stop()
	stop2 := swap(filepath.Join(root, "vol/dir/sub"), filepath.Join(root, "vol/file"))
	defer stop2()
	for gid := range int64(300) {
		gid += 5000
		if err := applyTo(t, groupOwner{gid: &gid}, filepath.Join(root, "vol")); err != nil &&
			!strings.Contains(err.Error(), "fsGroup") {
			t.Fatal(err)
		}
	}
	for _, path := range []string{"outside", "outside/shadow"} {
		if st := statPath(t, filepath.Join(root, path)); st.Gid >= 5000 || st.Mode&0o077 != 0 {
			t.Errorf("%s: got group %d and mode %o, want them unchanged", path, st.Gid, st.Mode&0o7777)
		}
	}
}

// TestOwnOnSilentServer checks that the change of the group can be given up while the server of a volume does not
// answer.
func TestOwnOnSilentServer(t *testing.T) {
	t.Parallel()
	v, pod := newVolumes(t), testPod()
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: new(int64(4321))}
	path := v.hostPath(pod.UID, OnDisk{pluginname.CSI, "pv/mount"})
	if err := os.MkdirAll(path, 0o750); err != nil {
		t.Fatal(err)
	}
	daemon := ownmounts.FUSE(t, path)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- v.Own(ctx, pod, path) }()
	daemon.Asked()
	cancel()
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want %v", err, context.Canceled)
		}
	case <-time.After(waittest.Limit):
		t.Error("got a change that waits for the server, want it to be given up")
	}
	daemon.End()
}
