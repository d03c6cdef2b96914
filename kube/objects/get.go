package objects

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nodelet/nodelet/kube/client"
)

// ConfigMap returns a ConfigMap as it is now. Where it is watched for a pod, that is the newest state seen, and the call only
// waits for the first; otherwise it is read. An error satisfies apierrors.IsNotFound if it does not exist. While the API
// server cannot be reached, what was last read for a pod that uses it is returned.
func (o *Objects) ConfigMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error) {
	k := key{ConfigMap, namespace, name}
	obj, err := o.get(ctx, k)
	return as[*corev1.ConfigMap](k, obj, err)
}

// Secret returns a Secret as ConfigMap returns a ConfigMap.
func (o *Objects) Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	k := key{Secret, namespace, name}
	obj, err := o.get(ctx, k)
	return as[*corev1.Secret](k, obj, err)
}

func (o *Objects) get(ctx context.Context, k key) (metav1.Object, error) {
	o.mu.Lock()
	e := o.entries[k]
	fresh := e != nil && (e.stop != nil || immutable(e.obj))
	known := e != nil && e.obj != nil
	o.mu.Unlock()
	switch {
	case e == nil:
		return o.read(ctx, k)
	case fresh:
		return o.await(ctx, e)
	}
	obj, err := o.readAnew(ctx, k, known)
	if ctx.Err() != nil {
		return obj, err // a failure would say nothing about the object
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if e.stop != nil { // a watch began meanwhile, and knows better from now on
		return obj, err
	}
	if !e.store(obj, err) && noAnswer(err) {
		return e.obj, nil
	}
	o.tend(e) // a missing object is watched for
	return obj, err
}

// recallAfter is how long the API server has to answer where an earlier answer is known. Then that one is used: a container
// starts a little later with what it had before, instead of much later.
const recallAfter = 3 * time.Second

// readAnew reads an object; where an earlier state is known, for recallAfter at most.
func (o *Objects) readAnew(ctx context.Context, k key, known bool) (metav1.Object, error) {
	if known {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, recallAfter)
		defer cancel()
	}
	return o.read(ctx, k)
}

// noAnswer says that err is not the API server's word on the object: it could not be reached, or was not up to answering.
func noAnswer(err error) bool {
	return apierrors.ReasonForError(err) == metav1.StatusReasonUnknown || apierrors.IsServiceUnavailable(err) ||
		apierrors.IsInternalError(err) || apierrors.IsTooManyRequests(err) || apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err)
}

// await returns what is known of an entry that is watched, waiting until something is.
func (o *Objects) await(ctx context.Context, e *entry) (metav1.Object, error) {
	ctx, cancel := context.WithTimeout(ctx, client.RequestTimeout)
	defer cancel()
	select {
	case <-e.known:
	case <-ctx.Done():
		return nil, fmt.Errorf("get %s: the API server has not answered: %w", e.key, ctx.Err())
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return e.obj, e.err
}

// How new an object must be, as resourceVersion of a read.
const (
	newest     = ""  // as it is in etcd
	fromMemory = "0" // as the API server's watches have it
)

// read gets the object from the API server as it is now.
func (o *Objects) read(ctx context.Context, k key) (metav1.Object, error) {
	var obj interface {
		metav1.Object
		runtime.Object
	} = &corev1.ConfigMap{}
	if k.kind == Secret {
		obj = &corev1.Secret{}
	}
	err := o.rush.read(ctx, o.rush.reads, func(ctx context.Context) error {
		return o.cfg.Core.Get().Throttle(nil).Namespace(k.namespace).Resource(k.kind.resource()).Name(k.name).Do(ctx).Into(obj)
	})
	if apierrors.IsNotFound(err) {
		return nil, notFound(k)
	}
	if err != nil {
		return nil, fmt.Errorf("get %s %s/%s: %w", k.kind, k.namespace, k.name, err)
	}
	return slim(obj), nil
}
