package podfs

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/kube/pluginname"
	"github.com/nodelet/nodelet/test/ownmounts"
)

// hostDir is a directory outside the pods directory, to which containers want to get.
func hostDir(v *FS) string { return filepath.Join(filepath.Dir(v.podsDir), "host") }

// volumeWithParts gives an emptyDir with something in it.
func volumeWithParts(t testing.TB, v *FS, pod *corev1.Pod) SubPath {
	t.Helper()
	m := mustMount(t, v, request(pod, "data", emptyDir("")), nil)
	at := func(p string) string { return filepath.Join(m.HostPath, p) }
	if err := errors.Join(
		os.MkdirAll(filepath.Join(hostDir(v), "sub"), 0o755),
		os.WriteFile(filepath.Join(hostDir(v), "sub/secret"), nil, 0o600),
		os.MkdirAll(at("dir/sub"), 0o755),
		os.WriteFile(at("dir/sub/f"), []byte("inside"), 0o644),
		os.Symlink("dir", at("in")),
		os.Symlink("../dir/sub", at("dir/updown")),
		os.Symlink("..data/x", at("dangling")),
		os.Symlink("/", at("abs")),
		os.Symlink(hostDir(v), at("out")),
		os.Symlink("../../../../../host", at("up")),
		os.Symlink("/proc/self/root", at("magic")),
		os.Symlink("loop", at("loop")),
		os.Symlink(at("dir"), at("absin")),
		os.Symlink("absin/sub", at("absup")),
		os.Symlink(at("absloop"), at("absloop")),
		os.Symlink(m.HostPath+"/absin/../../../../../../host", at("absout")),
		unix.Mkfifo(at("fifo"), 0o600),
	); err != nil {
		t.Fatal(err)
	}
	return SubPath{PodUID: pod.UID, Container: "main", Volume: "data", Mount: "data", HostPath: m.HostPath}
}

func TestSubpath(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		path string
		same string // the part of the volume that must come out
		err  string
	}{
		"directory":            {path: "dir/sub", same: "dir/sub"},
		"file":                 {path: "dir/sub/f", same: "dir/sub/f"},
		"fifo":                 {path: "fifo", same: "fifo"},
		"socket":               {path: "sock", same: "sock"},
		"whole volume":         {path: ".", same: "."},
		"link inside":          {path: "in/sub", same: "dir/sub"},
		"link up and down":     {path: "in/updown/f", same: "dir/sub/f"},
		"missing":              {path: "new/deep/est", same: "new/deep/est"},
		"missing below link":   {path: "in/updown/new", same: "dir/sub/new"},
		"absolute link inside": {path: "absin/sub/f", same: "dir/sub/f"},
		"link to such a link":  {path: "absup/f", same: "dir/sub/f"},
		"missing below it":     {path: "absin/new/er", same: "dir/new/er"},
		"dots": {
			path: "dir/../../x",
			err:  "unable to provision SubPath `dir/../../x`: must not contain '..'",
		},
		"absolute":               {path: "/etc", err: "error SubPath `/etc` must not be an absolute path"},
		"link to root":           {path: "abs", err: "prepare"},
		"below link to root":     {path: "abs/proc", err: "prepare"},
		"link out":               {path: "out", err: "prepare"},
		"below link out":         {path: "out/sub/secret", err: "prepare"},
		"link up":                {path: "up", err: "prepare"},
		"below link up":          {path: "up/sub/secret", err: "prepare"},
		"magic link":             {path: "magic/proc", err: "prepare"},
		"link loop":              {path: "loop", err: "prepare"},
		"loop of absolute links": {path: "absloop", err: "prepare"},
		"up from such a link":    {path: "absout/sub", err: "prepare"},
		"dangling link":          {path: "dangling", err: "create"},
		"missing below file":     {path: "dir/sub/f/x", err: "prepare"},
		"new below link out":     {path: "out/new", err: "prepare"},
		"new below link up":      {path: "up/new", err: "prepare"},
		"new below dangling one": {path: "dangling/x/y", err: "create"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v, pod := newVolumes(t), testPod()
			s := volumeWithParts(t, v, pod)
			listenIn(t, s.HostPath, "sock")
			s.Path, s.Index = tt.path, 3
			got, err := v.Subpath(t.Context(), s)
			wantFiles(t, hostDir(v), map[string]string{"sub/secret": ""})
			if _, err := os.Lstat(filepath.Join(hostDir(v), "new")); err == nil {
				t.Error("outside the volume: got a new directory, want none")
			}
			if tt.err != "" {
				want := tt.err
				switch want {
				case "prepare":
					want = `failed to prepare subPath for volumeMount "data" of container "main"`
				case "create":
					want = `failed to create subPath directory for volumeMount "data" of container "main"`
				}
				if err == nil || err.Error() != want {
					t.Errorf("got %q, %v\nwant %s", got, err, want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if want := filepath.Join(v.podsDir, string(pod.UID), "volume-subpaths/data/main/3"); got != want {
				t.Errorf("path %s, want %s", got, want)
			}
			if a, b := statPath(t, got), statPath(t, filepath.Join(s.HostPath, tt.same)); a.Ino != b.Ino || a.Dev != b.Dev {
				t.Error("the mount: got another file, want the one of the volume")
			}
			again, err := v.Subpath(t.Context(), s)
			if err != nil || again != got || countMounts(t, got) != 1 {
				t.Errorf("again: got %s, %v, %d mounts, want %s and one mount", again, err, countMounts(t, got), got)
			}
			if err := v.Unmount(t.Context(), pod.UID, OnDisk{pluginname.EmptyDir, "data"}); err != nil {
				t.Error(err)
			}
			if _, err := os.Lstat(got); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("part of a removed volume: got %v, want it unmounted", err)
			}
			if err := v.RemovePodDir(t.Context(), pod.UID); err != nil {
				t.Error(err)
			}
		})
	}
}

func listenIn(t testing.TB, dir, name string) {
	t.Helper()
	// The path of a socket is short: bind it elsewhere, and move it.
	short := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", short)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	if err := os.Rename(short, filepath.Join(dir, name)); err != nil {
		t.Fatal(err)
	}
}

func countMounts(t testing.TB, path string) int {
	t.Helper()
	raw, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(raw), " "+path+" ")
}

func TestSubpathDirectoriesHaveModeOfRoot(t *testing.T) {
	t.Parallel()
	v, pod := newVolumes(t), testPod()
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: new(int64(3000))}
	s := volumeWithParts(t, v, pod)
	s.Path = "new/deep"
	got, err := v.Subpath(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Join(s.HostPath, "new"), got} {
		if st := statPath(t, path); st.Mode&0o7777 != 0o2777 || st.Gid != 3000 {
			t.Errorf("%s: got mode %o group %d, want 2777 3000", path, st.Mode&0o7777, st.Gid)
		}
	}
	if st := statPath(t, filepath.Join(s.HostPath, "dir")); st.Mode&0o7777 == 0o2777 {
		t.Error("the mode of a directory that was there: got it changed, want it as it was")
	}
}

func TestSubpathOfSecretAndHostPath(t *testing.T) {
	t.Parallel()
	v, pod := newVolumes(t), testPod()
	m := mustMount(t, v, request(pod, "cred", corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "cred"}}),
		testObjects())
	got, err := v.Subpath(t.Context(), SubPath{
		PodUID: pod.UID, Container: "main", Volume: "cred", Mount: "cred", HostPath: m.HostPath, Path: "user"})
	if raw, _ := os.ReadFile(got); err != nil || string(raw) != "me" {
		t.Errorf("got %q, %v, want me", raw, err)
	}
	host := t.TempDir()
	if err := os.MkdirAll(filepath.Join(host, "real/x"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("real", filepath.Join(host, "link")); err != nil {
		t.Fatal(err)
	}
	got, err = v.Subpath(t.Context(), SubPath{ // links on the way to a hostPath are the administrator's
		PodUID: pod.UID, Container: "main", Volume: "host", Mount: "host", HostPath: filepath.Join(host, "link"), Path: "x"})
	if err != nil || statPath(t, got).Ino != statPath(t, filepath.Join(host, "real/x")).Ino {
		t.Errorf("got %s, %v, want the file real/x", got, err)
	}
	if _, err := v.Subpath(t.Context(), SubPath{
		PodUID: pod.UID, Container: "main", Volume: "f", Mount: "f", HostPath: m.HostPath + "/user", Path: "x"}); err == nil {
		t.Error("a part of a file: got no error, want one")
	}
}

// TestSubpathIsExchanged checks the next start of a container that finds something else under the same name: a new
// secret, a file for a directory.
func TestSubpathIsExchanged(t *testing.T) {
	t.Parallel()
	v, pod := newVolumes(t), testPod()
	s := volumeWithParts(t, v, pod)
	for _, path := range []string{"dir/sub", "dir/sub/f", "fifo", "dir", "dir"} {
		s.Path = path
		got, err := v.Subpath(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		if statPath(t, got).Ino != statPath(t, filepath.Join(s.HostPath, path)).Ino || countMounts(t, got) != 1 {
			t.Errorf("%s: got another file or %d mounts, want this path in one mount", path, countMounts(t, got))
		}
	}
}

// TestBusySubpathIsExchanged checks that a part that a program of the node still has open holds up no container, as
// with the kubelet; what that program has open stays what it was.
func TestBusySubpathIsExchanged(t *testing.T) {
	t.Parallel()
	v, pod := newVolumes(t), testPod()
	s := volumeWithParts(t, v, pod)
	s.Path = "dir/sub"
	old, err := v.Subpath(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	busy, err := os.Open(filepath.Join(old, "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	s.Path = "dir"
	got, err := v.Subpath(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	if statPath(t, got).Ino != statPath(t, filepath.Join(s.HostPath, "dir")).Ino || countMounts(t, got) != 1 {
		t.Errorf("got another file or %d mounts, want the new path in one mount", countMounts(t, got))
	}
	if text, err := io.ReadAll(busy); string(text) != "inside" || err != nil {
		t.Errorf("the open file: got %q, %v, want its text", text, err)
	}
}

// TestSubpathAfterCrash checks that a crash leaves a target without mount, of either type.
func TestSubpathAfterCrash(t *testing.T) {
	t.Parallel()
	v, pod := newVolumes(t), testPod()
	s := volumeWithParts(t, v, pod)
	target := filepath.Join(v.podsDir, string(pod.UID), "volume-subpaths/data/main")
	if err := os.MkdirAll(filepath.Join(target, "0"), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(target, "1"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for index, path := range []string{"dir/sub/f", "dir/sub"} {
		s.Index, s.Path = index, path
		if _, err := v.Subpath(t.Context(), s); err != nil {
			t.Error(err)
		}
	}
	if err := unix.Unmount(filepath.Join(target, "0"), 0); err != nil {
		t.Fatal(err)
	}
	if err := v.UnmountSubpaths(t.Context(), pod.UID, ""); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(filepath.Join(v.podsDir, string(pod.UID), "volume-subpaths")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("directory of parts: got %v, want it removed", err)
	}
	wantFiles(t, filepath.Join(s.HostPath, "dir"), map[string]string{"sub/f": "inside", "updown/f": "inside"})
}

func TestUnmountSubpathsOfOneVolume(t *testing.T) {
	t.Parallel()
	v, pod := newVolumes(t), testPod()
	s := volumeWithParts(t, v, pod)
	s.Path = "dir"
	for _, volume := range []string{"data", "pvc-1"} {
		for _, container := range []string{"main", "side"} {
			s.Volume, s.Container = volume, container
			if _, err := v.Subpath(t.Context(), s); err != nil {
				t.Fatal(err)
			}
		}
	}
	for range 2 {
		if err := v.UnmountSubpaths(t.Context(), pod.UID, "pvc-1"); err != nil {
			t.Fatal(err)
		}
	}
	left, err := filepath.Glob(filepath.Join(v.podsDir, string(pod.UID), "volume-subpaths/*/*/*"))
	if err != nil || len(left) != 2 || !strings.Contains(left[0], "/data/") {
		t.Errorf("got %v, %v left, want two", left, err)
	}
	if err := v.UnmountSubpaths(t.Context(), pod.UID, "../volumes"); err == nil {
		t.Error("a path for a volume: got no error, want one")
	}
}

// TestUnmountHostPath checks that the end of a pod unmounts the subPaths of a volume that has no directory, and that no
// other volume is listed twice for its subPaths.
func TestUnmountHostPath(t *testing.T) {
	t.Parallel()
	v, pod := newVolumes(t), testPod()
	s := volumeWithParts(t, v, pod)
	s.Path = "dir"
	var path string
	for _, s.Volume = range []string{"data", "host"} {
		var err error
		if path, err = v.Subpath(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	host := OnDisk{pluginname.HostPath, "host"}
	found, err := v.List(pod.UID)
	if err != nil || !slices.Equal(found, []OnDisk{{pluginname.EmptyDir, "data"}, host}) {
		t.Fatalf("List: got %v, %v, want both volumes", found, err)
	}
	if err := v.Unmount(t.Context(), pod.UID, host); err != nil {
		t.Fatal(err)
	}
	if found, err = v.List(pod.UID); err != nil || len(found) != 1 || countMounts(t, path) != 0 {
		t.Errorf("List: got %v, %v and %d mounts of the subPath, want the other volume alone", found, err,
			countMounts(t, path))
	}
}

// TestSubpathUnderSwap checks the attack of CVE-2021-25741: a container exchanges a directory and a link out of the
// volume while it is being mounted.
func TestSubpathUnderSwap(t *testing.T) {
	t.Parallel()
	v, pod := newVolumes(t), testPod()
	s := volumeWithParts(t, v, pod)
	dir, out := filepath.Join(s.HostPath, "dir"), filepath.Join(s.HostPath, "out")
	swappedOnce(t, v, s, dir, out)
	defer swap(dir, out)()
	mounted, refused := 0, 0
	for i := range 2000 {
		s.Path, s.Index = []string{"dir/sub", "dir", "out/sub", "dir/new/er"}[i%4], i%4
		got, err := v.Subpath(t.Context(), s)
		if err != nil {
			refused++
			continue
		}
		mounted++
		for _, outside := range []string{"secret", "sub/secret"} {
			if _, err := os.Lstat(filepath.Join(got, outside)); err == nil {
				t.Fatalf("sub-path %s: got a file of the host in it, want none", s.Path)
			}
		}
	}
	if entries, err := os.ReadDir(hostDir(v)); err != nil || len(entries) != 1 {
		t.Errorf("host directory: got %v, %v, want one", entries, err)
	}
	if mounted == 0 || refused == 0 {
		t.Errorf("got %d mounted and %d refused, want some of each", mounted, refused)
	}
}

// swappedOnce exchanges the two names between the two steps of a mount, where swap comes only by chance.
func swappedOnce(t *testing.T, v *FS, s SubPath, dir, out string) {
	t.Helper()
	s.Path, s.Index = "dir/sub", 4
	part, err := v.openSubpath(s)
	if err != nil {
		t.Fatal(err)
	}
	defer part.Close()
	if err := unix.Renameat2(unix.AT_FDCWD, dir, unix.AT_FDCWD, out, unix.RENAME_EXCHANGE); err != nil {
		t.Fatal(err)
	}
	if err := v.bindSubpath(s, part); err != nil {
		t.Errorf("mount of what was opened before the exchange: %v", err)
	}
	mounted := filepath.Join(v.podsDir, string(s.PodUID), s.dir(), s.index())
	if got, err := os.ReadFile(filepath.Join(mounted, "f")); err != nil || string(got) != "inside" {
		t.Errorf("sub-path %s: got %q, %v, want the file of the volume", s.Path, got, err)
	}
}

// TestSilentSubpath checks that a subPath can be given up while the server of its volume does not answer, and that the
// volume can be unmounted then.
func TestSilentSubpath(t *testing.T) {
	t.Parallel()
	v, pod := newVolumes(t), testPod()
	share := OnDisk{pluginname.NFS, "share"}
	path := v.hostPath(pod.UID, share)
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
	daemon := ownmounts.FUSE(t, path)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		s := SubPath{PodUID: pod.UID, Container: "app", Volume: "share", Mount: "share", HostPath: path, Path: "dir"}
		_, err := v.Subpath(ctx, s)
		ended <- err
	}()
	daemon.Asked()
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
	if err := v.Unmount(t.Context(), pod.UID, share); err != nil {
		t.Errorf("the volume afterwards: %v", err)
	}
	daemon.End()
}
