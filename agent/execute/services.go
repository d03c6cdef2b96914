package execute

import (
	"context"
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

// serviceRead is a list of the services in the environment of a pod, read while its sandbox is created. all and err are
// set when done is closed.
type serviceRead struct {
	began time.Time
	done  chan struct{}
	all   []*corev1.Service
	err   error
}

func readServices(ctx context.Context, objects Objects, pod *corev1.Pod) *serviceRead {
	r := &serviceRead{began: time.Now(), done: make(chan struct{})}
	go func() {
		defer close(r.done)
		ctx, cancel := context.WithTimeout(ctx, servicesTimeout)
		defer cancel()
		r.all, r.err = objects.Services(ctx, podutil.ServicesNamespace(pod))
	}()
	return r
}

// podServices returns the services in the environment of the pod: those read with its sandbox if they are new enough.
func podServices(ctx context.Context, t *Task, objects Objects) ([]*corev1.Service, error) {
	if r := t.services; r != nil && time.Since(r.began) < servicesMaxAge {
		select {
		case <-r.done:
			if r.err == nil {
				return r.all, nil
			}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return objects.Services(ctx, podutil.ServicesNamespace(t.Pod))
}
