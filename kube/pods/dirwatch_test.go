package pods

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/test/faulttest"
	"github.com/nodelet/nodelet/test/waittest"
)

// newSources makes sources whose events nobody hears, on a node without static pods.
func newSources(cfg Config) *Sources {
	cfg.Adopt = func(context.Context) map[types.NamespacedName]Running { return nil }
	cfg.Event = func(_, _, _ string) {}
	return New(cfg)
}

// start runs sources and returns a function that waits for the pods "name:image name:image".
func start(t *testing.T, cfg Config) (newest func(want string) *Set) {
	t.Helper()
	cfg.NodeName, cfg.Log = "n1", slog.New(slog.DiscardHandler)
	s := newSources(cfg)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { s.Run(ctx); close(ended) }()
	t.Cleanup(func() { cancel(); <-ended })
	return func(want string) *Set {
		t.Helper()
		limit := waittest.Context(t).Done()
		got := "no Set"
		for {
			select {
			case set := <-s.updates:
				var names []string
				for _, p := range set.Pods {
					names = append(names, p.Name+":"+p.Spec.Containers[0].Image)
				}
				slices.Sort(names)
				if got = strings.Join(names, " "); got == want {
					return set
				}
			case <-limit:
				t.Fatalf("the newest pods: got %q, want %q", got, want)
			}
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestInotify checks that changes are noticed by inotify alone: the slow look at the files comes once an hour here.
func TestInotify(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "kubernetes", "manifests") // as /etc/kubernetes/manifests before kubeadm
	file := filepath.Join(dir, "a.yaml")
	newest := start(t, Config{Manifests: dir, FileCheck: time.Hour})
	if set := newest(""); !set.Synced {
		t.Error("a directory that does not exist: got that it holds the node up, want that it does not")
	}
	must(t, os.MkdirAll(dir, 0o700))
	must(t, os.WriteFile(file, []byte(podYAML("a", "1")), 0o600))
	newest("a-n1:1")

	must(t, os.WriteFile(file+".tmp", []byte(podYAML("a", "2")), 0o600))
	must(t, os.Rename(file+".tmp", file))
	newest("a-n1:2")

	f, err := os.OpenFile(file, os.O_WRONLY|os.O_TRUNC, 0)
	must(t, err)
	for _, part := range strings.SplitAfter(podYAML("a", "3"), "\n") { // slowly, as some editors
		_, err := f.WriteString(part)
		must(t, err)
		time.Sleep(20 * time.Millisecond)
	}
	must(t, f.Close())
	newest("a-n1:3")

	must(t, os.Remove(file))
	newest("")
	must(t, os.WriteFile(file, []byte(podYAML("a", "4")), 0o600))
	newest("a-n1:4")
	must(t, os.RemoveAll(dir))
	newest("")
	must(t, os.Mkdir(dir, 0o700))
	must(t, os.WriteFile(file, []byte(podYAML("a", "5")), 0o600))
	newest("a-n1:5")

	next := dir + ".next"
	must(t, os.Mkdir(next, 0o700))
	must(t, os.WriteFile(filepath.Join(next, "a.yaml"), []byte(podYAML("a", "6")), 0o600))
	must(t, unix.Renameat2(unix.AT_FDCWD, next, unix.AT_FDCWD, dir, unix.RENAME_EXCHANGE))
	newest("a-n1:6")
	must(t, os.WriteFile(file, []byte(podYAML("a", "7")), 0o600))
	newest("a-n1:7")
	above := filepath.Dir(dir)
	must(t, os.MkdirAll(filepath.Join(above+".next", filepath.Base(dir)), 0o700))
	must(t, os.WriteFile(filepath.Join(above+".next", filepath.Base(dir), "a.yaml"), []byte(podYAML("a", "8")), 0o600))
	must(t, unix.Renameat2(unix.AT_FDCWD, above+".next", unix.AT_FDCWD, above, unix.RENAME_EXCHANGE))
	newest("a-n1:8")
}

// TestInotifyLater checks that manifests are watched when the agent has started without a free file descriptor.
func TestInotifyLater(t *testing.T) {
	dir := t.TempDir()
	w := newPathWatch(dir)
	defer w.close()
	restore := faulttest.NoFiles(t)
	w.renew()
	if w.failure == "" || w.changes() != nil {
		t.Fatalf("without descriptors: got failure %q, want one, and no changes", w.failure)
	}
	restore()
	w.renew()
	if w.failure != "" {
		t.Fatalf("with descriptors: got failure %q, want none", w.failure)
	}
	must(t, os.WriteFile(filepath.Join(dir, "a.yaml"), nil, 0o600))
	<-w.changes()
}

// TestInotifyOfLinks checks that a mounted ConfigMap changes by turning a hidden link.
func TestInotifyOfLinks(t *testing.T) {
	dir := t.TempDir()
	for _, v := range []string{"1", "2"} {
		must(t, os.Mkdir(filepath.Join(dir, "..v"+v), 0o700))
		must(t, os.WriteFile(filepath.Join(dir, "..v"+v, "a.yaml"), []byte(podYAML("a", v)), 0o600))
	}
	must(t, os.Symlink("..v1", filepath.Join(dir, "..data")))
	must(t, os.Symlink("..data/a.yaml", filepath.Join(dir, "a.yaml")))
	newest := start(t, Config{Manifests: dir, FileCheck: time.Hour})
	newest("a-n1:1")
	must(t, os.Symlink("..v2", filepath.Join(dir, "..data_tmp")))
	must(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	newest("a-n1:2")
}

func TestInotifyOfOneFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pod")
	newest := start(t, Config{Manifests: file, FileCheck: time.Hour})
	newest("")
	for _, v := range []string{"1", "2"} {
		must(t, os.WriteFile(file+".tmp", []byte(podYAML("a", v)), 0o600))
		must(t, os.Rename(file+".tmp", file))
		newest("a-n1:" + v)
	}
}

// TestSlowLook checks that without inotify (a target behind a link that is not watched), the slow look finds the
// change.
func TestSlowLook(t *testing.T) {
	other := filepath.Join(t.TempDir(), "a.yaml")
	dir := t.TempDir()
	must(t, os.WriteFile(other, []byte(podYAML("a", "1")), 0o600))
	must(t, os.Symlink(other, filepath.Join(dir, "a.yaml")))
	newest := start(t, Config{Manifests: dir, FileCheck: 50 * time.Millisecond})
	newest("a-n1:1")
	must(t, os.WriteFile(other, []byte(podYAML("a", "2")), 0o600))
	newest("a-n1:2")
}

func TestURL(t *testing.T) {
	var body atomic.Value
	body.Store("")
	var down atomic.Bool
	down.Store(true)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if down.Load() || r.Header.Get("X-Key") != "k" {
			http.Error(w, "no", http.StatusServiceUnavailable)
			return
		}
		w.Write([]byte(body.Load().(string)))
	}))
	defer server.Close()
	newest := start(t, Config{
		URL:      strings.Replace(server.URL, "http://", "http://user:hunter2@", 1),
		URLCheck: 20 * time.Millisecond, URLHeader: http.Header{"X-Key": {"k"}},
	})
	set := newest("")
	if set.Synced || len(set.Problems) != 1 || !strings.Contains(set.Problems[0].String(), "503") {
		t.Errorf("synced %v with %v, want to wait for the server", set.Synced, set.Problems)
	}
	if strings.Contains(set.Problems[0].String(), "hunter2") {
		t.Errorf("got the password in the problems, want it hidden: %v", set.Problems)
	}
	body.Store(
		"apiVersion: v1\nkind: PodList\nitems:\n- {metadata: {name: a}, spec: {containers: [{name: c, image: i}]}}\n",
	)
	down.Store(false)
	set = newest("a-n1:i")
	for uid, p := range set.Pods {
		if SourceOf(p) != SourceHTTP || len(p.Spec.Tolerations) != 0 || !set.Synced {
			t.Errorf("pod %s: got source %s and tolerations %v, want http, no toleration and a synced Set",
				uid, SourceOf(p), p.Spec.Tolerations)
		}
	}
	down.Store(true)
	if set = newest("a-n1:i"); len(set.Problems) != 1 || set.Unknown() {
		t.Errorf("problems: got %+v, want one, and the pods known", set.Problems)
	}
	body.Store(body.Load().(string) + "---\napiVersion: v1\nkind: Service\n")
	down.Store(false)
	set = newest("a-n1:i")
	if len(set.Problems) != 1 || !strings.Contains(set.Problems[0].String(), "ignored: document 2") {
		t.Errorf("problems: got %+v, want that the Service is ignored", set.Problems)
	}
	body.Store("")
	newest("")
}

// TestURLFailsTheSameWay checks that a connection that fails again is no other problem, although it comes from another
// port: each problem is logged, and is an event.
func TestURLFailsTheSameWay(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		conn.(*net.TCPConn).SetLinger(0) // so that Close resets the connection
		conn.Close()
	}))
	defer server.Close()
	u := newURLSource(Config{NodeName: "n1", URL: server.URL}, nil)
	first, second := u.check(t.Context(), time.Now()), u.check(t.Context(), time.Now())
	if !first.same(second) || !strings.Contains(fmt.Sprint(first.problems), "connection reset by peer") {
		t.Errorf("got the problems %q, then %q; want the same, about a reset", first.problems, second.problems)
	}
}

// TestURLReferences checks that a pod from a URL keeps running, also under the next agent, when the URL no longer
// serves what the pod refers to.
func TestURLReferences(t *testing.T) {
	body := podWithConfigMap("a", "c") + "---\n" + configMapYAML("c")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte(body)) }))
	defer server.Close()
	cfg := Config{NodeName: "n1", API: true, URL: server.URL}
	u := newURLSource(cfg, nil)
	check := func(want int, problem string) (pods []*corev1.Pod) {
		t.Helper()
		got := u.check(t.Context(), time.Now())
		if len(got.pods) != want || !strings.Contains(fmt.Sprint(got.problems), problem) {
			t.Errorf("got %d pods with problems %q, want %d with %q", len(got.pods), got.problems, want, problem)
		}
		return got.pods
	}
	pods := check(1, "")
	body = podWithConfigMap("a", "c")
	check(1, "it keeps running")
	r, _ := RunningOf(pods[0].Annotations)
	u = newURLSource(cfg, map[types.NamespacedName]Running{nameOf(pods[0]): r})
	check(1, "it keeps running")
	u = newURLSource(cfg, nil)
	check(0, "Forbidden")
}

// TestURLAdopts checks that a pod from a URL keeps the UID that it runs under if a kubelet of another version gives
// it to the manifest.
func TestURLAdopts(t *testing.T) {
	body := podYAML("a", "1")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte(body)) }))
	defer server.Close()
	older := olderUID(t, body, server.URL, SourceHTTP)
	for _, c := range []struct {
		runs Running
		want bool
	}{
		{Running{UID: older, Source: SourceHTTP}, true},
		{Running{UID: "0123abcd", Source: SourceHTTP}, false},
		{Running{UID: older, Source: SourceFile}, false},
	} {
		u := newURLSource(Config{NodeName: "n1", URL: server.URL},
			map[types.NamespacedName]Running{{Namespace: "default", Name: "a-n1"}: c.runs})
		got := u.check(t.Context(), time.Now()).pods
		if len(got) != 1 || (got[0].UID == c.runs.UID) != c.want {
			t.Errorf("beside %+v: got pods %v, want its UID: %v", c.runs, got, c.want)
		}
	}
}
