package apitest

import (
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiwatch "k8s.io/apimachinery/pkg/watch"

	"github.com/nodelet/nodelet/kube/client"
	"github.com/nodelet/nodelet/test/kube/frame"
)

const protobuf = "application/vnd.kubernetes.protobuf"

// groupVersions are the group and version of each resource.
var groupVersions = map[string]schema.GroupVersion{
	"pods":                       corev1.SchemeGroupVersion,
	"configmaps":                 corev1.SchemeGroupVersion,
	"secrets":                    corev1.SchemeGroupVersion,
	"services":                   corev1.SchemeGroupVersion,
	"serviceaccounts":            corev1.SchemeGroupVersion,
	"runtimeclasses":             nodev1.SchemeGroupVersion,
	"certificatesigningrequests": certificatesv1.SchemeGroupVersion,
	"nodes":                      corev1.SchemeGroupVersion,
	"persistentvolumeclaims":     corev1.SchemeGroupVersion,
	"persistentvolumes":          corev1.SchemeGroupVersion,
	"clustertrustbundles":        certificatesv1.SchemeGroupVersion,
	"podcertificaterequests":     certificatesv1.SchemeGroupVersion,
	"csidrivers":                 storagev1.SchemeGroupVersion,
	"csinodes":                   storagev1.SchemeGroupVersion,
	"volumeattachments":          storagev1.SchemeGroupVersion,
	"resourceclaims":             resourcev1.SchemeGroupVersion,
	"resourceslices":             resourcev1.SchemeGroupVersion,
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	k, sub := parse(r.URL.Path)
	watch := r.URL.Query().Get("watch") == "true" || r.URL.Query().Get("watch") == "1"
	s.mu.Lock()
	s.requests = append(s.requests, verb(r.Method, k, watch)+" "+k.resource+" "+k.namespace+"/"+k.name)
	intercept := s.intercept
	s.mu.Unlock()
	if intercept != nil {
		if e := intercept(r); e != nil {
			s.fail(w, e)
			return
		}
	}
	switch {
	case k.resource == "": // discovery
		s.encode(w, http.StatusOK, schema.GroupVersion{Version: "v1"}, &metav1.APIResourceList{})
	case groupVersions[k.resource].Empty():
		s.fail(w, apierrors.NewNotFound(schema.GroupResource{Resource: k.resource}, k.name))
	case r.Method == http.MethodPost && sub == "token":
		s.token(w, r, k)
	case r.Method == http.MethodPost:
		s.create(w, r, k)
	case r.Method == http.MethodPut:
		s.replace(w, r, k)
	case r.Method == http.MethodPatch:
		s.patch(w, r, k)
	case r.Method == http.MethodDelete && k.name == "":
		s.removeAll(w, r, k)
	case r.Method == http.MethodDelete:
		s.remove(w, r, k)
	case watch:
		s.watch(w, r, k)
	case k.name != "":
		s.get(w, k)
	default:
		s.list(w, r, k)
	}
}

func verb(method string, k key, watch bool) string {
	switch {
	case method != http.MethodGet:
		return map[string]string{
			http.MethodPost:   "create",
			http.MethodDelete: "delete",
			http.MethodPut:    "update",
			http.MethodPatch:  "patch",
		}[method]
	case watch:
		return "watch"
	case k.name != "":
		return "get"
	}
	return "list"
}

// parse splits /api/v1/... and /apis/GROUP/VERSION/...
func parse(path string) (k key, sub string) {
	p := strings.Split(strings.Trim(path, "/"), "/")
	if p[0] == "apis" {
		p = p[1:]
	}
	p = p[min(2, len(p)):]
	if len(p) > 2 && p[0] == "namespaces" {
		k.namespace, p = p[1], p[2:]
	}
	p = append(p, "", "", "")
	k.resource, k.name = p[0], p[1]
	return k, p[2]
}

func (s *Server) get(w http.ResponseWriter, k key) {
	o := s.Get(k.resource, k.namespace, k.name)
	if o == nil {
		s.fail(w, apierrors.NewNotFound(schema.GroupResource{Resource: k.resource}, k.name))
		return
	}
	s.write(w, http.StatusOK, k.resource, o)
}

func (s *Server) list(w http.ResponseWriter, r *http.Request, k key) {
	objs, version := s.state(r, k)
	lists := map[string]runtime.Object{
		"pods":           &corev1.PodList{},
		"nodes":          &corev1.NodeList{},
		"services":       &corev1.ServiceList{},
		"configmaps":     &corev1.ConfigMapList{},
		"secrets":        &corev1.SecretList{},
		"resourceslices": &resourcev1.ResourceSliceList{},
	}
	l := lists[k.resource]
	if l == nil {
		s.fail(w, apierrors.NewMethodNotSupported(schema.GroupResource{Resource: k.resource}, "list"))
		return
	}
	items := make([]runtime.Object, len(objs))
	for i, o := range objs {
		items[i] = o
	}
	if err := meta.SetList(l, items); err != nil {
		s.fail(w, apierrors.NewInternalError(err))
		return
	}
	l.(metav1.ListInterface).SetResourceVersion(strconv.FormatInt(version, 10))
	s.write(w, http.StatusOK, k.resource, l)
}

// state returns the objects of a collection, and the version of that state, as new as the request wants it.
func (s *Server) state(r *http.Request, k key) ([]Object, int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cache != nil && r.URL.Query().Get("resourceVersion") == "0" {
		return matching(s.cache.objects, r, k), s.cache.version
	}
	return matching(s.objects, r, k), s.version
}

// matching returns the objects of a collection; the caller holds the lock.
func matching(all map[key]Object, r *http.Request, k key) []Object {
	var objs []Object
	for ok, o := range all {
		if selects(r, k, ok, o) {
			objs = append(objs, o)
		}
	}
	return objs
}

// selects reports whether a request for the collection k selects the object o under ok.
func selects(r *http.Request, k, ok key, o Object) bool {
	sel, err := fields.ParseSelector(r.URL.Query().Get("fieldSelector"))
	if err != nil || k.resource != ok.resource || (k.namespace != "" && k.namespace != ok.namespace) {
		return false
	}
	f := fields.Set{"metadata.name": o.GetName(), "metadata.namespace": o.GetNamespace()}
	switch o := o.(type) {
	case *corev1.Pod:
		f["spec.nodeName"] = o.Spec.NodeName
	case *certificatesv1.PodCertificateRequest:
		f["spec.nodeName"] = string(o.Spec.NodeName)
	case *resourcev1.ResourceSlice:
		f["spec.driver"] = o.Spec.Driver
		if o.Spec.NodeName != nil {
			f["spec.nodeName"] = *o.Spec.NodeName
		}
	}
	return sel.Matches(f)
}

func (s *Server) create(w http.ResponseWriter, r *http.Request, k key) {
	body, _ := io.ReadAll(r.Body)
	obj, err := runtime.Decode(client.Codecs.UniversalDeserializer(), body)
	o, ok := obj.(Object)
	if err != nil || !ok {
		s.fail(w, apierrors.NewBadRequest("decode body"))
		return
	}
	if o.GetResourceVersion() != "" {
		s.fail(w, apierrors.NewInternalError(errors.New("resourceVersion should not be set on objects to be created")))
		return
	}
	o.SetNamespace(k.namespace)
	k.name = o.GetName()
	s.mu.Lock()
	_, exists := s.objects[k]
	if !exists {
		o.SetUID("")
		s.put(o)
	}
	s.mu.Unlock()
	if exists {
		s.fail(w, apierrors.NewAlreadyExists(schema.GroupResource{Resource: k.resource}, k.name))
		return
	}
	s.write(w, http.StatusCreated, k.resource, s.Get(k.resource, k.namespace, k.name))
}

// replace answers a PUT; one that names an older version is refused.
func (s *Server) replace(w http.ResponseWriter, r *http.Request, k key) {
	body, _ := io.ReadAll(r.Body)
	obj, err := runtime.Decode(client.Codecs.UniversalDeserializer(), body)
	o, ok := obj.(Object)
	if err != nil || !ok {
		s.fail(w, apierrors.NewBadRequest("decode body"))
		return
	}
	s.mu.Lock()
	old, exists := s.objects[k]
	fresh := exists && (o.GetResourceVersion() == "" || o.GetResourceVersion() == old.GetResourceVersion())
	if fresh {
		s.put(o)
	}
	s.mu.Unlock()
	switch gr := (schema.GroupResource{Resource: k.resource}); {
	case !exists:
		s.fail(w, apierrors.NewNotFound(gr, k.name))
	case !fresh:
		s.fail(w, apierrors.NewConflict(gr, k.name, errors.New("the object has been modified")))
	default:
		s.get(w, k)
	}
}

// patch records a patch for Patches and does not change the object.
func (s *Server) patch(w http.ResponseWriter, r *http.Request, k key) {
	body, _ := io.ReadAll(r.Body)
	s.mu.Lock()
	s.patches = append(s.patches, string(body))
	s.mu.Unlock()
	s.get(w, k)
}

// Patches returns the bodies of the patches received. They have no effect.
func (s *Server) Patches() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.patches)
}

func (s *Server) remove(w http.ResponseWriter, r *http.Request, k key) {
	body, _ := io.ReadAll(r.Body)
	opts := &metav1.DeleteOptions{}
	if len(body) > 0 {
		if _, _, err := client.Codecs.UniversalDeserializer().Decode(body, nil, opts); err != nil {
			s.fail(w, apierrors.NewBadRequest("decode delete options: "+err.Error()))
			return
		}
	}
	gr := schema.GroupResource{Resource: k.resource}
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.objects[k]
	switch {
	case !ok:
		s.fail(w, apierrors.NewNotFound(gr, k.name))
	case opts.Preconditions != nil && opts.Preconditions.UID != nil && *opts.Preconditions.UID != o.GetUID():
		s.fail(w, apierrors.NewConflict(gr, k.name, errPrecondition))
	case gracePeriod(o, opts) > 0:
		s.write(w, http.StatusOK, k.resource, s.doom(o.(*corev1.Pod), gracePeriod(o, opts)))
	default:
		s.delete(k)
		s.write(w, http.StatusOK, k.resource, &metav1.Status{Status: metav1.StatusSuccess})
	}
}

// removeAll removes what is selected of a collection.
func (s *Server) removeAll(w http.ResponseWriter, r *http.Request, k key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range matching(s.objects, r, k) {
		s.delete(keyOf(o))
	}
	s.write(w, http.StatusOK, k.resource, &metav1.Status{Status: metav1.StatusSuccess})
}

var errPrecondition = apierrors.NewBadRequest("the UID in the precondition does not match")

var errAccountUID = errors.New("the UID in the token request does not match that of the service account")

// token answers a TokenRequest with a token that contains the request. It may be for one service account alone.
func (s *Server) token(w http.ResponseWriter, r *http.Request, k key) {
	body, _ := io.ReadAll(r.Body)
	obj, err := runtime.Decode(client.Codecs.UniversalDeserializer(), body)
	tr, ok := obj.(*authenticationv1.TokenRequest)
	if err != nil || !ok || tr.Spec.ExpirationSeconds == nil || tr.Spec.BoundObjectRef == nil {
		s.fail(w, apierrors.NewBadRequest("not a TokenRequest for a pod"))
		return
	}
	s.mu.Lock()
	account, known := s.objects[k]
	s.mu.Unlock()
	if tr.UID != "" && (!known || account.GetUID() != tr.UID) {
		s.fail(w, apierrors.NewConflict(schema.GroupResource{Resource: k.resource}, k.name, errAccountUID))
		return
	}
	ref := tr.Spec.BoundObjectRef
	tr.Status.Token = strings.Join([]string{k.namespace, k.name, ref.Kind, ref.Name, string(ref.UID),
		strings.Join(tr.Spec.Audiences, "+")}, "|")
	tr.Status.ExpirationTimestamp = metav1.NewTime(time.Now().Add(time.Duration(*tr.Spec.ExpirationSeconds) * time.Second))
	s.encode(w, http.StatusCreated, authenticationv1.SchemeGroupVersion, tr)
}

// watch streams events until the request ends or the watches are cut.
func (s *Server) watch(w http.ResponseWriter, r *http.Request, k key) {
	q := r.URL.Query()
	initial := q.Get("sendInitialEvents") == "true"
	from, _ := strconv.ParseInt(q.Get("resourceVersion"), 10, 64)
	s.mu.Lock()
	unknown, intercept := initial && s.noWatchList, s.interceptWatch
	expired := from != 0 && from < s.oldest
	s.mu.Unlock()
	var e *apierrors.StatusError
	switch {
	case unknown:
		s.fail(w, apierrors.NewInvalid(schema.GroupKind{Kind: "ListOptions"}, "", nil))
		return
	case expired:
		e = apierrors.NewResourceExpired("too old resource version")
	case intercept != nil:
		e = intercept(r)
	}
	w.Header().Set("Content-Type", frame.ContentType)
	w.WriteHeader(http.StatusOK)
	if e != nil {
		w.Write(frame.Of(apiwatch.Error, &e.ErrStatus))
		return
	}
	s.mu.Lock()
	s.watches++
	defer func() { s.mu.Lock(); s.watches--; s.mu.Unlock() }()
	cut := s.cut
	out := &eventWriter{w: w, server: s, bookmarks: q.Get("allowWatchBookmarks") == "true"}
	if from == 0 || initial {
		for _, o := range matching(s.objects, r, k) {
			out.queue = append(out.queue, event{s.version, apiwatch.Added, keyOf(o), o})
		}
		from = s.version
		if initial {
			out.queue = append(out.queue, event{version: -s.version, kind: apiwatch.Bookmark})
		}
	}
	s.mu.Unlock()
	for {
		if !out.flush(k.resource) {
			return
		}
		s.mu.Lock()
		for _, e := range s.history {
			if e.version > from && (e.kind == apiwatch.Bookmark || selects(r, k, e.key, e.object)) {
				out.queue = append(out.queue, e)
			}
		}
		from = s.version
		changed := s.changed
		s.mu.Unlock()
		if len(out.queue) > 0 {
			continue
		}
		select {
		case <-changed:
		case <-cut:
			panic(http.ErrAbortHandler)
		case <-r.Context().Done():
			return
		case <-time.After(timeout(q.Get("timeoutSeconds"))):
			return
		}
	}
}

func timeout(seconds string) time.Duration {
	n, err := strconv.Atoi(seconds)
	if err != nil {
		n = 1800
	}
	return time.Duration(n) * time.Second
}

type eventWriter struct {
	w         http.ResponseWriter
	server    *Server
	bookmarks bool
	queue     []event
}

// flush writes the queue and the headers, and reports whether the client still reads.
func (o *eventWriter) flush(resource string) bool {
	for _, e := range o.queue {
		if e.kind == apiwatch.Bookmark {
			if !o.bookmarks {
				continue
			}
			e.object = bookmark(resource, e.version)
		}
		if _, err := o.w.Write(frame.Of(e.kind, e.object)); err != nil {
			return false
		}
	}
	o.queue = nil
	return http.NewResponseController(o.w).Flush() == nil
}

// bookmark returns a bookmark; one with a negative version ends the initial state.
func bookmark(resource string, version int64) Object {
	m := metav1.ObjectMeta{ResourceVersion: strconv.FormatInt(max(version, -version), 10)}
	if version < 0 {
		m.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
	}
	switch resource {
	case "pods":
		return &corev1.Pod{ObjectMeta: m}
	case "nodes":
		return &corev1.Node{ObjectMeta: m}
	case "configmaps":
		return &corev1.ConfigMap{ObjectMeta: m}
	case "secrets":
		return &corev1.Secret{ObjectMeta: m}
	case "csidrivers":
		return &storagev1.CSIDriver{ObjectMeta: m}
	case "clustertrustbundles":
		return &certificatesv1.ClusterTrustBundle{ObjectMeta: m}
	case "podcertificaterequests":
		return &certificatesv1.PodCertificateRequest{ObjectMeta: m}
	}
	panic("apitest: no bookmarks for " + resource)
}

func encoder(gv schema.GroupVersion) runtime.Encoder {
	info, _ := runtime.SerializerInfoForMediaType(client.Codecs.SupportedMediaTypes(), protobuf)
	return client.Codecs.EncoderForVersion(info.Serializer, gv)
}

func (s *Server) write(w http.ResponseWriter, code int, resource string, o runtime.Object) {
	gv := groupVersions[resource]
	if _, ok := o.(*metav1.Status); ok {
		gv = schema.GroupVersion{Version: "v1"}
	}
	s.encode(w, code, gv, o)
}

func (s *Server) encode(w http.ResponseWriter, code int, gv schema.GroupVersion, o runtime.Object) {
	data, err := runtime.Encode(encoder(gv), o)
	if err != nil {
		panic(err)
	}
	w.Header().Set("Content-Type", protobuf)
	w.WriteHeader(code)
	w.Write(data)
}

func (s *Server) fail(w http.ResponseWriter, e *apierrors.StatusError) {
	st := e.Status()
	s.encode(w, int(st.Code), schema.GroupVersion{Version: "v1"}, &st)
}
