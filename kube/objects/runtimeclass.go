package objects

import (
	"context"
	"fmt"

	nodev1 "k8s.io/api/node/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/nodelet/nodelet/kube/client"
)

// RuntimeHandler returns the handler of a RuntimeClass, the name by which the runtime knows it. The empty name is the
// default class, whose handler is empty. If the class does not exist, the error satisfies apierrors.IsNotFound and has
// the text of the kubelet's. While the API server does not answer, what was last read is returned; otherwise a class
// that was made again under the same name counts at once.
func (o *Objects) RuntimeHandler(ctx context.Context, name string) (string, error) {
	if name == "" {
		return "", nil
	}
	known, ok := o.classes.Load(name)
	bound, cancel := bounded(ctx, ok)
	defer cancel()
	got := &nodev1.RuntimeClass{}
	err := client.Bounded(bound, func(ctx context.Context) error {
		return o.cfg.Node.Get().Resource("runtimeclasses").Name(name).Do(ctx).Into(got)
	})
	switch {
	case apierrors.IsNotFound(err):
		o.classes.Delete(name)
		return "", apierrors.NewNotFound(nodev1.Resource("runtimeclass"), name)
	case err != nil && ok && noAnswer(err):
		return known.(string), nil
	case err != nil:
		return "", fmt.Errorf("failed to lookup RuntimeClass %s: %w", name, err)
	}
	o.classes.Store(name, got.Handler)
	return got.Handler, nil
}
