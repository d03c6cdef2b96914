package agent

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// servicesFresh is how long a list that was read while the sandbox was being made is good for the containers in it.
	servicesFresh = 5 * time.Second
	// servicesPatience bounds that read.
	servicesPatience = 10 * time.Second
)

// serviceRead is a list of the services that a pod is told of, read beside the making of its sandbox. all and err are
// set when done is closed.
type serviceRead struct {
	began time.Time
	done  chan struct{}
	all   []*corev1.Service
	err   error
}

func readServices(ctx context.Context, h *Backends, pod *corev1.Pod) *serviceRead {
	r := &serviceRead{began: time.Now(), done: make(chan struct{})}
	go func() {
		defer close(r.done)
		ctx, cancel := context.WithTimeout(ctx, servicesPatience)
		defer cancel()
		r.all, r.err = listServices(ctx, h, pod)
	}()
	return r
}

func listServices(ctx context.Context, h *Backends, pod *corev1.Pod) ([]*corev1.Service, error) {
	return h.Objects(pod).Services(ctx, servicesNamespace(pod))
}

// servicesNamespace is the namespace of the services whose addresses are in the environment of a pod.
func servicesNamespace(pod *corev1.Pod) string {
	if links := pod.Spec.EnableServiceLinks; links != nil && !*links {
		return metav1.NamespaceDefault // the service of the API server is always there
	}
	return pod.Namespace
}

// podServices are the services that the pod is told of: those read with its sandbox if they are young enough.
func (t *task) podServices(ctx context.Context) ([]*corev1.Service, error) {
	if r := t.services; r != nil && time.Since(r.began) < servicesFresh {
		select {
		case <-r.done:
			if r.err == nil {
				return r.all, nil
			}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return listServices(ctx, t.backends, t.pod)
}
