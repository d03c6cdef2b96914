package manager

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/rest"

	"github.com/nodelet/nodelet/cni"
	"github.com/nodelet/nodelet/kube/client"
	"github.com/nodelet/nodelet/test/kube/apitest"
)

// annotated is a set of annotations that run against an API server.
type annotated struct {
	*annotations
	t      *testing.T
	server *apitest.Server
	stop   func()
	// detached: the sandbox of the pod is gone.
	detached atomic.Bool
	// objects are those that show pods in the API server, by the UID of the pod.
	objects map[types.UID]*corev1.Pod

	mu     sync.Mutex
	events []string
}

func startAnnotations(t *testing.T) *annotated {
	t.Helper()
	server, client := apitest.New(t)
	a := &annotated{t: t, server: server, objects: map[types.UID]*corev1.Pod{}}
	a.annotations = newAnnotations(apiServer{client.Core}, func(pod cni.Pod, eventType, reason, message string) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.events = append(a.events, fmt.Sprintf("%s %s %s", pod.Name, eventType, reason))
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { a.run(ctx, func(string) bool { return !a.detached.Load() }); close(done) }()
	a.stop = func() { cancel(); <-done }
	t.Cleanup(a.stop)
	synctest.Wait() // it waits for pods
	return a
}

// attach creates the pod name in the API server and adds the record of its networks.
func (a *annotated) attach(name string) {
	a.show(name, name)
	a.add(record(name, "", "default/wide"))
}

// show makes the API server show a pod by an object with a UID, and the source of pods say so. Empty: by none.
func (a *annotated) show(pod, uid string) {
	delete(a.objects, types.UID(pod))
	a.server.Delete("pods", "default", pod)
	if uid != "" {
		object := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: pod, UID: types.UID(uid)}}
		a.objects[types.UID(pod)] = object
		a.server.Put(object)
	}
	objects := maps.Clone(a.objects)
	a.shown.Put(func(uid types.UID) (*corev1.Pod, bool) { o, ok := objects[uid]; return o, ok })
}

// record is the record of a pod with a network for each label.
func record(name string, labels ...string) *cni.Record {
	rec := &cni.Record{Pod: cni.Pod{Namespace: "default", Name: name, UID: name}, Whole: true}
	for i, label := range labels {
		rec.Attachments = append(rec.Attachments, cni.Attachment{
			Network: fmt.Sprint("net", i),
			IfName:  fmt.Sprint("eth", i),
			Label:   label,
			Result:  json.RawMessage(`{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.2/24"}]}`),
		})
	}
	return rec
}

// check compares the pods that have been annotated, and the events, since the last check.
func (a *annotated) check(pods, events []string) {
	a.t.Helper()
	synctest.Wait()
	var got []string
	for _, r := range a.server.Requests() {
		if name, ok := strings.CutPrefix(r, "patch pods default/"); ok {
			got = append(got, name)
		}
	}
	slices.Sort(got)
	a.mu.Lock()
	defer a.mu.Unlock()
	if !slices.Equal(got, pods) || !slices.Equal(a.events, events) {
		a.t.Errorf("got patches of %q and events %q, want %q and %q", got, a.events, pods, events)
	}
	a.events = nil
}

func refusePatches(err *apierrors.StatusError) func(*http.Request) *apierrors.StatusError {
	return func(r *http.Request) *apierrors.StatusError {
		if r.Method == http.MethodPatch {
			return err
		}
		return nil
	}
}

// TestAnnotation checks that pods which have selected networks get the annotation, and no others.
func TestAnnotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := startAnnotations(t)
		a.add(record("plain", ""))
		a.add(record("none"))
		a.attach("web")
		a.check([]string{"web"}, nil)
		if got := a.server.Patches(); len(got) != 1 || !strings.Contains(got[0], cni.StatusAnnotation) ||
			!strings.Contains(got[0], `"uid":"web"`) || !strings.Contains(got[0], "10.0.0.2") {
			t.Errorf("got patches %q, want one with the address and the UID of the pod", got)
		}
		time.Sleep(time.Hour)
		a.check(nil, nil)
	})
}

// TestAnnotationOfMirrorPod checks that each mirror pod of a static pod gets the annotation, however late it comes and
// also if it is created again, that there is no event, and no request while there is none to annotate. A pod whose
// mirror pod never comes does not delay it.
func TestAnnotationOfMirrorPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := startAnnotations(t)
		a.add(record("never", "", "default/wide"))
		a.add(record("web", "", "default/wide"))
		var want []string
		for _, uid := range []string{"", "first", "", "second", "third"} {
			a.show("web", uid)
			if uid != "" {
				want = append(want, uid)
			}
			synctest.Wait()
			if got := a.patched(); !slices.Equal(got, want) || len(a.events) != 0 {
				t.Errorf("mirror pod %q: got patches with the UIDs %q and events %q, want %q and no event",
					uid, got, a.events, want)
			}
			time.Sleep(time.Hour)
		}
		if n := a.server.Count("patch pods"); n != len(want) {
			t.Errorf("got %d patches, want %d", n, len(want))
		}
	})
}

// patched returns the UIDs of the patches that the API server has accepted.
func (a *annotated) patched() (uids []string) {
	for _, text := range a.server.Patches() {
		var patch corev1.Pod
		if err := json.Unmarshal([]byte(text), &patch); err != nil {
			a.t.Fatal(err)
		}
		uids = append(uids, string(patch.UID))
	}
	return uids
}

// TestAnnotationIsRetried checks that a pod is annotated when the API server is back, however long it was away, and
// that the tries become rare, but not the first one of another pod.
func TestAnnotationIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := startAnnotations(t)
		a.server.Intercept(refusePatches(apierrors.NewInternalError(fmt.Errorf("etcd is away"))))
		a.attach("web")
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := a.server.Count("patch pods"); n < 100 || n > 300 {
			t.Errorf("got %d tries in an hour, want about one each half minute", n)
		}
		a.attach("new")
		time.Sleep(time.Second)
		synctest.Wait()
		if n := a.server.Count("patch pods default/new"); n < 2 {
			t.Errorf("got %d tries of a new pod in a second, want some", n)
		}
		a.server.Requests()
		a.server.Intercept(nil)
		time.Sleep(time.Minute)
		a.check([]string{"new", "web"}, nil)
		time.Sleep(time.Hour)
		a.check(nil, nil)
	})
}

// TestAnnotationRefused checks that a pod gets an event, once, if the API server refuses the annotation.
func TestAnnotationRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := startAnnotations(t)
		a.server.Intercept(refusePatches(apierrors.NewForbidden(corev1.Resource("pods"), "web", nil)))
		a.attach("web")
		a.check([]string{"web"}, []string{"web Warning NetworkStatusFailed"})
		broken := record("broken", "", "default/wide")
		broken.Attachments[1].Result = nil
		a.show("broken", "broken")
		a.add(broken)
		a.check(nil, []string{"broken Warning NetworkStatusFailed"})
		time.Sleep(time.Hour)
		a.check(nil, nil)
	})
}

// TestAnnotationOfRemovedPod checks that a pod which was removed, or replaced, gets no event, and is not tried again
// when the source of pods has shown that, nor kept when its sandbox is gone.
func TestAnnotationOfRemovedPod(t *testing.T) {
	for _, refusal := range []*apierrors.StatusError{
		apierrors.NewNotFound(corev1.Resource("pods"), "web"),
		// A patch with the UID of another pod is refused as a change of a field that cannot change, or as a conflict.
		apierrors.NewConflict(corev1.Resource("pods"), "web", nil),
		apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Pod").GroupKind(), "web",
			field.ErrorList{field.Invalid(field.NewPath("metadata", "uid"), "web", "field is immutable")}),
	} {
		synctest.Test(t, func(t *testing.T) {
			a := startAnnotations(t)
			a.server.Intercept(refusePatches(refusal))
			a.attach("web")
			a.check([]string{"web"}, nil)
			a.show("web", "")
			time.Sleep(time.Hour)
			a.check(nil, nil)
			a.detached.Store(true)
			a.show("other", "other")
			synctest.Wait()
			if len(a.pods) != 0 {
				t.Errorf("got %d pods to annotate, want none without a sandbox", len(a.pods))
			}
		})
	}
}

// TestAnnotationsStop checks that run returns at once when the agent stops while the API server is away.
func TestAnnotationsStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := startAnnotations(t)
		a.server.Intercept(refusePatches(apierrors.NewInternalError(fmt.Errorf("etcd is away"))))
		a.attach("web")
		time.Sleep(10 * time.Minute)
		before := time.Now()
		a.stop()
		if took := time.Since(before); took != 0 {
			t.Errorf("stopping took %s, want no time", took)
		}
	})
}

// TestAnnotationAfterRestart checks that a new process annotates the pods of the records that it finds.
func TestAnnotationAfterRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := startAnnotations(t)
		dir := t.TempDir()
		for _, rec := range []*cni.Record{record("web", "", "default/wide"), record("plain", "")} {
			rec.Sandbox = rec.Pod.Name
			text, err := json.Marshal(rec)
			if err == nil {
				err = os.MkdirAll(filepath.Join(dir, "sandboxes", rec.Sandbox), 0o700)
			}
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, "sandboxes", rec.Sandbox, "record.json"), text, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		m := New(Config{Dir: dir, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
		m.annotations = a.annotations
		(&agentMode{Manager: m, driver: m.driver(cni.Dirs{})}).annotateAgain()
		a.show("web", "web")
		a.check([]string{"web"}, nil)
	})
}

// TestAnnotationSlowWebhook checks that a pod for which the API server needs a minute, because a webhook does not
// answer it, is annotated, with the networks of its newest sandbox, and that others do not wait for it.
func TestAnnotationSlowWebhook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := startAnnotations(t)
		a.server.Intercept(func(r *http.Request) *apierrors.StatusError {
			if r.Method != http.MethodPatch || !strings.Contains(r.URL.Path, "/slow/") {
				return nil
			}
			select {
			case <-time.After(60 * time.Second):
				return nil
			case <-r.Context().Done():
				return apierrors.NewTimeoutError("the client has not waited", 0)
			}
		})
		a.attach("slow")
		synctest.Wait()
		a.attach("web")
		a.add(record("slow", "", "default/wide", "default/newer"))
		a.check([]string{"slow", "web"}, nil)
		time.Sleep(3 * time.Minute)
		a.check([]string{"slow"}, nil)
		if got := a.server.Patches(); len(got) != 3 || !strings.Contains(got[2], "newer") {
			t.Errorf("got the patches %q, want the networks of the newest sandbox last", got)
		}
	})
}

// TestDefinitionErrors checks that only the API server says that there is no NetworkAttachmentDefinition.
func TestDefinitionErrors(t *testing.T) {
	for name, c := range map[string]struct {
		contentType, body, want string
	}{
		"API server": {"application/json",
			`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`, "there is neither"},
		"load balancer": {"text/html", "<h1>404</h1>", "neither an object nor its absence was answered"},
	} {
		front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", c.contentType)
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, c.body)
		}))
		defer front.Close()
		clients, err := client.New(&rest.Config{Host: front.URL}, -1, 0, "test")
		if err != nil {
			t.Fatal(err)
		}
		_, err = apiServer{clients.Core}.definition(t.Context(), "ns", "wide", "/wide.conflist")
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "/wide.conflist") {
			t.Errorf("%s: got %v, want an error with %q and the file", name, err, c.want)
		}
	}
}
