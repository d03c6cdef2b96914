// Package apitest is an API server for tests: a small one that speaks the real protocol (HTTP, protobuf, resource
// versions, watches with bookmarks and streamed initial state, expiry) over connections in memory, so that it also
// runs inside a testing/synctest bubble. It can fail, lag behind etcd, expire its history and break its watches. Only
// tests import it.
package apitest

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/nodelet/nodelet/kube/client"
	"github.com/nodelet/nodelet/test/pipe"
)

// Object is what the server keeps: an API object with metadata.
type Object interface {
	runtime.Object
	metav1.Object
}

type key struct{ resource, namespace, name string }

type event struct {
	version int64
	kind    apiwatch.EventType
	key     key
	object  Object
}

// cache is what a server that lags behind etcd has in memory.
type cache struct {
	version int64
	objects map[key]Object
}

// Server is a fake API server.
type Server struct {
	mu sync.Mutex

	noWatchList    bool
	intercept      func(r *http.Request) *apierrors.StatusError
	interceptWatch func(r *http.Request) *apierrors.StatusError

	version  int64
	oldest   int64 // watches from before are expired
	objects  map[key]Object
	cache    *cache // of a server that lags behind etcd; nil: it does not
	history  []event
	changed  chan struct{} // closed and replaced at each change
	cut      chan struct{} // closed and replaced by CutWatches
	watches  int
	requests []string
	dial     func(ctx context.Context, network, address string) (net.Conn, error)
	patches  []string
}

// New starts a server which ends with the test.
func New(t testing.TB) (*Server, *client.Client) {
	t.Helper()
	s := &Server{version: 100, objects: map[key]Object{}, changed: make(chan struct{}), cut: make(chan struct{})}
	ln := pipe.Listen()
	hs := &http.Server{Handler: s}
	go hs.Serve(ln)
	s.dial = ln.Dial
	c, err := client.New(&rest.Config{Host: "http://apitest", Dial: ln.Dial}, 10000, 10000, "apitest")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		hs.Close()
		c.Core.(*rest.RESTClient).Client.CloseIdleConnections()
	})
	return s, c
}

// Config connects one more client to the server, for the time of the test.
func (s *Server) Config(t testing.TB) *rest.Config {
	transport := &http.Transport{DialContext: s.dial}
	t.Cleanup(transport.CloseIdleConnections)
	return &rest.Config{Host: "http://apitest", Transport: transport}
}

// Dial connects to the server, for a rest.Config.
func (s *Server) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	return s.dial(ctx, network, address)
}

// NoWatchList makes the server refuse sendInitialEvents, as one without that feature does.
func (s *Server) NoWatchList() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.noWatchList = true
}

// Intercept lets f answer requests in place of the server: it returns an API error, or nil to let the server answer. A
// nil f removes an earlier one.
func (s *Server) Intercept(f func(r *http.Request) *apierrors.StatusError) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.intercept = f
}

// InterceptWatches lets f refuse watches, with an event, as the server does once it has accepted the request: when its
// cache lags behind, or does not have the version. A nil f removes an earlier one.
func (s *Server) InterceptWatches(f func(r *http.Request) *apierrors.StatusError) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.interceptWatch = f
}

// ResourceOf names the resource an object is served under.
func ResourceOf(o Object) string {
	switch o.(type) {
	case *corev1.Pod:
		return "pods"
	case *corev1.ConfigMap:
		return "configmaps"
	case *corev1.Secret:
		return "secrets"
	case *corev1.Service:
		return "services"
	case *nodev1.RuntimeClass:
		return "runtimeclasses"
	case *corev1.Node:
		return "nodes"
	case *corev1.PersistentVolumeClaim:
		return "persistentvolumeclaims"
	case *corev1.PersistentVolume:
		return "persistentvolumes"
	case *storagev1.CSIDriver:
		return "csidrivers"
	case *storagev1.CSINode:
		return "csinodes"
	case *storagev1.VolumeAttachment:
		return "volumeattachments"
	case *certificatesv1.CertificateSigningRequest:
		return "certificatesigningrequests"
	case *certificatesv1.ClusterTrustBundle:
		return "clustertrustbundles"
	case *certificatesv1.PodCertificateRequest:
		return "podcertificaterequests"
	case *resourcev1.ResourceClaim:
		return "resourceclaims"
	case *resourcev1.ResourceSlice:
		return "resourceslices"
	case *corev1.ServiceAccount:
		return "serviceaccounts"
	}
	panic(fmt.Sprintf("apitest: no resource for %T", o))
}

func keyOf(o Object) key { return key{ResourceOf(o), o.GetNamespace(), o.GetName()} }

// Put creates or replaces an object, gives it a new resource version and, where it has none, a UID.
func (s *Server) Put(o Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.put(o)
}

func (s *Server) put(o Object) {
	o = o.DeepCopyObject().(Object)
	s.version++
	o.SetResourceVersion(strconv.FormatInt(s.version, 10))
	if o.GetUID() == "" {
		o.SetUID(types.UID(fmt.Sprintf("uid-%d", s.version)))
	}
	kind := apiwatch.Added
	if _, ok := s.objects[keyOf(o)]; ok {
		kind = apiwatch.Modified
	}
	s.objects[keyOf(o)] = o
	s.record(event{s.version, kind, keyOf(o), o})
}

// Delete removes an object and reports whether it existed.
func (s *Server) Delete(resource, namespace, name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.delete(key{resource, namespace, name})
}

// Lose removes an object without a trace in the history, as a restore of etcd from a backup does.
func (s *Server) Lose(resource, namespace, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.objects, key{resource, namespace, name})
}

func (s *Server) delete(k key) bool {
	o, ok := s.objects[k]
	if !ok {
		return false
	}
	delete(s.objects, k)
	s.version++
	o = o.DeepCopyObject().(Object)
	o.SetResourceVersion(strconv.FormatInt(s.version, 10))
	s.record(event{s.version, apiwatch.Deleted, k, o})
	return true
}

// gracePeriod returns how many seconds the node has to end what is deleted, before it deletes it with 0.
func gracePeriod(o Object, opts *metav1.DeleteOptions) int64 {
	pod, ok := o.(*corev1.Pod)
	switch {
	case !ok, pod.Spec.NodeName == "", pod.Status.Phase == corev1.PodSucceeded, pod.Status.Phase == corev1.PodFailed:
		return 0
	case opts.GracePeriodSeconds != nil:
		return *opts.GracePeriodSeconds
	case pod.Spec.TerminationGracePeriodSeconds != nil:
		return *pod.Spec.TerminationGracePeriodSeconds
	}
	return corev1.DefaultTerminationGracePeriodSeconds
}

// doom lets a pod end within a time; one that ends already stays as it is. The caller holds the lock.
func (s *Server) doom(pod *corev1.Pod, seconds int64) *corev1.Pod {
	pod = pod.DeepCopy()
	if pod.DeletionTimestamp == nil {
		at := metav1.NewTime(time.Now().Add(time.Duration(seconds) * time.Second))
		pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &at, &seconds
		s.put(pod)
	}
	return pod
}

func (s *Server) record(e event) {
	s.history = append(s.history, e)
	close(s.changed)
	s.changed = make(chan struct{})
}

// Get returns an object, or nil.
func (s *Server) Get(resource, namespace, name string) Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.objects[key{resource, namespace, name}]
	if !ok {
		return nil
	}
	return o.DeepCopyObject().(Object)
}

// Bookmark increases the version and sends it to every watch that wants bookmarks.
func (s *Server) Bookmark() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	s.record(event{version: s.version, kind: apiwatch.Bookmark})
}

// Compact expires all history: a watch from any version before this one ends with an error event, 410 Gone.
func (s *Server) Compact() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	s.oldest = s.version
}

// Lag cuts the server's cache off from etcd: from now on lists with resourceVersion 0 return the state of this moment,
// while lists without a version, which are consistent reads, return the newest.
func (s *Server) Lag() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cache = &cache{version: s.version, objects: maps.Clone(s.objects)}
}

// CutWatches breaks the connection of every open watch.
func (s *Server) CutWatches() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.cut)
	s.cut = make(chan struct{})
}

// Watches returns the number of open watches.
func (s *Server) Watches() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.watches
}

// Requests returns the requests since the last call, each as "VERB resource namespace/name", the verb as in RBAC.
func (s *Server) Requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.requests
	s.requests = nil
	return r
}

// Count returns the number of requests since the last call of Requests that begin with prefix.
func (s *Server) Count(prefix string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, r := range s.requests {
		if strings.HasPrefix(r, prefix) {
			n++
		}
	}
	return n
}
