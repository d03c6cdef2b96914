package podfs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
)

func testObjects() *objects {
	return &objects{
		configMaps: map[string]*corev1.ConfigMap{"shop/cfg": {
			Data:       map[string]string{"a.conf": "A", "b.conf": "B"},
			BinaryData: map[string][]byte{"raw": {0, 1, 2}},
		}},
		secrets: map[string]*corev1.Secret{"shop/cred": {Data: map[string][]byte{"user": []byte("me"),
			"pass": []byte("s3")}}},
	}
}

func configMapVolume(name string) corev1.VolumeSource {
	return corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
		LocalObjectReference: corev1.LocalObjectReference{Name: name}, DefaultMode: new(int32(0o644))}}
}

func TestConfigMapAndSecret(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		source corev1.VolumeSource
		plugin string
		tmpfs  bool
		want   map[string]string
		modes  map[string]uint32
	}{
		"all keys": {
			source: configMapVolume("cfg"), plugin: "configmap",
			want:  map[string]string{"a.conf": "A", "b.conf": "B", "raw": "\x00\x01\x02"},
			modes: map[string]uint32{"a.conf": 0o644},
		},
		"items": {
			source: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
				LocalObjectReference: corev1.LocalObjectReference{Name: "cfg"}, DefaultMode: new(int32(0o440)),
				Items: []corev1.KeyToPath{
					{Key: "a.conf", Path: "etc/x/a"}, {Key: "b.conf", Path: "etc/b", Mode: new(int32(0o755))}}}},
			plugin: "configmap",
			want:   map[string]string{"etc/x/a": "A", "etc/b": "B"},
			modes:  map[string]uint32{"etc/x/a": 0o440, "etc/b": 0o755, "etc/x": 0o755},
		},
		"no default mode": {
			source: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
				LocalObjectReference: corev1.LocalObjectReference{Name: "cfg"}}},
			plugin: "configmap",
			want:   map[string]string{"a.conf": "A", "b.conf": "B", "raw": "\x00\x01\x02"},
			modes:  map[string]uint32{"a.conf": 0o644},
		},
		"optional object is missing": {
			source: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
				LocalObjectReference: corev1.LocalObjectReference{Name: "gone"}, Optional: new(true)}},
			plugin: "configmap",
			want:   map[string]string{},
		},
		"optional key is missing": {
			source: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "cred", Optional: new(true),
				Items: []corev1.KeyToPath{{Key: "gone", Path: "gone"}, {Key: "user", Path: "u"}}}},
			plugin: "secret", tmpfs: true,
			want: map[string]string{"u": "me"},
		},
		"secret": {
			source: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "cred", DefaultMode: new(int32(0o400))}},
			plugin: "secret", tmpfs: true,
			want:  map[string]string{"user": "me", "pass": "s3"},
			modes: map[string]uint32{"user": 0o400},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v, pod := newVolumes(t), testPod()
			r := request(pod, "vol", tt.source)
			m := mustMount(t, v, r, testObjects())
			want := Mounted{
				HostPath: filepath.Join(v.podsDir, string(pod.UID), "volumes/kubernetes.io~"+tt.plugin, "vol"),
				ReadOnly: true, MountPoint: tt.tmpfs, SELinuxRelabel: true,
			}
			if m != want {
				t.Fatalf("got %+v, want %+v", m, want)
			}
			wantFiles(t, m.HostPath, tt.want)
			for path, mode := range tt.modes {
				if got := statPath(t, filepath.Join(m.HostPath, "..data", path)).Mode & 0o7777; got != mode {
					t.Errorf("mode of %s: got %o, want %o", path, got, mode)
				}
			}
			if isTmpfs(t, m.HostPath) != tt.tmpfs || isMountPoint(t, m.HostPath) != tt.tmpfs {
				t.Errorf("on tmpfs: got %v, want %v", !tt.tmpfs, tt.tmpfs)
			}
			before := shown(t, m)
			if again := mustMount(t, v, r, testObjects()); again != m || shown(t, m) != before {
				t.Error("second Mount with the same content: got the volume changed, want it as it was")
			}
			wantTidy(t, m.HostPath)
			if err := v.Unmount(t.Context(), pod.UID, OnDisk{"kubernetes.io/" + tt.plugin, "vol"}); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Lstat(m.HostPath); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("volume directory: got %v, want it removed", err)
			}
		})
	}
}

func TestContentErrors(t *testing.T) {
	t.Parallel()
	items := func(items ...corev1.KeyToPath) corev1.VolumeSource {
		s := configMapVolume("cfg")
		s.ConfigMap.Items = items
		return s
	}
	tests := map[string]struct {
		source corev1.VolumeSource
		want   string
	}{
		"configMap is missing": {configMapVolume("gone"), `configmap "gone" not found`},
		"secret is missing": {corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "gone"}},
			`secret "gone" not found`},
		"configMap key is missing": {items(corev1.KeyToPath{Key: "k", Path: "p"}),
			`configmap references non-existent config key: k`},
		"secret key is missing": {corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "cred",
			Items: []corev1.KeyToPath{{Key: "k", Path: "p"}}}}, `references non-existent secret key: k`},
		"path with dots": {items(corev1.KeyToPath{Key: "a.conf", Path: "x/../../y"}),
			`invalid path: must not contain '..': x/../../y`},
		"absolute path": {items(corev1.KeyToPath{Key: "a.conf", Path: "/etc/passwd"}),
			`invalid path: must be relative path: /etc/passwd`},
		"reserved path": {items(corev1.KeyToPath{Key: "a.conf", Path: "./..data"}),
			`invalid path: must not start with '..': ./..data`},
		"file and directory": {items(corev1.KeyToPath{Key: "a.conf", Path: "x"},
			corev1.KeyToPath{Key: "b.conf", Path: "x/y"}),
			`write files: invalid path: x is needed both as a file and as the directory of x/y`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := newVolumes(t)
			_, err := v.Mount(t.Context(), request(testPod(), "vol", tt.source), testObjects())
			want := `MountVolume.SetUp failed for volume "vol" : ` + tt.want
			if err == nil || err.Error() != want {
				t.Fatalf("got error %v\nwant %s", err, want)
			}
			if strings.HasSuffix(tt.want, "not found") != apierrors.IsNotFound(err) {
				t.Errorf("IsNotFound: got %v, want %v", apierrors.IsNotFound(err), !apierrors.IsNotFound(err))
			}
		})
	}
}

// TestContentStaysWhenSourceGoes checks that an object that vanishes, or loses a key, leaves running containers what
// they have.
func TestContentStaysWhenSourceGoes(t *testing.T) {
	t.Parallel()
	v, pod := newVolumes(t), testPod()
	o := testObjects()
	r := request(pod, "vol", configMapVolume("cfg"))
	r.Volume.ConfigMap.Items = []corev1.KeyToPath{{Key: "a.conf", Path: "a"}}
	m := mustMount(t, v, r, o)
	delete(o.configMaps["shop/cfg"].Data, "a.conf")
	if _, err := v.Mount(t.Context(), r, o); err == nil {
		t.Error("a missing key: got no error, want one")
	}
	delete(o.configMaps, "shop/cfg")
	if _, err := v.Mount(t.Context(), r, o); !apierrors.IsNotFound(err) {
		t.Errorf("got %v, want not found", err)
	}
	wantFiles(t, m.HostPath, map[string]string{"a": "A"})
}

func TestFSGroup(t *testing.T) {
	t.Parallel()
	v, pod := newVolumes(t), testPod()
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: new(int64(2000))}
	s := configMapVolume("cfg")
	s.ConfigMap.DefaultMode = new(int32(0o400))
	s.ConfigMap.Items = []corev1.KeyToPath{{Key: "a.conf", Path: "d/a"}}
	m := mustMount(t, v, request(pod, "cfg", s), testObjects())
	for path, mode := range map[string]uint32{".": 0o2777, "..data/d": 0o2755, "..data/d/a": 0o440} {
		st := statPath(t, filepath.Join(m.HostPath, path))
		if st.Gid != 2000 || st.Mode&0o7777 != mode {
			t.Errorf("%s: got group %d mode %o, want 2000 %o", path, st.Gid, st.Mode&0o7777, mode)
		}
	}
}

func TestTmpfsSizeIsBounded(t *testing.T) {
	t.Parallel()
	v, pod := newVolumes(t), testPod()
	r := request(pod, "cred", corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "cred"}})
	r.Allocatable = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")}
	m := mustMount(t, v, r, testObjects())
	var sfs unix.Statfs_t
	if err := unix.Statfs(m.HostPath, &sfs); err != nil {
		t.Fatal(err)
	}
	if size := int64(sfs.Blocks) * sfs.Bsize; size != 64<<20 {
		t.Errorf("tmpfs of %d bytes, want 64Mi", size)
	}
}

func TestNestedMountPoints(t *testing.T) {
	t.Parallel()
	v, pod := newVolumes(t), testPod()
	o := testObjects()
	mounts := func(paths ...string) (m []corev1.VolumeMount) {
		for i, p := range paths {
			name := "other"
			if i == 0 {
				name = "cfg"
			}
			m = append(m, corev1.VolumeMount{Name: name, MountPath: p})
		}
		return m
	}
	pod.Spec.Containers[0].VolumeMounts = mounts("/etc/cfg", "/etc/cfg/sub", "/etc/cfg/sub/deeper", "/etc/cfg-2",
		"/etc/cfg/z")
	pod.Spec.InitContainers = []corev1.Container{{Name: "init", VolumeMounts: mounts("/i/", "/i/by/init")}}
	m := mustMount(t, v, request(pod, "cfg", configMapVolume("cfg")), o)
	for path, want := range map[string]bool{"sub": true, "sub/deeper": false, "z": true, "by/init": true} {
		info, err := os.Stat(filepath.Join(m.HostPath, path))
		if got := err == nil && info.IsDir(); got != want {
			t.Errorf("mount point %s there: got %v, want %v", path, got, want)
		}
	}
	before := shown(t, m)
	if mustMount(t, v, request(pod, "cfg", configMapVolume("cfg")), o); shown(t, m) != before {
		t.Error("mount points of other volumes: got that they count as content, want that they do not")
	}
	pod.Spec.Containers[0].VolumeMounts = mounts("../../x", "../../x/y")
	if _, err := v.Mount(t.Context(), request(pod, "cfg", configMapVolume("cfg")), o); err == nil {
		t.Error("a mount path out of the container: got no error, want one")
	}
}

// TestPlaces checks that while all places to fill volumes are taken, a mount waits for no longer than its caller, and
// what has no files to be filled with needs none. Each place is given back.
func TestPlaces(t *testing.T) {
	t.Parallel()
	v := newVolumes(t)
	for range cap(v.writers) {
		v.writers <- struct{}{}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := request(testPod(), "cfg", configMapVolume("cfg"))
	if leave, err := v.enter(ctx); !errors.Is(err, context.Canceled) {
		leave()
		t.Fatalf("got %v", err)
	}
	mustMount(t, v, request(testPod(), "scratch", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}),
		testObjects())
	waits := make(chan error)
	go func() {
		_, err := v.Mount(t.Context(), r, testObjects())
		waits <- err
	}()
	<-v.writers
	if err := <-waits; err != nil {
		t.Error(err)
	}
	missing := request(testPod(), "cfg", configMapVolume("nothing"))
	if _, err := v.Mount(t.Context(), missing, testObjects()); err == nil {
		t.Error("a missing ConfigMap: got no error, want one")
	}
	if n := len(v.writers); n != cap(v.writers)-1 {
		t.Errorf("got %d places taken, want %d", n, cap(v.writers)-1)
	}
}

// TestRepeatedValue checks that a value which a volume shows thousands of times is in memory once.
func TestRepeatedValue(t *testing.T) {
	t.Parallel()
	const many = 5000
	o, pod := testObjects(), testPod()
	o.configMaps["shop/big"] = &corev1.ConfigMap{Data: map[string]string{"big": strings.Repeat("x", 1<<20)}}
	pod.Annotations = map[string]string{"big": strings.Repeat("y", 200<<10)}
	var sources []corev1.VolumeProjection
	for i := range many {
		sources = append(sources, corev1.VolumeProjection{ConfigMap: &corev1.ConfigMapProjection{
			LocalObjectReference: corev1.LocalObjectReference{Name: "big"},
			Items:                []corev1.KeyToPath{{Key: "big", Path: fmt.Sprintf("c%d", i)}},
		}}, corev1.VolumeProjection{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{
			{Path: fmt.Sprintf("d%d", i), FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.annotations['big']"}},
		}}})
	}
	r := request(pod, "big", corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: sources}})
	c := &content{FS: newVolumes(t), Request: r, objects: o, values: map[string][]byte{}}
	files, _, err := c.projected(t.Context(), sources)
	if err != nil || len(files) != 2*many {
		t.Fatalf("got %d files, %v, want %d", len(files), err, 2*many)
	}
	copies := map[*byte]bool{}
	for _, f := range files {
		copies[&f.data[0]] = true
	}
	if len(copies) != 2 {
		t.Errorf("got %d copies of two values, want 2", len(copies))
	}
}
