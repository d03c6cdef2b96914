package node

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/nodelet/nodelet/kube/client"
	"github.com/nodelet/nodelet/test/kube/frame"
)

const testNode = "192.0.2.7" // a name that is an address: no DNS, no routes

// fakeAPI has one Node and its lease and answers as the API server does, without a network, so that it also works in
// synctest bubbles. It applies patches with the API server's own strategic merge.
type fakeAPI struct {
	mu       sync.Mutex
	node     *corev1.Node
	lease    *coordinationv1.Lease
	version  int
	requests []string // "VERB resource"
	patches  []string
	watchers []*watcher
	// before, if set, is called before each request without the lock. An error is the response: a Status, or else a
	// broken connection.
	before func(r *http.Request) error
	// renewed counts how often the connection of heartbeats was replaced.
	renewed atomic.Int64
}

func (f *fakeAPI) renew() error {
	f.renewed.Add(1)
	return nil
}

func (f *fakeAPI) config() *rest.Config { return &rest.Config{Host: "http://api.test", Transport: f} }

func (f *fakeAPI) client(t testing.TB) *client.Client {
	t.Helper()
	c, err := client.New(f.config(), 1e6, 1e6, "test")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// store writes the object, as another client does.
func (f *fakeAPI) store(n *corev1.Node) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.put(n.DeepCopy())
}

func (f *fakeAPI) put(n *corev1.Node) {
	f.version++
	kind := apiwatch.Modified
	if f.node == nil {
		kind = apiwatch.Added
	}
	if n.UID == "" {
		n.UID = types.UID("uid-" + strconv.Itoa(f.version))
	}
	n.ResourceVersion = strconv.Itoa(f.version)
	f.node = n
	for _, w := range f.watchers {
		w.send(kind, n)
	}
}

// remove deletes the object, as another client does.
func (f *fakeAPI) remove() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.version++
	gone := f.node.DeepCopy()
	gone.ResourceVersion = strconv.Itoa(f.version)
	f.node = nil
	for _, w := range f.watchers {
		w.send(apiwatch.Deleted, gone)
	}
}

func (f *fakeAPI) get() *corev1.Node {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.node.DeepCopy()
}

func (f *fakeAPI) getLease() *coordinationv1.Lease {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lease.DeepCopy()
}

// seen returns the requests since the last call, without watches.
func (f *fakeAPI) seen() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := f.requests
	f.requests = nil
	return slices.DeleteFunc(all, func(s string) bool { return strings.HasPrefix(s, "WATCH") })
}

func (f *fakeAPI) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		body, _ = io.ReadAll(r.Body)
	}
	watch := r.URL.Query().Get("watch") == "true"
	f.mu.Lock()
	verb, resource := r.Method, 6 // the part of the path with the resource
	if watch {
		verb = "WATCH"
	}
	if strings.HasPrefix(r.URL.Path, "/api/") {
		resource = 3
	}
	f.requests = append(f.requests, verb+" "+strings.Split(r.URL.Path, "/")[resource])
	before := f.before
	f.mu.Unlock()
	if before != nil {
		if err := before(r); err != nil {
			if status, ok := err.(apierrors.APIStatus); ok {
				return answer(status.Status().Code, status.Status()), nil
			}
			return nil, err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if watch {
		return f.watch(r)
	}
	obj, err := f.serve(r, body)
	if err != nil {
		status := err.(apierrors.APIStatus).Status()
		return answer(status.Code, status), nil
	}
	return answer(http.StatusOK, obj), nil
}

var nodes, leases = schema.GroupResource{Resource: "nodes"}, schema.GroupResource{Resource: "leases"}

func (f *fakeAPI) serve(r *http.Request, body []byte) (any, error) {
	isLease := strings.Contains(r.URL.Path, "/leases")
	switch {
	case isLease && r.Method == http.MethodGet && f.lease == nil:
		return nil, apierrors.NewNotFound(leases, testNode)
	case isLease && r.Method != http.MethodGet:
		return f.writeLease(r.Method, body)
	case isLease:
		return f.lease, nil
	case r.Method == http.MethodPost && f.node != nil:
		return nil, apierrors.NewAlreadyExists(nodes, testNode)
	case r.Method == http.MethodPost:
		n := &corev1.Node{}
		if err := decode(body, n); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		f.put(n)
	case f.node == nil:
		return nil, apierrors.NewNotFound(nodes, testNode)
	case r.Method == http.MethodPatch:
		if err := f.patch(body); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
	}
	n := f.node.DeepCopy()
	n.APIVersion, n.Kind = "v1", "Node"
	return n, nil
}

func (f *fakeAPI) patch(body []byte) error {
	f.patches = append(f.patches, string(body))
	raw, err := json.Marshal(f.node)
	if err != nil {
		return err
	}
	merged, err := strategicpatch.StrategicMergePatch(raw, body, corev1.Node{})
	if err != nil {
		return err
	}
	n := &corev1.Node{}
	if err := json.Unmarshal(merged, n); err != nil {
		return err
	}
	f.put(n)
	return nil
}

func (f *fakeAPI) writeLease(method string, body []byte) (any, error) {
	l := &coordinationv1.Lease{}
	if err := decode(body, l); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	switch {
	case method == http.MethodPost && f.lease != nil:
		return nil, apierrors.NewAlreadyExists(leases, testNode)
	case method == http.MethodPut && f.lease == nil:
		return nil, apierrors.NewNotFound(leases, testNode)
	case method == http.MethodPut && l.ResourceVersion != f.lease.ResourceVersion:
		return nil, apierrors.NewConflict(leases, testNode, fmt.Errorf("the object has been modified"))
	}
	f.version++
	l.ResourceVersion = strconv.Itoa(f.version)
	l.APIVersion, l.Kind = "coordination.k8s.io/v1", "Lease"
	f.lease = l
	return l, nil
}

// watcher is an open watch. Its events are written by one goroutine, in the order in which they came.
type watcher struct {
	frames chan []byte
	ended  <-chan struct{}
}

func (w *watcher) send(kind apiwatch.EventType, n *corev1.Node) {
	select {
	case w.frames <- frame.Of(kind, n):
	case <-w.ended:
	}
}

func (w *watcher) write(to *io.PipeWriter) {
	defer to.Close()
	for {
		select {
		case f := <-w.frames:
			if _, err := to.Write(f); err != nil {
				return
			}
		case <-w.ended:
			return
		}
	}
}

// watch streams the initial state and all later versions.
func (f *fakeAPI) watch(r *http.Request) (*http.Response, error) {
	// The sender holds the lock, so it must not wait for the reader.
	w := &watcher{frames: make(chan []byte, 1000), ended: r.Context().Done()}
	f.watchers = append(f.watchers, w)
	if f.node != nil {
		w.send(apiwatch.Added, f.node)
	}
	w.send(apiwatch.Bookmark, &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		ResourceVersion: strconv.Itoa(max(f.version, 1)),
		Annotations:     map[string]string{metav1.InitialEventsAnnotationKey: "true"},
	}})
	reader, writer := io.Pipe()
	go w.write(writer)
	return &http.Response{
		StatusCode: http.StatusOK,
		Body:       reader,
		Header:     http.Header{"Content-Type": {frame.ContentType}},
	}, nil
}

func decode(body []byte, into runtime.Object) error {
	_, _, err := client.Codecs.UniversalDeserializer().Decode(body, nil, into)
	return err
}

func answer(code int32, body any) *http.Response {
	if status, ok := body.(metav1.Status); ok {
		status.APIVersion, status.Kind = "v1", "Status"
		body = status
	}
	text, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	return &http.Response{
		StatusCode: int(code),
		Body:       io.NopCloser(bytes.NewReader(text)),
		Header:     http.Header{"Content-Type": {"application/json"}},
	}
}
