package node

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodelet/nodelet/kube/watch"
)

// follow watches the one Node object and passes each version to report, which alone decides which one is newest.
func (r *Reporter) follow(ctx context.Context) {
	target := watch.Target{Client: r.core, Resource: "nodes", FieldSelector: "metadata.name=" + r.cfg.Name}
	target.Follow(ctx, sink{r})
}

type sink struct{ r *Reporter }

func (s sink) Replace(objs []metav1.Object) {
	if len(objs) == 0 {
		s.Delete(nil)
	}
	for _, o := range objs {
		s.Set(o)
	}
}

func (s sink) Set(o metav1.Object) {
	if n, ok := o.(*corev1.Node); ok && n.Name == s.r.cfg.Name {
		s.r.seen.Put(n)
	}
}

func (s sink) Delete(metav1.Object) { s.r.gone.Set() }

func (s sink) Trouble(err error) {
	if err != nil {
		s.r.log.Info("cannot watch the Node object, trying again", "err", err)
	}
}
