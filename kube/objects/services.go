package objects

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/nodelet/nodelet/kube/client"
)

// services are read when a container is created, from the cache of the API server, and not watched. A watch of all
// services, as in the kubelet, costs every node the memory of every service and the traffic of each change, for
// variables that are only set when a container starts; reading one namespace costs that start some milliseconds. Reads
// of one namespace are shared: a call during a read waits for the next one, which begins after the call and so sees
// every service that existed before.
type services struct {
	mu    sync.Mutex
	lists map[string]*serviceList // by namespace
}

// serviceList has the services last read of a namespace.
type serviceList struct {
	running, next *reading
	last          []*corev1.Service
	at            time.Time // of last; zero before the first read
}

// reading is one read; the result is set when done is closed.
type reading struct {
	done chan struct{}
	list []*corev1.Service
	err  error
}

// Services returns the services with a cluster IP of a namespace, and default/kubernetes, reduced to what environment
// variables need: name, cluster IP and ports. While the API server does not answer, what was last read for a namespace
// which pods use is returned.
func (o *Objects) Services(ctx context.Context, namespace string) ([]*corev1.Service, error) {
	recall, cancel := context.WithTimeout(ctx, recallAfter)
	defer cancel()
	all, err := o.services.read(ctx, recall, namespace, 0, func() ([]*corev1.Service, error) {
		return listServices(o.ctx, o.cfg.Core, namespace)
	})
	o.mu.Lock()
	used := o.namespaces()
	o.mu.Unlock()
	if !used[namespace] {
		o.services.keepOnly(used)
	}
	if err != nil || namespace == metav1.NamespaceDefault {
		return all, err
	}
	api, err := o.services.read(ctx, recall, kubernetesService, kubernetesFresh, func() ([]*corev1.Service, error) {
		return getKubernetes(o.ctx, o.cfg.Core)
	})
	if err != nil {
		return nil, err
	}
	return append(all[:len(all):len(all)], api...), nil
}

const (
	// kubernetesService is the key of default/kubernetes among the lists; no namespace has this name.
	kubernetesService = "default/kubernetes"
	// kubernetesFresh is how long default/kubernetes, which every container has in its environment, is not read again. Its
	// address does not change.
	kubernetesFresh = time.Minute
)

// read returns the result of a read that began after the call, or of one that ended less than fresh ago and found
// something. If there is neither when recall ends, it returns an earlier result.
func (s *services) read(ctx, recall context.Context, k string, fresh time.Duration,
	request func() ([]*corev1.Service, error)) ([]*corev1.Service, error) {
	s.mu.Lock()
	if s.lists == nil {
		s.lists = map[string]*serviceList{}
	}
	l := s.lists[k]
	if l == nil {
		l = &serviceList{}
		s.lists[k] = l
	}
	last, bound := l.last, recall
	if len(last) > 0 && time.Since(l.at) < fresh {
		s.mu.Unlock()
		return last, nil
	}
	known := !l.at.IsZero()
	if !known {
		bound = ctx
	}
	var mine *reading
	switch {
	case l.running == nil:
		mine = &reading{done: make(chan struct{})}
		l.running = mine
		go s.run(l, request)
	case l.next == nil:
		l.next = &reading{done: make(chan struct{})}
		fallthrough
	default:
		mine = l.next
	}
	s.mu.Unlock()
	select {
	case <-mine.done:
		return mine.list, mine.err
	case <-bound.Done():
		if known {
			return last, nil
		}
		return nil, fmt.Errorf("list services: the API server has not answered: %w", ctx.Err())
	}
}

// run reads l, and again as long as a call waits for a newer result.
func (s *services) run(l *serviceList, request func() ([]*corev1.Service, error)) {
	for {
		list, err := request()
		s.mu.Lock()
		r := l.running
		switch {
		case err == nil:
			l.last, l.at = list, time.Now()
		case !l.at.IsZero() && noAnswer(err):
			list, err = l.last, nil
		}
		r.list, r.err = list, err
		l.running, l.next = l.next, nil
		more := l.running != nil
		s.mu.Unlock()
		close(r.done)
		if !more {
			return
		}
	}
}

// keepOnly drops the services of namespaces that no pod uses.
func (s *services) keepOnly(used map[string]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.lists, func(ns string, l *serviceList) bool {
		return ns != kubernetesService && !used[ns] && l.running == nil
	})
}

func listServices(ctx context.Context, core rest.Interface, namespace string) ([]*corev1.Service, error) {
	got := &corev1.ServiceList{}
	err := client.Bounded(ctx, func(ctx context.Context) error {
		return core.Get().Throttle(nil).Namespace(namespace).Resource("services").
			VersionedParams(&metav1.ListOptions{ResourceVersion: "0"}, client.Parameters).Do(ctx).Into(got)
	})
	if err != nil {
		return nil, fmt.Errorf("list services of namespace %s: %w", namespace, err)
	}
	return slimServices(got.Items...), nil
}

func getKubernetes(ctx context.Context, core rest.Interface) ([]*corev1.Service, error) {
	got := &corev1.Service{}
	err := client.Bounded(ctx, func(ctx context.Context) error {
		return core.Get().Throttle(nil).Namespace(metav1.NamespaceDefault).Resource("services").Name("kubernetes").
			VersionedParams(&metav1.GetOptions{ResourceVersion: "0"}, client.Parameters).Do(ctx).Into(got)
	})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get service default/kubernetes: %w", err)
	}
	return slimServices(*got), nil
}

// slimServices returns the services that have a cluster IP, each with the part that environment variables need.
func slimServices(all ...corev1.Service) (slim []*corev1.Service) {
	for _, s := range all {
		noAddress := s.Spec.ClusterIP == "" || s.Spec.ClusterIP == corev1.ClusterIPNone
		if noAddress || s.Spec.Type == corev1.ServiceTypeExternalName {
			continue
		}
		slim = append(slim, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name},
			Spec:       corev1.ServiceSpec{Type: s.Spec.Type, ClusterIP: s.Spec.ClusterIP, Ports: s.Spec.Ports},
		})
	}
	return slim
}
