package agent

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

func readServices(ctx context.Context, h *Backends, pod *corev1.Pod) *serviceRead {
	r := &serviceRead{began: time.Now(), done: make(chan struct{})}
	go func() {
		defer close(r.done)
		ctx, cancel := context.WithTimeout(ctx, servicesTimeout)
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

// podServices returns the services in the environment of the pod: those read with its sandbox if they are new enough.
func (t *task) podServices(ctx context.Context) ([]*corev1.Service, error) {
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
	return listServices(ctx, t.backends, t.pod)
}
