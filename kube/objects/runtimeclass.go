package objects

import (
	"context"
	"fmt"
	"time"

	nodev1 "k8s.io/api/node/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// RuntimeHandler returns the handler of a RuntimeClass, the name by which the runtime knows it. The empty name is the
// default class, whose handler is empty. If the class does not exist, the error satisfies apierrors.IsNotFound and has
// the text of the kubelet's. While it cannot be read, what was last read is returned; otherwise a class that was made
// again under the same name counts at once.
func (o *Objects) RuntimeHandler(ctx context.Context, name string) (string, error) {
	if name == "" {
		return "", nil
	}
	return o.classes.get(name, func(limit time.Duration) (string, error) {
		got := &nodev1.RuntimeClass{}
		err := o.limiter.read(ctx, o.limiter.reads, limit, func(ctx context.Context) error {
			return o.cfg.Node.Get().Throttle(nil).Resource("runtimeclasses").Name(name).Do(ctx).Into(got)
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

// KnownHandler returns the handler of a RuntimeClass as it was last read; empty if that has not happened. It makes no
// request.
func (o *Objects) KnownHandler(name string) string {
	handler, _ := o.classes.last(name)
	return handler
}
