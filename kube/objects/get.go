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

// ConfigMap returns a ConfigMap. If it is watched for a pod, that is the newest state seen, and the call only waits
// for the first one; otherwise it is read. An immutable one is read again when a pod that is new to it needs it. An
// error satisfies apierrors.IsNotFound if it does not exist. While the API server says neither what it is nor that it
// does not exist, the state last read for a pod that uses it is returned. That includes Forbidden: the node may read
// what its pods use, but a server that has just started knows no pods yet.
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
	fresh := e != nil && (e.stop != nil || immutable(e.obj) && !e.confirm)
	known := e != nil && e.certain()
	o.mu.Unlock()
	switch {
	case e == nil:
		return o.read(ctx, k, client.RequestTimeout)
	case fresh:
		return o.await(ctx, e)
	}
	obj, err := o.read(ctx, k, answerLimit(known))
	if ctx.Err() != nil {
		return obj, err // the error says nothing about the object
	}
	if known && apierrors.IsForbidden(err) {
		o.logTrouble(ctx, k, err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if e.keeps(err) {
		return e.obj, e.err
	}
	if e.stop != nil { // a watch has started meanwhile, and is newer
		return obj, err
	}
	e.store(obj, err)
	o.updateWatch(e) // a missing object is watched for
	return e.obj, e.err
}

// recallAfter is how long the API server has to answer if an earlier answer is known. Then that one is used.
const recallAfter = 3 * time.Second

// answerLimit returns how long the API server has to answer. known says whether an earlier answer is known.
func answerLimit(known bool) time.Duration {
	if known {
		return recallAfter
	}
	return client.RequestTimeout
}

// await returns the state of an entry that is watched. It waits for the first answer of the watch.
func (o *Objects) await(ctx context.Context, e *entry) (metav1.Object, error) {
	ctx, cancel := context.WithTimeout(ctx, client.RequestTimeout)
	defer cancel()
	o.mu.Lock()
	known := e.known
	o.mu.Unlock()
	select {
	case <-known:
	case <-ctx.Done():
		return nil, fmt.Errorf("get %s: the API server has not answered: %w", e.key, ctx.Err())
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return e.obj, e.err
}

// How new an object must be, as resourceVersion of a read.
const (
	newest     = ""  // as in etcd
	fromMemory = "0" // any state that the API server has in memory
)

// read reads the object from the API server, which has limit to answer.
func (a *apiServer) read(ctx context.Context, k key, limit time.Duration) (metav1.Object, error) {
	var obj interface {
		metav1.Object
		runtime.Object
	} = &corev1.ConfigMap{}
	if k.kind == Secret {
		obj = &corev1.Secret{}
	}
	err := a.limiter.read(ctx, a.limiter.reads, limit, func(ctx context.Context) error {
		return a.cfg.Core.Get().Throttle(nil).Namespace(k.namespace).Resource(k.kind.resource()).Name(k.name).
			Do(ctx).Into(obj)
	})
	if apierrors.IsNotFound(err) {
		return nil, notFound(k)
	}
	if err != nil {
		return nil, fmt.Errorf("get %s %s/%s: %w", k.kind, k.namespace, k.name, err)
	}
	return slim(obj), nil
}
