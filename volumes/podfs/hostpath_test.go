package podfs

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

func TestHostPath(t *testing.T) {
	t.Parallel()
	v := newVolumes(t)
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := os.Mkdir(at("dir"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(at("file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("dir", at("link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("nowhere", at("dangling")); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", at("sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if err := unix.Mknod(at("blk"), unix.S_IFBLK|0o600, int(unix.Mkdev(7, 0))); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mknod(at("chr"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))); err != nil {
		t.Fatal(err)
	}
	failed := func(path, what, is string) string {
		return "hostPath type check failed: " + path + " is not " + what + ", it's a " + is
	}
	none := func(path, what string) string {
		return "hostPath type check failed, " + path + " is not " + what +
			`, unable to determine its type: path "` + path + `" does not exist`
	}
	tests := []struct {
		kind corev1.HostPathType
		path string
		err  string
	}{
		{"", at("not-there"), ""},
		{"", "/a/../b", "invalid HostPath `/a/../b`: must not contain '..'"},
		{corev1.HostPathDirectory, at("dir"), ""},
		{corev1.HostPathDirectory, at("link"), ""},
		{corev1.HostPathDirectory, at("file"), failed(at("file"), "a directory", "File")},
		{corev1.HostPathDirectory, at("none"), none(at("none"), "a directory")},
		{corev1.HostPathDirectoryOrCreate, at("new/deep"), ""},
		{corev1.HostPathDirectoryOrCreate, at("new/deep"), ""},
		{corev1.HostPathDirectoryOrCreate, at("file"), failed(at("file"), "a directory", "File")},
		{corev1.HostPathFile, at("file"), ""},
		{corev1.HostPathFile, at("dir"), failed(at("dir"), "a file", "Directory")},
		{corev1.HostPathFileOrCreate, at("newfile"), ""},
		{corev1.HostPathFileOrCreate, at("newfile"), ""},
		{corev1.HostPathFileOrCreate, at("dir"), failed(at("dir"), "a file", "Directory")},
		{corev1.HostPathSocket, at("sock"), ""},
		{corev1.HostPathSocket, at("file"), failed(at("file"), "a socket file", "File")},
		{corev1.HostPathCharDev, at("chr"), ""},
		{corev1.HostPathCharDev, at("blk"), failed(at("blk"), "a character device", "BlockDevice")},
		{corev1.HostPathBlockDev, at("blk"), ""},
		{corev1.HostPathBlockDev, at("chr"), failed(at("chr"), "a block device", "CharDevice")},
		{corev1.HostPathBlockDev, at("dangling"), none(at("dangling"), "a block device")},
		{"Tape", at("file"), "Tape is an invalid volume type"},
	}
	for _, tt := range tests {
		source := corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: tt.path, Type: &tt.kind}}
		m, err := v.Mount(t.Context(), request(testPod(), "host", source), nil)
		if tt.err != "" {
			if want := `MountVolume.SetUp failed for volume "host" : ` + tt.err; err == nil || err.Error() != want {
				t.Errorf("%s %s: got %v, want %s", tt.kind, tt.path, err, want)
			}
			continue
		}
		if want := (Mounted{HostPath: tt.path}); err != nil || m != want {
			t.Errorf("%s %s: got %+v, %v, want %+v", tt.kind, tt.path, m, err, want)
		}
	}
	if uids, err := v.Pods(); err != nil || len(uids) != 0 {
		t.Errorf("pods directory: got %v, %v, want it empty", uids, err)
	}
}

// TestHostPathMadeByOthers checks that what another process puts at a path, after the agent has seen that nothing is
// there, has the right type or is an error. The agent does not wait for a writer of a named pipe.
func TestHostPathMadeByOthers(t *testing.T) {
	t.Parallel()
	v := newVolumes(t)
	dir := t.TempDir()
	for name, put := range map[string]func(path string) error{
		"Directory":            func(path string) error { return os.Mkdir(path, 0o755) },
		"File":                 func(path string) error { return os.WriteFile(path, []byte("text"), 0o600) },
		"file of another type": func(path string) error { return unix.Mkfifo(path, 0o600) },
	} {
		for _, kind := range []corev1.HostPathType{corev1.HostPathFileOrCreate, corev1.HostPathDirectoryOrCreate} {
			path := filepath.Join(dir, name+" for "+string(kind))
			v.stat = func(path string) (fs.FileInfo, error) {
				info, err := os.Stat(path)
				if errors.Is(err, fs.ErrNotExist) {
					err = errors.Join(put(path), err)
				}
				return info, err
			}
			ended := make(chan error, 1)
			go func() { ended <- v.checkHostPath(t.Context(), path, kind) }()
			select {
			case err := <-ended:
				if fits := strings.HasPrefix(string(kind), name); fits != (err == nil) {
					t.Errorf("%s: got %v, want an error: %t", filepath.Base(path), err, !fits)
				}
			case <-time.After(time.Minute):
				t.Fatalf("%s: got no end", filepath.Base(path))
			}
			if name != "File" {
				continue
			}
			if text, err := os.ReadFile(path); string(text) != "text" {
				t.Errorf("%s: got %q, %v, want the text of the other process", filepath.Base(path), text, err)
			}
		}
	}
}

// TestSilentPath checks that a mount can be given up if the volume's path is on a share whose server does not answer:
// the tear-down of the pod waits for it.
func TestSilentPath(t *testing.T) {
	t.Parallel()
	v := newVolumes(t)
	path := filepath.Join(t.TempDir(), "share")
	silentServer(t, path)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	hostPath := &corev1.HostPathVolumeSource{Path: path, Type: new(corev1.HostPathDirectory)}
	ended := make(chan error, 4)
	go func() {
		volume := &corev1.Volume{Name: "share", VolumeSource: corev1.VolumeSource{HostPath: hostPath}}
		_, err := v.Mount(ctx, Request{Pod: testPod(), Volume: volume, Now: time.Now()}, testObjects())
		ended <- err
	}()
	device := persistent(testPod(), localOf(path, nil))
	device.Block = true
	for _, p := range []Persistent{
		persistent(testPod(), localOf(path, nil)),
		device,
		persistent(testPod(), corev1.PersistentVolumeSource{HostPath: hostPath}),
	} {
		go func() {
			_, err := v.MountPersistent(ctx, p)
			ended <- err
		}()
	}
	limit := time.After(time.Minute)
	for range cap(ended) {
		select {
		case err := <-ended:
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v, want %v", err, context.DeadlineExceeded)
			}
		case <-limit:
			t.Fatal("got a mount that waits for the server, want it to give up")
		}
	}
}

// TestSilentPathIsLookedAtOnce checks that pods that come and go do not add calls to a path whose server does not
// answer.
func TestSilentPathIsLookedAtOnce(t *testing.T) {
	t.Parallel()
	v := newVolumes(t)
	synctest.Test(t, func(t *testing.T) {
		answer, calls := make(chan struct{}), atomic.Int32{}
		v.stat = func(path string) (fs.FileInfo, error) {
			calls.Add(1)
			<-answer
			return os.Stat(path)
		}
		for range 5 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			if _, err := v.statNode(ctx, "/"); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("without an answer: got %v, want %v", err, context.DeadlineExceeded)
			}
			cancel()
		}
		if n := calls.Load(); n != 1 {
			t.Errorf("got %d calls, want 1", n)
		}
		close(answer)
		synctest.Wait()
		if info, err := v.statNode(t.Context(), "/"); err != nil || !info.IsDir() {
			t.Errorf("with an answer: got %v, %v, want a directory", info, err)
		}
	})
}
