package status

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/rest"

	"github.com/nodelet/nodelet/kube/client"
)

// fakeAPI answers as the API server does, without a network, so that it also serves inside synctest bubbles. Patches
// are applied with the API server's own strategic merge.
type fakeAPI struct {
	mu       sync.Mutex
	pods     map[string]*corev1.Pod   // by namespace/name
	events   map[string]*corev1.Event // by namespace/name
	version  int
	requests []string // "VERB path"
	bodies   []string
	// before, if set, runs ahead of a request, without the lock; a non-nil error is the answer, as a Status if it is
	// one and as a broken connection if not.
	before func(verb, path string) error
}

// failWith answers all requests with an error until down is false.
func (a *fakeAPI) failWith(err error) (down *atomic.Bool) {
	down = &atomic.Bool{}
	down.Store(true)
	a.before = func(string, string) error {
		if down.Load() {
			return err
		}
		return nil
	}
	return down
}

func newFakeAPI() *fakeAPI {
	return &fakeAPI{pods: map[string]*corev1.Pod{}, events: map[string]*corev1.Event{}, version: 100}
}

func (f *fakeAPI) client(t testing.TB) rest.Interface {
	t.Helper()
	c, err := client.New(&rest.Config{Host: "http://api.test", Transport: f}, 1e6, 1e6, "test")
	if err != nil {
		t.Fatal(err)
	}
	return c.Core
}

// add stores a pod and returns what a watch would show of it.
func (f *fakeAPI) add(pod *corev1.Pod) *corev1.Pod {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.version++
	pod = pod.DeepCopy()
	pod.ResourceVersion = strconv.Itoa(f.version)
	f.pods[pod.Namespace+"/"+pod.Name] = pod
	return pod.DeepCopy()
}

// restore puts an earlier version of a pod back, as a restore of etcd from a backup does.
func (f *fakeAPI) restore(pod *corev1.Pod) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pods[pod.Namespace+"/"+pod.Name] = pod.DeepCopy()
}

func (f *fakeAPI) get(namespace, name string) *corev1.Pod {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.pods[namespace+"/"+name].DeepCopy()
}

// log returns the requests seen since the last call.
func (f *fakeAPI) log() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	seen := f.requests
	f.requests = nil
	return seen
}

// RoundTrip implements http.RoundTripper.
func (f *fakeAPI) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		body, _ = io.ReadAll(r.Body)
	}
	f.mu.Lock()
	f.requests = append(f.requests, r.Method+" "+r.URL.Path)
	f.bodies = append(f.bodies, string(body))
	before := f.before
	f.mu.Unlock()
	if before != nil {
		if err := before(r.Method, r.URL.Path); err != nil {
			if code, ok := err.(notJSON); ok {
				return answer(int(code), "<html>no backend</html>"), nil
			}
			if status, ok := err.(apierrors.APIStatus); ok {
				return answer(int(status.Status().Code), status.Status()), nil
			}
			return nil, err
		}
	}
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	obj, err := f.serve(r, body)
	if err != nil {
		status := err.(apierrors.APIStatus).Status()
		return answer(int(status.Code), status), nil
	}
	return answer(http.StatusOK, obj), nil
}

func (f *fakeAPI) serve(r *http.Request, body []byte) (any, error) {
	part := strings.Split(strings.TrimPrefix(r.URL.Path, "/api/v1/namespaces/"), "/")
	key := func() string { return part[0] + "/" + part[2] }
	switch {
	case r.Method == http.MethodPatch && part[1] == "pods" && len(part) == 4 && part[3] == "status":
		return f.patchPod(key(), part[2], body)
	case r.Method == http.MethodDelete && part[1] == "pods":
		return f.deletePod(key(), part[2], body)
	case r.Method == http.MethodGet && part[1] == "pods" && len(part) == 2:
		return f.listPods(part[0], r.URL.Query().Get("fieldSelector"))
	case r.Method == http.MethodPost && part[1] == "events":
		return f.createEvent(part[0], body)
	case r.Method == http.MethodPatch && part[1] == "events":
		return f.patchEvent(key(), part[2], body)
	}
	return nil, apierrors.NewBadRequest("the fake does not know " + r.Method + " " + r.URL.Path)
}

func (f *fakeAPI) patchPod(key, name string, body []byte) (any, error) {
	old, ok := f.pods[key]
	if !ok {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, name)
	}
	pod, err := applyPatch(old, body)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if pod.UID != old.UID {
		return nil, apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, name, field.ErrorList{
			field.Invalid(field.NewPath("metadata", "uid"), pod.UID, "field is immutable")})
	}
	f.version++
	pod.ResourceVersion = strconv.Itoa(f.version)
	f.pods[key] = pod
	return withKind(pod), nil
}

func (f *fakeAPI) deletePod(key, name string, body []byte) (any, error) {
	obj, _, err := client.Codecs.UniversalDeserializer().Decode(body, nil, &metav1.DeleteOptions{})
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	opts := obj.(*metav1.DeleteOptions)
	pod, ok := f.pods[key]
	switch {
	case !ok:
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, name)
	case opts.Preconditions == nil || opts.Preconditions.UID == nil || opts.GracePeriodSeconds == nil ||
		*opts.GracePeriodSeconds != 0:
		return nil, apierrors.NewBadRequest("a final delete needs a UID and a grace period of 0")
	case *opts.Preconditions.UID != pod.UID:
		return nil, apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, name, fmt.Errorf(
			"the UID in the precondition (%s) does not match the UID in record (%s)", *opts.Preconditions.UID, pod.UID))
	}
	delete(f.pods, key)
	return withKind(pod), nil
}

// listPods refuses a list that the node authorizer refuses: one that is not limited to the node.
func (f *fakeAPI) listPods(namespace, selector string) (any, error) {
	selected, err := fields.ParseSelector(selector)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if _, ok := selected.RequiresExactMatch("spec.nodeName"); !ok {
		return nil, apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "", errors.New("not limited to the node"))
	}
	all := &corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}}
	for _, pod := range f.pods {
		if selected.Matches(fields.Set{
			"metadata.name": pod.Name,
			"spec.nodeName": pod.Spec.NodeName,
		}) && pod.Namespace == namespace {
			all.Items = append(all.Items, *pod)
		}
	}
	return all, nil
}

func (f *fakeAPI) createEvent(namespace string, body []byte) (any, error) {
	obj, _, err := client.Codecs.UniversalDeserializer().Decode(body, nil, &corev1.Event{})
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	event := obj.(*corev1.Event)
	key := namespace + "/" + event.Name
	if f.events[key] != nil {
		return nil, apierrors.NewAlreadyExists(schema.GroupResource{Resource: "events"}, event.Name)
	}
	event.APIVersion, event.Kind = "v1", "Event"
	f.version++
	event.ResourceVersion = strconv.Itoa(f.version)
	f.events[key] = event
	return event, nil
}

func (f *fakeAPI) patchEvent(key, name string, body []byte) (any, error) {
	old, ok := f.events[key]
	if !ok {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "events"}, name)
	}
	raw, _ := json.Marshal(old)
	raw, err := strategicpatch.StrategicMergePatch(raw, body, corev1.Event{})
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	event := &corev1.Event{}
	if err := json.Unmarshal(raw, event); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	f.events[key] = event
	return event, nil
}

// applyPatch does what the API server does with a patch of the status sub-resource.
func applyPatch(pod *corev1.Pod, patch []byte) (*corev1.Pod, error) {
	raw, err := json.Marshal(pod)
	if err != nil {
		return nil, err
	}
	merged, err := strategicpatch.StrategicMergePatch(raw, patch, corev1.Pod{})
	if err != nil {
		return nil, err
	}
	out := &corev1.Pod{}
	decoder := json.NewDecoder(bytes.NewReader(merged))
	decoder.DisallowUnknownFields()
	return out, decoder.Decode(out)
}

func withKind(pod *corev1.Pod) *corev1.Pod {
	pod = pod.DeepCopy()
	pod.APIVersion, pod.Kind = "v1", "Pod"
	return pod
}

func answer(code int, obj any) *http.Response {
	if status, ok := obj.(metav1.Status); ok {
		status.APIVersion, status.Kind = "v1", "Status"
		obj = status
	}
	raw, err := json.Marshal(obj)
	if err != nil {
		panic(err)
	}
	return &http.Response{
		StatusCode: code, ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Content-Type": {"application/json"}},
		Body:   io.NopCloser(bytes.NewReader(raw)),
	}
}

// notJSON is the HTTP status of an answer that does not come from an API server.
type notJSON int

func (n notJSON) Error() string { return http.StatusText(int(n)) }

// deletedPod is a pod that somebody has deleted.
func deletedPod(name string) *corev1.Pod {
	pod := testPod(name)
	pod.DeletionTimestamp = new(metav1.Now())
	return pod
}

func testPod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name + "-uid"), Generation: 1},
		Spec: corev1.PodSpec{
			NodeName:      "node",
			RestartPolicy: corev1.RestartPolicyNever,
			Containers:    []corev1.Container{{Name: "app"}},
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodPending, QOSClass: corev1.PodQOSBurstable,
			Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}},
		},
	}
}
