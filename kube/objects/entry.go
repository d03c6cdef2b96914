package objects

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"

	"github.com/nodelet/nodelet/internal/backoff"
	"github.com/nodelet/nodelet/internal/latest"
	"github.com/nodelet/nodelet/kube/client"
	"github.com/nodelet/nodelet/kube/watch"
)

// streamTimeout is the shortest timeout asked for a watch of one object, as in the kubelet: each renewal is a request.
const streamTimeout = 30 * time.Minute

// entry is one object in use. Objects.mu guards all of it.
type entry struct {
	key   key
	users map[types.UID]bool // pods, and whether they want to learn of changes

	obj metav1.Object // *corev1.ConfigMap or *corev1.Secret; nil if it does not exist or is not known
	err error         // why obj is nil: a NotFound error, or why it cannot be read
	// confirm says that the immutable obj is to be read again, because a pod that is new to it needs it: nothing watches
	// it, and another object may have its name now. What is read then counts for all pods.
	confirm bool
	known   chan struct{} // closed when the watch has answered; without one, when anything is known

	bundles map[string]*trustBundle // of TrustBundles, by name; nil if they are not known

	stop   context.CancelFunc // of the watch; nil without one
	expiry *time.Timer        // removes what is no longer used
}

func newEntry(k key) *entry {
	return &entry{key: k, users: map[types.UID]bool{}, known: make(chan struct{})}
}

// wantsWatch reports whether changes of the object matter: a volume shows it, or a pod waits for its creation. An
// immutable object is not watched.
func (e *entry) wantsWatch() bool {
	if len(e.users) == 0 || immutable(e.obj) {
		return false
	}
	return apierrors.IsNotFound(e.err) || slices.Contains(slices.Collect(maps.Values(e.users)), true)
}

// outdated reports whether another object may have the name of e now: an immutable one is not watched, and without a
// user nothing shows its content any more.
func (e *entry) outdated() bool { return len(e.users) == 0 && e.stop == nil && immutable(e.obj) }

func immutable(o metav1.Object) bool {
	switch o := o.(type) {
	case *corev1.ConfigMap:
		return ptr.Deref(o.Immutable, false)
	case *corev1.Secret:
		return ptr.Deref(o.Immutable, false)
	}
	return false
}

// follow keeps e up to date until ctx ends or no pod wants to learn of changes.
func (o *Objects) follow(ctx context.Context, e *entry) {
	if e.key.kind == TrustBundles {
		bundles := watch.Target{Client: o.cfg.Certificates, Resource: "clustertrustbundles"}
		bundles.Follow(ctx, &bundleSink{ctx, o, e})
		return
	}
	var pause backoff.Backoff
	for failures := 0; ; {
		start := time.Now()
		err := o.followOnce(ctx, e)
		if !o.stillWanted(ctx, e) {
			return
		}
		if err == nil {
			failures = 0
		} else if failures++; failures == 2 { // a first one is normal for a pod that has just been bound
			o.logTrouble(ctx, e.key, err)
		}
		if !backoff.Sleep(ctx, pause.Next(time.Since(start))) {
			return
		}
	}
}

// stillWanted reports whether e is to be watched. If not, it ends the watch, atomically with the decision.
func (o *Objects) stillWanted(ctx context.Context, e *entry) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if ctx.Err() != nil {
		return false // another goroutine ended the watch, and may have started a new one
	}
	if e.wantsWatch() {
		return true
	}
	e.stop()
	e.stop = nil
	return false
}

// followOnce reads the object, opens a watch from there on, and follows it to its end.
//
// The object is read as a list of one, because the version of a list is that of the whole collection: the watch may
// start from it later and misses nothing. The first read may be answered from the memory of the API server: if many
// pods start at once, reads of etcd wait for its writes.
func (o *Objects) followOnce(ctx context.Context, e *entry) error {
	target := watch.Target{
		Client: o.cfg.Core, Resource: e.key.kind.resource(), Namespace: e.key.namespace,
		FieldSelector: fields.OneTermEqualSelector("metadata.name", e.key.name).String(),
	}
	atLeast, limit := o.terms(e)
	obj, version, err := o.list(ctx, e.key, target, atLeast, limit)
	if atLeast != newest && apierrors.IsNotFound(err) { // it may have been created just now
		obj, version, err = o.list(ctx, e.key, target, newest, limit)
	}
	o.set(ctx, e, obj, err)
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	if !o.wanted(e) || !o.limiter.awaitIdle(ctx) {
		return nil
	}
	stream, err := o.limiter.open(ctx, target, version)
	if err != nil {
		return err
	}
	defer stream.Close()
	return o.readStream(ctx, e, stream)
}

// terms returns how new the object of e must be, which is not older than what is known, and how long the API server has
// to answer: not long if what is known would do and a pod may wait.
func (o *Objects) terms(e *entry) (atLeast string, limit time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !e.answered() {
		return fromMemory, client.RequestTimeout
	}
	return newest, answerLimit(e.certain() && !latest.Closed(e.known))
}

// list reads the object of k, which target selects, and the version from which a watch brings later changes. The API
// server has limit to answer.
func (a *apiServer) list(ctx context.Context, k key, target watch.Target, atLeast string, limit time.Duration) (
	obj metav1.Object, version string, err error) {
	err = a.limiter.read(ctx, a.limiter.reads, limit, func(ctx context.Context) error {
		all, v, err := target.List(ctx, atLeast)
		obj, version = nil, v
		if len(all) > 0 {
			obj = slim(all[0])
		}
		return err
	})
	if err != nil {
		return nil, "", fmt.Errorf("get %s %s/%s: %w", k.kind, k.namespace, k.name, err)
	}
	if obj == nil {
		return nil, version, notFound(k)
	}
	return obj, version, nil
}

// readStream reads a watch to its end, or until no pod wants it.
func (o *Objects) readStream(ctx context.Context, e *entry, stream *watch.Stream) error {
	for {
		ev, err := stream.Next()
		if errors.Is(err, io.EOF) || watch.Forgotten(err) {
			return nil
		}
		if err != nil {
			return err
		}
		o.apply(ctx, e, ev)
		if !o.wanted(e) {
			return nil
		}
	}
}

func (o *Objects) wanted(e *entry) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return e.wantsWatch()
}

func (o *Objects) apply(ctx context.Context, e *entry, ev watch.Event) {
	switch ev.Type {
	case apiwatch.Added, apiwatch.Modified:
		o.set(ctx, e, slim(ev.Object), nil)
	case apiwatch.Deleted:
		o.set(ctx, e, nil, notFound(e.key))
	}
}

// set stores the state of e that a watch has read, and notifies the users of e if it differs. What is known stays if
// the object just cannot be read now. A watch that was ended changes nothing.
func (o *Objects) set(ctx context.Context, e *entry, obj metav1.Object, err error) {
	o.mu.Lock()
	if ctx.Err() != nil {
		o.mu.Unlock()
		return
	}
	changed := e.answered() &&
		(version(obj) != version(e.obj) || apierrors.IsNotFound(err) && !apierrors.IsNotFound(e.err))
	kept := !e.store(obj, err)
	users := slices.Collect(maps.Keys(e.users))
	o.mu.Unlock()
	if changed && !kept {
		o.cfg.notify(users)
	}
}

// answered reports whether anything has been stored.
func (e *entry) answered() bool { return e.obj != nil || e.err != nil || e.bundles != nil }

// certain reports whether the object is known, or known not to exist.
func (e *entry) certain() bool { return e.obj != nil || apierrors.IsNotFound(e.err) }

// release lets calls of await return.
func (e *entry) release() {
	if !latest.Closed(e.known) {
		close(e.known)
	}
}

// keeps reports whether e stays as it is after an err: it is certain, and err says nothing about the object.
func (e *entry) keeps(err error) bool {
	return err != nil && !apierrors.IsNotFound(err) && e.certain()
}

// store stores the object, or why there is none, and reports whether it did: e may keep what it has. Of one version the
// first copy stays, so that containers which are created at once hold one copy.
func (e *entry) store(obj metav1.Object, err error) bool {
	e.release()
	if e.keeps(err) {
		return false
	}
	e.confirm = false
	if e.err = err; obj == nil || e.obj == nil || obj.GetUID() != e.obj.GetUID() || version(obj) != version(e.obj) {
		e.obj = obj
	}
	return true
}

func version(o metav1.Object) string {
	if o == nil {
		return ""
	}
	return o.GetResourceVersion()
}

// logTrouble logs that an object cannot be kept up to date if the API server says why. A failing connection is
// reported once, by the watch of the pods.
func (o *Objects) logTrouble(ctx context.Context, k key, err error) {
	if apierrors.ReasonForError(err) != metav1.StatusReasonUnknown {
		o.cfg.Log.WarnContext(ctx, "cannot keep an object that pods use up to date",
			"kind", k.kind, "namespace", k.namespace, "name", k.name, "err", err)
	}
}

func (k Kind) resource() string {
	if k == Secret {
		return "secrets"
	}
	return "configmaps"
}

// notFound is worded as the kubelet's: configmap "a" not found.
func notFound(k key) error {
	return apierrors.NewNotFound(corev1.Resource(strings.ToLower(string(k.kind))), k.name)
}

// slim reduces metadata to the identity: managed fields and the last applied configuration are often larger than the
// data, and contain it a second time.
func slim(o metav1.Object) metav1.Object {
	if o == nil {
		return nil
	}
	m := metav1.ObjectMeta{
		Namespace:       o.GetNamespace(),
		Name:            o.GetName(),
		UID:             o.GetUID(),
		ResourceVersion: o.GetResourceVersion(),
	}
	switch o := o.(type) {
	case *corev1.ConfigMap:
		o.ObjectMeta = m
	case *corev1.Secret:
		o.ObjectMeta = m
	}
	return o
}

// as converts a known object to its type.
func as[T metav1.Object](k key, obj metav1.Object, err error) (T, error) {
	var none T
	if err != nil {
		return none, err
	}
	got, ok := obj.(T)
	if !ok {
		return none, fmt.Errorf("get %s %s/%s: it is a %T", k.kind, k.namespace, k.name, obj)
	}
	return got, nil
}
