package podfs

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodelet/nodelet/host/mounts"
	"github.com/nodelet/nodelet/test/ownmounts"
)

// discard is the logger of tests that read no log.
var discard = slog.New(slog.DiscardHandler)

func TestMain(m *testing.M) { ownmounts.Main(m) }

// newVolumes gives a Volumes below a temporary directory.
func newVolumes(t testing.TB) *FS {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: it mounts and changes owners")
	}
	dir := t.TempDir()
	v, err := New(Config{Log: discard, Root: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unmountBelow(t, dir) })
	ownmounts.DetachBelow(t, dir)
	v.started = testNow
	return v
}

func unmountBelow(t testing.TB, dir string) {
	parent, err := os.Open(filepath.Dir(dir))
	if err != nil {
		t.Fatal(err)
	}
	defer parent.Close()
	_, mounts := mountsAt(parent, filepath.Base(dir))
	for i := len(mounts) - 1; i >= 0; i-- {
		if err := unix.Unmount(mounts[i], unix.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", mounts[i], err)
		}
	}
}

// objects is a small set of API objects, and counts what is asked of it.
type objects struct {
	configMaps map[string]*corev1.ConfigMap
	secrets    map[string]*corev1.Secret
	issue      func(pod *corev1.Pod, audience string, seconds int64) (string, time.Time, error)
	tokens     int
	// bundles are what every trust bundle source names, or why there are none; certify answers for certificates of
	// pods.
	bundles   []string
	bundleErr error
	certify   func(shown *tls.Certificate, renew time.Time) (*tls.Certificate, time.Time, error)
}

func (o *objects) TrustBundles(context.Context, *corev1.ClusterTrustBundleProjection) ([]string, error) {
	return o.bundles, o.bundleErr
}

func (o *objects) PodCertificate(_ context.Context, _ *corev1.Pod, _ string, _ int, shown *tls.Certificate,
	renew time.Time) (
	*tls.Certificate, time.Time, error) {
	return o.certify(shown, renew)
}

func (o *objects) ConfigMap(_ context.Context, namespace, name string) (*corev1.ConfigMap, error) {
	if cm, ok := o.configMaps[namespace+"/"+name]; ok {
		return cm, nil
	}
	return nil, apierrors.NewNotFound(corev1.Resource("configmaps"), name)
}

func (o *objects) Secret(_ context.Context, namespace, name string) (*corev1.Secret, error) {
	if s, ok := o.secrets[namespace+"/"+name]; ok {
		return s, nil
	}
	return nil, apierrors.NewNotFound(corev1.Resource("secrets"), name)
}

func (o *objects) Token(_ context.Context, pod *corev1.Pod, audience string, seconds int64) (string, time.Time, error) {
	o.tokens++
	return o.issue(pod, audience, seconds)
}

// issueAt issues tokens like the API server's, at a given time.
func issueAt(now func() time.Time) func(*corev1.Pod, string, int64) (string, time.Time, error) {
	return func(pod *corev1.Pod, audience string, seconds int64) (string, time.Time, error) {
		if audience == "" {
			audience = "https://kubernetes.default.svc.cluster.local"
		}
		expires := now().Add(time.Duration(seconds) * time.Second)
		return makeToken(map[string]any{
			"aud": []string{audience}, "iat": now().Unix(), "exp": expires.Unix(),
			"kubernetes.io": map[string]any{
				"namespace":      pod.Namespace,
				"pod":            map[string]any{"name": pod.Name, "uid": pod.UID},
				"serviceaccount": map[string]any{"name": pod.Spec.ServiceAccountName, "uid": "sa-uid"},
			},
		}), expires, nil
	}
}

func makeToken(claims map[string]any) string {
	raw, err := json.Marshal(claims)
	if err != nil {
		panic(err)
	}
	enc := base64.RawURLEncoding.EncodeToString
	return enc([]byte(`{"alg":"RS256"}`)) + "." + enc(raw) + "." + enc([]byte("signature"))
}

var testNow = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

func testPod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "web-0", Namespace: "shop", UID: "11111111-2222-3333-4444-555555555555",
			Labels:      map[string]string{"app": "web", "tier": `a"b`},
			Annotations: map[string]string{"example.com/Note": "line\nbreak"},
		},
		Spec: corev1.PodSpec{
			ServiceAccountName: "robot",
			Containers:         []corev1.Container{{Name: "main"}},
		},
	}
}

func request(pod *corev1.Pod, name string, source corev1.VolumeSource) Request {
	return Request{Pod: pod, Volume: &corev1.Volume{Name: name, VolumeSource: source}, Now: testNow}
}

func mustMount(t testing.TB, v *FS, r Request, o Objects) Mounted {
	t.Helper()
	m, err := v.Mount(t.Context(), r, o)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// shown returns the name of the directory whose files a volume shows. Each change of the files gives it another.
func shown(t testing.TB, m Mounted) string {
	t.Helper()
	name, err := os.Readlink(filepath.Join(m.HostPath, dataLink))
	if err != nil {
		t.Fatal(err)
	}
	return name
}

// statPath looks at a path without following a link at its end.
func statPath(t testing.TB, path string) unix.Stat_t {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		t.Fatalf("lstat %s: %v", path, err)
	}
	return st
}

func isTmpfs(t testing.TB, path string) bool {
	t.Helper()
	var sfs unix.Statfs_t
	if err := unix.Statfs(path, &sfs); err != nil {
		t.Fatal(err)
	}
	return sfs.Type == unix.TMPFS_MAGIC
}

func isMountPoint(t testing.TB, path string) bool {
	t.Helper()
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	st, err := statChild(dir, filepath.Base(path))
	if err != nil {
		t.Fatal(err)
	}
	return mounts.IsRoot(&st)
}

func bindMount(t testing.TB, source, target string) {
	t.Helper()
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
}

// wantFiles checks all that a container sees in a volume: relative path to content.
func wantFiles(t testing.TB, dir string, want map[string]string) {
	t.Helper()
	got := map[string]string{}
	walk(t, dir, "", got)
	for path, content := range want {
		if g, ok := got[path]; !ok || g != content {
			t.Errorf("%s: got %q (there: %v), want %q", path, g, ok, content)
		}
		delete(got, path)
	}
	for path := range got {
		t.Errorf("got file %s, want none", path)
	}
}

func walk(t testing.TB, dir, rel string, got map[string]string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(dir, rel))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if rel == "" && strings.HasPrefix(e.Name(), "..") {
			continue
		}
		path := filepath.Join(rel, e.Name())
		info, err := os.Stat(filepath.Join(dir, path))
		if err != nil {
			t.Errorf("%s: got %v, want a target that exists", path, err)
			continue
		}
		if info.IsDir() {
			walk(t, dir, path, got)
			continue
		}
		raw, err := os.ReadFile(filepath.Join(dir, path))
		if err != nil {
			t.Fatal(err)
		}
		got[path] = string(raw)
	}
}

// wantTidy checks that nothing of earlier updates is left in a volume.
func wantTidy(t testing.TB, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var hidden []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "..") {
			hidden = append(hidden, e.Name())
		}
	}
	if len(hidden) != 2 { // the timestamped directory and ..data
		t.Errorf("hidden entries: got %q, want ..data and its directory", hidden)
	}
}
