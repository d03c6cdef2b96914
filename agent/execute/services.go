package execute

import (
	"context"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

const (
	// servicesMaxAge is how long containers use a list that was read while their sandbox was created.
	servicesMaxAge = 5 * time.Second
	// servicesTimeout is the timeout of that read.
	servicesTimeout = 10 * time.Second
)

// serviceRead is a list of the services in the environment of a pod, read while its sandbox is created.
type serviceRead struct {
	began time.Time
	// done is closed when the read has ended.
	done chan struct{}
	// all is the list; nil if it could not be read, and when it is too old to be used: a pod has this list for as long
	// as it runs, and a namespace may have thousands of services.
	all atomic.Pointer[[]*corev1.Service]
}

func readServices(ctx context.Context, objects Objects, pod *corev1.Pod) *serviceRead {
	r := &serviceRead{began: time.Now(), done: make(chan struct{})}
	go func() {
		defer close(r.done)
		ctx, cancel := context.WithTimeout(ctx, servicesTimeout)
		defer cancel()
		if all, err := objects.Services(ctx, podutil.ServicesNamespace(pod)); err == nil {
			r.all.Store(&all)
			time.AfterFunc(servicesMaxAge, func() { r.all.Store(nil) })
		}
	}()
	return r
}

// podServices returns the services in the environment of the pod: those read with its sandbox if they are new enough.
func podServices(ctx context.Context, t *Task, objects Objects) ([]*corev1.Service, error) {
	if r := t.services; r != nil && time.Since(r.began) < servicesMaxAge {
		select {
		case <-r.done:
			if all := r.all.Load(); all != nil {
				return *all, nil
			}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return objects.Services(ctx, podutil.ServicesNamespace(t.Pod))
}
