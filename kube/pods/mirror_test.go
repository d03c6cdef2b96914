package pods

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/nodelet/nodelet/internal/latest"
	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/test/kube/apitest"
)

func setOf(deliveries ...delivery) *Set { return merge(deliveries) }

func TestMirrorChanges(t *testing.T) {
	static := func(pods ...*corev1.Pod) delivery { return delivery{source: SourceFile, synced: true, pods: pods} }
	api := func(mirrors ...*corev1.Pod) delivery {
		return delivery{source: SourceAPI, synced: true, mirrors: mirrors}
	}
	doomed := mirrorFor("s", "1")
	doomed.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	waiting := static()
	waiting.synced = false
	unknown := static()
	unknown.problems = []Problem{{Unknown: true}}
	for name, c := range map[string]struct {
		set    *Set
		ending bool
		want   string
	}{
		"in order": {setOf(api(mirrorFor("s", "1")), static(podOf(SourceFile, "s", "1"))), false, ""},
		"missing":  {setOf(api(), static(podOf(SourceFile, "s", "1"))), false, "create 1"},
		"older manifest": {setOf(api(mirrorFor("s", "0")), static(podOf(SourceFile, "s", "1"))), false,
			"remove mirror-of-0 create 1"},
		"being deleted": {setOf(api(doomed), static(podOf(SourceFile, "s", "1"))), false,
			"remove mirror-of-1 create 1"},
		"orphan":                    {setOf(api(mirrorFor("s", "1")), static()), false, "remove mirror-of-1"},
		"orphan, still ending":      {setOf(api(mirrorFor("s", "1")), static()), true, ""},
		"changed, still ending":     {setOf(api(mirrorFor("s", "0")), static(podOf(SourceFile, "s", "1"))), true, ""},
		"API not known":             {setOf(delivery{source: SourceAPI}, static(podOf(SourceFile, "s", "1"))), false, ""},
		"files not known":           {setOf(api(mirrorFor("s", "1")), waiting), false, ""},
		"a file not known":          {setOf(api(mirrorFor("s", "1")), unknown), false, ""},
		"a file not known, pod was": {setOf(api(mirrorFor("had", "1")), unknown), false, "remove mirror-of-1"},
		"a file not known, ending":  {setOf(api(mirrorFor("had", "1")), unknown), true, ""},
		"pods of the API": {setOf(delivery{
			source: SourceAPI,
			synced: true,
			pods:   []*corev1.Pod{podOf(SourceAPI, "a", "1")},
		}), false, ""},
	} {
		var got string
		had := map[types.NamespacedName]bool{{Namespace: "ns", Name: "had"}: true}
		for _, change := range changesFor(c.set, had, func(types.NamespacedName, types.UID) bool { return c.ending }) {
			if change.remove != nil {
				got += "remove " + string(change.remove.UID) + " "
			}
			if change.create != nil {
				got += "create " + string(change.create.UID)
			}
		}
		if got = strings.TrimSpace(got); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

// mirrorBench runs Mirrors in a bubble, over the real API source and a server.
type mirrorBench struct {
	t       *testing.T
	server  *apitest.Server
	mirrors *Mirrors
	ending  atomic.Bool
	nodeErr atomic.Bool
	unread  atomic.Bool // a manifest has never been valid
	static  chan []*corev1.Pod
}

func withMirrors(t *testing.T, setup func(*apitest.Server), test func(*mirrorBench)) {
	synctest.Test(t, func(t *testing.T) {
		server, c := apitest.New(t)
		if setup != nil {
			setup(server)
		}
		b := &mirrorBench{t: t, server: server, static: make(chan []*corev1.Pod)}
		log := slog.New(slog.DiscardHandler)
		b.mirrors = NewMirrors(MirrorConfig{API: c.Core, NodeName: "n1", Log: log,
			Ending: func(types.NamespacedName, types.UID) bool { return b.ending.Load() },
			NodeUID: func(context.Context) (types.UID, error) {
				if b.nodeErr.Load() {
					return "", errors.New("not registered")
				}
				return "node-uid", nil
			}})
		ctx, cancel := context.WithCancel(t.Context())
		in := latest.NewValue[delivery]()
		ended := make(chan struct{}, 3)
		go func() { followAPI(ctx, c.Core, "n1", in); ended <- struct{}{} }()
		go func() { b.mirrors.Run(ctx); ended <- struct{}{} }()
		go func() { b.feed(ctx, in); ended <- struct{}{} }()
		test(b)
		cancel()
		for range 3 {
			<-ended
		}
	})
}

// feed merges what the server has with the static pods of the test.
func (b *mirrorBench) feed(ctx context.Context, in latest.Value[delivery]) {
	files, api := delivery{source: SourceFile, synced: true}, delivery{source: SourceAPI}
	for {
		select {
		case api = <-in:
		case files.pods = <-b.static:
		case <-ctx.Done():
			return
		}
		if files.problems = nil; b.unread.Load() {
			files.problems = []Problem{{Source: SourceFile, Unknown: true}}
		}
		b.mirrors.Keep(merge([]delivery{api, files}))
	}
}

func (b *mirrorBench) mirror(name string) *corev1.Pod {
	synctest.Wait()
	p, _ := b.server.Get("pods", "ns", name).(*corev1.Pod)
	return p
}

// wantHash checks which manifest the mirror pod mirrors; "" for no pod.
func (b *mirrorBench) wantHash(name, hash string) *corev1.Pod {
	b.t.Helper()
	p := b.mirror(name)
	got := ""
	if p != nil {
		got = p.Annotations[podutil.AnnotationMirror]
	}
	if got != hash {
		b.t.Fatalf("the mirror pod of %s has hash %q, want %q", name, got, hash)
	}
	return p
}

func TestMirrorIsCreatedAndDeleted(t *testing.T) {
	withMirrors(t, nil, func(b *mirrorBench) {
		b.static <- []*corev1.Pod{podOf(SourceFile, "s", "1")}
		p := b.wantHash("s", "1")
		if len(p.OwnerReferences) != 1 {
			t.Fatalf("owners: got %v, want one", p.OwnerReferences)
		}
		owner := p.OwnerReferences[0]
		if owner.Kind != "Node" || owner.APIVersion != "v1" || owner.Name != "n1" || owner.UID != "node-uid" ||
			!*owner.Controller {
			t.Errorf("owner: got %+v, want the Node, as controller", owner)
		}
		time.Sleep(time.Hour)
		if n := b.server.Count("create"); n != 1 {
			t.Errorf("got %d creations in an hour, want 1", n)
		}

		b.ending.Store(true) // the old one still runs: its mirror pod stays
		b.static <- []*corev1.Pod{podOf(SourceFile, "s", "2")}
		b.wantHash("s", "1")
		b.ending.Store(false)
		b.mirrors.Wake()
		b.wantHash("s", "2")

		b.server.Delete("pods", "ns", "s") // as a user may
		b.wantHash("s", "2")

		b.static <- nil
		b.wantHash("s", "")
	})
}

// TestMirrorBesideUnreadManifest checks that while a manifest has never been valid, the mirror pod of a manifest that
// this agent has read goes when the manifest is removed and the pod has ended, also if the pods of the API server are
// only known then. A mirror pod of an earlier agent stays, as the manifest may be its own.
func TestMirrorBesideUnreadManifest(t *testing.T) {
	withMirrors(t, func(server *apitest.Server) {
		server.Put(mirrorFor("earlier", "1"))
		server.Put(mirrorFor("gone", "2"))
		server.Intercept(func(*http.Request) *apierrors.StatusError { return apierrors.NewServiceUnavailable("not yet") })
	}, func(b *mirrorBench) {
		b.unread.Store(true)
		b.static <- []*corev1.Pod{podOf(SourceFile, "gone", "2")}
		synctest.Wait()
		b.static <- []*corev1.Pod{podOf(SourceFile, "s", "3")}
		synctest.Wait()
		b.server.Intercept(nil)
		time.Sleep(10 * time.Minute)
		b.wantHash("s", "3")
		b.wantHash("gone", "")

		b.ending.Store(true)
		b.static <- nil
		b.wantHash("s", "3")
		b.ending.Store(false)
		b.mirrors.Wake()
		b.wantHash("s", "")
		b.wantHash("earlier", "1")

		b.static <- []*corev1.Pod{podOf(SourceFile, "s", "3")} // it comes back, and goes again
		time.Sleep(time.Minute)
		b.wantHash("s", "3")
		b.static <- nil
		time.Sleep(time.Minute)
		b.wantHash("s", "")
		b.wantHash("earlier", "1")
	})
}

func TestMirrorRetries(t *testing.T) {
	withMirrors(t, nil, func(b *mirrorBench) {
		b.nodeErr.Store(true)
		b.static <- []*corev1.Pod{podOf(SourceFile, "s", "1")}
		time.Sleep(time.Minute)
		b.wantHash("s", "")
		b.server.Intercept(func(r *http.Request) *apierrors.StatusError {
			if r.Method == http.MethodPost {
				return apierrors.NewNotFound(corev1.Resource("namespaces"), "ns")
			}
			return nil
		})
		b.nodeErr.Store(false)
		b.server.Requests()
		time.Sleep(10 * time.Minute)
		if n := b.server.Count("create"); n < 15 || n > 60 {
			t.Errorf("got %d attempts in ten minutes, want one each 15 to 30 s", n)
		}
		b.server.Intercept(nil)
		time.Sleep(time.Minute)
		b.wantHash("s", "1")
	})
}

// TestMirrorSlowWebhook checks that a mirror pod for which the API server needs a minute, because a webhook does not
// answer it, is replaced, and that others do not wait for it.
func TestMirrorSlowWebhook(t *testing.T) {
	var listed chan struct{} // the API server answers
	withMirrors(t, func(server *apitest.Server) {
		listed = make(chan struct{})
		server.Put(mirrorFor("slow", "0"))
		server.Intercept(func(r *http.Request) *apierrors.StatusError {
			body, _ := io.ReadAll(r.Body)
			r.Body = io.NopCloser(bytes.NewReader(body))
			if r.Method == http.MethodDelete || r.Method == http.MethodPost && bytes.Contains(body, []byte("slow")) {
				select {
				case <-time.After(60 * time.Second):
				case <-r.Context().Done():
					return apierrors.NewTimeoutError("the client has not waited", 0)
				}
			}
			<-listed
			return nil
		})
	}, func(b *mirrorBench) {
		b.static <- []*corev1.Pod{podOf(SourceFile, "slow", "1")}
		synctest.Wait()
		close(listed)
		synctest.Wait()
		b.static <- []*corev1.Pod{podOf(SourceFile, "slow", "1"), podOf(SourceFile, "s", "2")}
		b.wantHash("s", "2")
		b.wantHash("slow", "0")
		time.Sleep(3 * time.Minute)
		b.wantHash("slow", "1")
	})
}

// TestMirrorExists checks a pod that has the name already: the mirror pod whose create response was lost, an older
// mirror pod, or a foreign pod, which is left alone.
func TestMirrorExists(t *testing.T) {
	for name, c := range map[string]struct {
		hash, node string
		want       string
	}{
		"the same":     {"1", "n1", "1"},
		"older":        {"0", "n1", "1"},
		"other node's": {"0", "n2", "0"},
		"foreign pod":  {"", "n1", ""},
	} {
		t.Run(name, func(t *testing.T) {
			withMirrors(t, func(server *apitest.Server) {
				p := podOf(SourceAPI, "s", "x")
				p.Spec.NodeName = c.node
				if c.hash != "" {
					p.Annotations[podutil.AnnotationMirror] = c.hash
				}
				server.Put(p)
				// The watch does not show it.
				server.Intercept(func(r *http.Request) *apierrors.StatusError {
					if r.URL.Query().Get("watch") != "" {
						r.URL.RawQuery = strings.ReplaceAll(r.URL.RawQuery, "spec.nodeName%3Dn1", "spec.nodeName%3Dother")
					}
					return nil
				})
			}, func(b *mirrorBench) {
				b.static <- []*corev1.Pod{podOf(SourceFile, "s", "1")}
				time.Sleep(5 * time.Second)
				p := b.mirror("s")
				if p == nil || p.Annotations[podutil.AnnotationMirror] != c.want {
					t.Errorf("the pod: got %v, want one with hash %q", p, c.want)
				}
			})
		})
	}
}

// TestMirrorDeletesWhatItSaw checks that only the mirror pod that was seen is deleted: not another pod that took its
// name meanwhile.
func TestMirrorDeletesWhatItSaw(t *testing.T) {
	withMirrors(t, func(server *apitest.Server) {
		server.Put(mirrorFor("s", "1"))
		server.Intercept(func(r *http.Request) *apierrors.StatusError {
			if r.Method == http.MethodDelete {
				server.Delete("pods", "ns", "s")
				server.Put(podOf(SourceAPI, "s", "foreign"))
			}
			return nil
		})
	}, func(b *mirrorBench) {
		b.static <- nil
		if p := b.mirror("s"); p == nil || p.UID != "foreign" {
			t.Errorf("got pod %v, want the foreign one", p)
		}
	})
}

func TestMirrorOf(t *testing.T) {
	pod := &corev1.Pod{}
	err := yaml.UnmarshalStrict([]byte(`
metadata: {name: a, namespace: ns, labels: {l: m}, annotations: {kubernetes.io/config.hash: h}}
spec:
  imagePullSecrets: [{name: pull}]
  containers:
  - name: c
    image: i
    env: [{name: A, value: b}, {name: B, valueFrom: {secretKeyRef: {name: s, key: k}}}]
    envFrom: [{configMapRef: {name: c}}]
    volumeMounts: [{name: v, mountPath: /v}]
  volumes: [{name: v, configMap: {name: c}}, {name: w, hostPath: {path: /x}}]
`), pod)
	if err != nil {
		t.Fatal(err)
	}
	before := pod.DeepCopy()
	m := mirrorOf(pod, "n1", "u")
	if got := m.Annotations[annotationManifestObjects]; got != "ConfigMap/c Secret/pull Secret/s" {
		t.Errorf("%s: got %q, want ConfigMap/c Secret/pull Secret/s", annotationManifestObjects, got)
	}
	if m.Annotations[podutil.AnnotationMirror] != "h" || m.Labels["l"] != "m" {
		t.Errorf("metadata: got %+v, want the hash and the labels", m.ObjectMeta)
	}
	if refs := podutil.References(m); len(refs) != 0 {
		t.Errorf("references of the mirror pod: got %v, want none", refs)
	}
	c := m.Spec.Containers[0]
	if len(c.Env) != 1 || len(c.VolumeMounts) != 1 || m.Spec.Volumes[0].EmptyDir == nil ||
		m.Spec.Volumes[1].HostPath == nil {
		t.Errorf("spec of the mirror pod: got %+v, want what refers to nothing kept", m.Spec)
	}
	if !reflect.DeepEqual(pod, before) {
		t.Error("the static pod: got it changed, want it as it was")
	}
	pod = &corev1.Pod{Spec: corev1.PodSpec{ImagePullSecrets: []corev1.LocalObjectReference{{Name: ""}}}}
	pod.Annotations = map[string]string{podutil.AnnotationHash: "h"}
	if _, refers := mirrorOf(pod, "n1", "u").Annotations[annotationManifestObjects]; refers {
		t.Errorf("%s with an empty name: got it, want none", annotationManifestObjects)
	}
}
