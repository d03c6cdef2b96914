package podfs

import (
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/host/beneath"
	"github.com/nodelet/nodelet/kube/pluginname"
)

// openTestDir opens a fresh directory as an atomicDir.
func openTestDir(t testing.TB) (atomicDir, string) {
	t.Helper()
	path := t.TempDir()
	dir, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	a, err := openAtomic(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.root.Close(); dir.Close() })
	return a, path
}

func files(pathsAndContents ...string) payload {
	p := payload{}
	for i := 0; i < len(pathsAndContents); i += 2 {
		if err := p.set(pathsAndContents[i], file{data: []byte(pathsAndContents[i+1]), mode: 0o644}); err != nil {
			panic(err)
		}
	}
	return p
}

func ownNothing() error { return nil }

// mustWrite reports whether the write has changed the files.
func (a atomicDir) mustWrite(t testing.TB, want payload) (changed bool) {
	t.Helper()
	before := a.current()
	if err := a.write(t.Context(), want, testNow, ownNothing); err != nil {
		t.Fatal(err)
	}
	return a.current() != before
}

func TestWriteFollowsPayload(t *testing.T) {
	t.Parallel()
	a, path := openTestDir(t)
	steps := []struct {
		want    payload
		changed bool
	}{
		{files("a", "1", "d/b", "2", "d/e/c", "3"), true},
		{files("a", "1", "d/b", "2", "d/e/c", "3"), false},
		{files("a", "1", "d/b", "22", "d/e/c", "3"), true}, // content
		{files("a", "1", "d/b", "22"), true},               // a file less below a directory
		{files("a", "1", "d", "file now"), true},           // directory becomes file
		{files("a/x", "1", "d", "file now"), true},         // file becomes directory
		{files(), true},
		{files(), false},
	}
	for i, s := range steps {
		if changed := a.mustWrite(t, s.want); changed != s.changed {
			t.Errorf("step %d: changed: got %v, want %v", i, changed, s.changed)
		}
		want := map[string]string{}
		for p, f := range s.want {
			want[p] = string(f.data)
		}
		wantFiles(t, path, want)
		wantTidy(t, path)
	}
}

// TestUpdateIsAtomicForReaders checks that a reader never sees a mix of two versions through one open directory, nor
// a missing file.
func TestUpdateIsAtomicForReaders(t *testing.T) {
	t.Parallel()
	a, path := openTestDir(t)
	version := func(n int) payload {
		p := payload{}
		for _, name := range []string{"a", "b", "dir/c"} {
			maps.Copy(p, files(name, fmt.Sprintf("%s %d", name, n)))
		}
		return p
	}
	a.mustWrite(t, version(0))
	held, err := os.Open(filepath.Join(path, "a"))
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()

	stop, reads := make(chan struct{}), make(chan error)
	go func() {
		for {
			select {
			case <-stop:
				reads <- nil
				return
			default:
			}
			if err := readVersion(path); err != nil {
				reads <- err
				<-stop
				return
			}
		}
	}()
	for n := 1; n <= 60; n++ {
		a.mustWrite(t, version(n))
	}
	close(stop)
	if err := <-reads; err != nil {
		t.Error(err)
	}
	old := make([]byte, 16)
	n, _ := held.Read(old)
	if string(old[:n]) != "a 0" {
		t.Errorf("file opened before: got %q now, want what it was", old[:n])
	}
	wantFiles(t, path, map[string]string{"a": "a 60", "b": "b 60", "dir/c": "dir/c 60"})
}

// readVersion reads all files as a careful application does: through one open ..data. A version that is removed
// meanwhile may not be found, but then as a whole.
func readVersion(path string) error {
	if _, err := os.ReadFile(filepath.Join(path, "a")); err != nil && !os.IsNotExist(err) {
		return err
	}
	fd, err := unix.Open(filepath.Join(path, "..data"), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil // between reading the link and opening the directory, that was replaced
	}
	data := os.NewFile(uintptr(fd), "data")
	defer data.Close()
	var versions []string
	for _, name := range []string{"a", "b", "dir/c"} {
		f, err := beneath.Open(data, name, unix.O_RDONLY, beneath.LinksInside)
		if err != nil {
			return nil // removed
		}
		raw, err := io.ReadAll(f)
		f.Close()
		if err != nil {
			return err
		}
		_, version, _ := strings.Cut(string(raw), " ")
		versions = append(versions, version)
	}
	if versions[0] != versions[1] || versions[1] != versions[2] {
		return fmt.Errorf("versions are mixed: %q", versions)
	}
	return nil
}

// TestWriteRecovers checks that each leftover that a crash or another process may leave is overcome by the next
// write.
func TestWriteRecovers(t *testing.T) {
	t.Parallel()
	do := func(t *testing.T, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	current := func(t *testing.T, dir string) string {
		t.Helper()
		name, err := os.Readlink(filepath.Join(dir, "..data"))
		do(t, err)
		return filepath.Join(dir, name)
	}
	outside := func(t *testing.T) string {
		dir := t.TempDir()
		do(t, os.WriteFile(filepath.Join(dir, "f"), []byte("1"), 0o600))
		t.Cleanup(func() { wantFiles(t, dir, map[string]string{"f": "1"}) })
		return dir
	}
	leftovers := map[string]func(t *testing.T, dir string){
		"unfinished directory": func(t *testing.T, dir string) {
			do(t, os.MkdirAll(filepath.Join(dir, "..2020_01_01_00_00_00.1/d"), 0o755))
			do(t, os.WriteFile(filepath.Join(dir, "..2020_01_01_00_00_00.1/d/half"), nil, 0o600))
		},
		"new link not renamed": func(t *testing.T, dir string) {
			do(t, os.Symlink("..2020_01_01_00_00_00.1", filepath.Join(dir, "..data_tmp")))
		},
		"new link is a directory": func(t *testing.T, dir string) {
			do(t, os.MkdirAll(filepath.Join(dir, "..data_tmp/x"), 0o755))
		},
		"links not made": func(t *testing.T, dir string) {
			do(t, os.Remove(filepath.Join(dir, "a")))
		},
		"old links not removed": func(t *testing.T, dir string) {
			do(t, os.Symlink("..data/gone", filepath.Join(dir, "gone")))
		},
		"link to elsewhere": func(t *testing.T, dir string) {
			do(t, os.Remove(filepath.Join(dir, "a")))
			do(t, os.Symlink(outside(t)+"/f", filepath.Join(dir, "a")))
		},
		"file in place of link": func(t *testing.T, dir string) {
			do(t, os.Remove(filepath.Join(dir, "a")))
			do(t, os.WriteFile(filepath.Join(dir, "a"), []byte("not ours"), 0o644))
		},
		"data dangles": func(t *testing.T, dir string) {
			do(t, os.RemoveAll(current(t, dir)))
		},
		"data leads out": func(t *testing.T, dir string) {
			do(t, os.RemoveAll(current(t, dir)))
			do(t, os.Remove(filepath.Join(dir, "..data")))
			do(t, os.Symlink(outside(t), filepath.Join(dir, "..data")))
		},
		"data is a directory": func(t *testing.T, dir string) {
			do(t, os.Remove(filepath.Join(dir, "..data")))
			do(t, os.MkdirAll(filepath.Join(dir, "..data/x"), 0o755))
		},
		"content cut short": func(t *testing.T, dir string) {
			do(t, os.Truncate(filepath.Join(current(t, dir), "a"), 0))
		},
		"content is a link out": func(t *testing.T, dir string) {
			do(t, os.Remove(filepath.Join(current(t, dir), "a")))
			do(t, os.Symlink(outside(t)+"/f", filepath.Join(current(t, dir), "a")))
		},
		"content is a fifo": func(t *testing.T, dir string) {
			do(t, os.Remove(filepath.Join(current(t, dir), "a")))
			do(t, unix.Mkfifo(filepath.Join(current(t, dir), "a"), 0o644))
		},
		"directory is a file": func(t *testing.T, dir string) {
			do(t, os.RemoveAll(filepath.Join(current(t, dir), "d")))
			do(t, os.WriteFile(filepath.Join(current(t, dir), "d"), nil, 0o644))
		},
	}
	for name, leave := range leftovers {
		for _, next := range []payload{files("a", "1", "d/b", "2"), files("a", "new", "c", "3")} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				a, path := openTestDir(t)
				a.mustWrite(t, files("a", "1", "d/b", "2"))
				leave(t, path)
				a.mustWrite(t, next)
				want := map[string]string{}
				for p, f := range next {
					want[p] = string(f.data)
				}
				wantFiles(t, path, want)
				wantTidy(t, path)
			})
		}
	}
}

// TestFailedWriteLeavesOldVersion checks that a write that fails before the switch leaves the old version, and no
// copy of the new one.
func TestFailedWriteLeavesOldVersion(t *testing.T) {
	t.Parallel()
	a, path := openTestDir(t)
	a.mustWrite(t, files("a", "1"))
	fail := func() error { return os.ErrPermission }
	if err := a.write(t.Context(), files("a", "2"), testNow, fail); err == nil {
		t.Fatalf("got no error, want %v", os.ErrPermission)
	}
	wantFiles(t, path, map[string]string{"a": "1"})
	wantTidy(t, path)
}

// TestVolumeOfKubeletIsTakenOver checks that the volume of a pod that a kubelet has set up is taken over as it is.
func TestVolumeOfKubeletIsTakenOver(t *testing.T) {
	t.Parallel()
	a, path := openTestDir(t)
	stamp := filepath.Join(path, "..2025_06_07_08_09_10.1234567890")
	for _, err := range []error{
		os.Mkdir(stamp, 0o755),
		os.WriteFile(filepath.Join(stamp, "a"), []byte("1"), 0o644),
		os.Symlink(filepath.Base(stamp), filepath.Join(path, "..data")),
		os.Symlink("..data/a", filepath.Join(path, "a")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if a.mustWrite(t, files("a", "1")) {
		t.Error("content that was right: got it written again, want it as it was")
	}
	if !a.mustWrite(t, files("a", "2")) {
		t.Error("new content: got the old one, want it written")
	}
	wantTidy(t, path)
}

func TestLinkInPodDirectoryIsRefused(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"", "volumes", "volumes/kubernetes.io~configmap", "volumes/kubernetes.io~configmap/vol"} {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			v, pod := newVolumes(t), testPod()
			host := t.TempDir()
			link := filepath.Join(v.podsDir, string(pod.UID), at)
			if err := os.MkdirAll(filepath.Dir(link), 0o750); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(host, link); err != nil {
				t.Fatal(err)
			}
			r := request(pod, "vol", configMapVolume("cfg"))
			_, err := v.Mount(t.Context(), r, testObjects())
			if err == nil || !strings.Contains(err.Error(), "symbolic link") {
				t.Errorf("Mount: got %v, want an error about the link", err)
			}
			precious := filepath.Join(host, "precious")
			if err := os.WriteFile(precious, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			_ = v.Unmount(t.Context(), pod.UID, OnDisk{pluginname.ConfigMap, "vol"})
			_ = v.RemovePodDir(t.Context(), pod.UID)
			entries, err := os.ReadDir(host)
			if err != nil || len(entries) != 1 {
				t.Errorf("host directory has %v (%v), want just what was there", entries, err)
			}
		})
	}
}

func TestFileInPlaceOfDirectoryIsRefused(t *testing.T) {
	t.Parallel()
	v, pod := newVolumes(t), testPod()
	path := filepath.Join(v.podsDir, string(pod.UID), "volumes/kubernetes.io~configmap/vol")
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r := request(pod, "vol", configMapVolume("cfg"))
	if _, err := v.Mount(t.Context(), r, testObjects()); err == nil || !strings.Contains(err.Error(), "not a directory") {
		t.Errorf("got %v, want not a directory", err)
	}
	if err := v.Unmount(t.Context(), pod.UID, OnDisk{pluginname.ConfigMap, "vol"}); err != nil {
		t.Error(err)
	}
	mustMount(t, v, r, testObjects())
}

func TestNamesAreChecked(t *testing.T) {
	t.Parallel()
	v := newVolumes(t)
	for _, name := range []string{"", ".", "..", "../x", "a/b", "/etc", "a\x00", strings.Repeat("x", 256)} {
		for _, where := range []string{"uid", "volume"} {
			pod, volume := testPod(), "vol"
			if where == "uid" {
				pod.UID = types.UID(name)
			} else {
				volume = name
			}
			r := request(pod, volume, corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})
			if _, err := v.Mount(t.Context(), r, nil); err == nil {
				t.Errorf("Mount of %s %q: got no error, want one", where, name)
			}
			if err := v.Unmount(t.Context(), pod.UID, OnDisk{pluginname.EmptyDir, volume}); err == nil {
				t.Errorf("Unmount of %s %q: got no error, want one", where, name)
			}
		}
		if err := v.RemovePodDir(t.Context(), types.UID(name)); err == nil {
			t.Errorf("RemovePodDir of %q: got no error, want one", name)
		}
	}
}
