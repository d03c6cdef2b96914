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
	return o.classes.get(ctx, name, func(ctx context.Context) (string, error) {
		got := &nodev1.RuntimeClass{}
		err := client.Bounded(ctx, func(ctx context.Context) error {
			return o.cfg.Node.Get().Resource("runtimeclasses").Name(name).Do(ctx).Into(got)
		})
		if apierrors.IsNotFound(err) {
			return "", apierrors.NewNotFound(nodev1.Resource("runtimeclass"), name)
		}
		if err != nil {
			return "", fmt.Errorf("failed to lookup RuntimeClass %s: %w", name, err)
		}
		return got.Handler, nil
	})
}
