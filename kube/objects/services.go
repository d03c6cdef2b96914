package objects

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/singleflight"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/nodelet/nodelet/internal/keylock"
	"github.com/nodelet/nodelet/kube/client"
)

// services are read when a container is created, from the cache of the API server, and not watched. A watch of all
// services, as in the kubelet, costs every node the memory of every service and the traffic of each change, for
// variables that are only set when a container starts; reading one namespace costs that start some milliseconds. Reads
// of one namespace are shared: a call during a read waits for the next one, which begins after the call and so sees
// every service that existed before.
type services struct {
	remembered[serviceList] // by namespace
	// reading is held during a read of a namespace, and next has the read after it.
	reading keylock.Keyed
	next    singleflight.Group
}

// serviceList has the services of a namespace, and when they were read.
type serviceList struct {
	all []*corev1.Service
	at  time.Time
}

// Services returns the services with a cluster IP of a namespace, and default/kubernetes, reduced to what environment
// variables need: name, cluster IP and ports. While they cannot be read, what was last read for a namespace which pods
// use is returned.
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
	last, known := s.last(k)
	if len(last.all) > 0 && time.Since(last.at) < fresh {
		return last.all, nil
	}
	if !known {
		recall = ctx
	}
	answer := s.next.DoChan(k, func() (any, error) {
		unlock, _ := s.reading.Lock(context.Background(), k) // each read has a timeout
		defer unlock()
		s.next.Forget(k) // calls from now on wait for a read that begins later
		all, err := request()
		if err == nil {
			s.Store(k, serviceList{all, time.Now()})
		}
		return all, err
	})
	select {
	case r := <-answer:
		if known && r.Err != nil {
			return last.all, nil
		}
		all, _ := r.Val.([]*corev1.Service)
		return all, r.Err
	case <-recall.Done():
		if known {
			return last.all, nil
		}
		return nil, fmt.Errorf("list services: the API server has not answered: %w", ctx.Err())
	}
}

// keepOnly drops the services of namespaces that no pod uses.
func (s *services) keepOnly(used map[string]bool) {
	s.Range(func(k, _ any) bool {
		if ns, _ := k.(string); ns != kubernetesService && !used[ns] {
			s.Delete(k)
		}
		return true
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
