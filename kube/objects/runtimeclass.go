package objects

import (
	"context"
	"fmt"
	"sync"

	nodev1 "k8s.io/api/node/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/nodelet/nodelet/kube/client"
)

// classes remembers the handlers of runtime classes by name, for outages of the API server.
type classes struct {
	mu    sync.Mutex
	known map[string]string
}

// RuntimeHandler returns the handler of a RuntimeClass, the name by which the runtime knows it. The empty name is the
// default class, whose handler is empty. If the class does not exist, the error satisfies apierrors.IsNotFound and has
// the text of the kubelet's. While the API server does not answer, what was last read is returned; otherwise a class
// that was made again under the same name counts at once.
func (o *Objects) RuntimeHandler(ctx context.Context, name string) (string, error) {
	if name == "" {
		return "", nil
	}
	o.classes.mu.Lock()
	known, ok := o.classes.known[name]
	o.classes.mu.Unlock()
	bound, cancel := ctx, context.CancelFunc(func() {})
	if ok {
		bound, cancel = context.WithTimeout(ctx, recallAfter)
	}
	defer cancel()
	got := &nodev1.RuntimeClass{}
	err := client.Bounded(bound, func(ctx context.Context) error {
		return o.cfg.Node.Get().Resource("runtimeclasses").Name(name).Do(ctx).Into(got)
	})
	switch {
	case apierrors.IsNotFound(err):
		o.classes.forget(name)
		return "", apierrors.NewNotFound(nodev1.Resource("runtimeclass"), name)
	case err != nil && ok && noAnswer(err):
		return known, nil
	case err != nil:
		return "", fmt.Errorf("failed to lookup RuntimeClass %s: %w", name, err)
	}
	o.classes.keep(name, got.Handler)
	return got.Handler, nil
}

func (c *classes) keep(name, handler string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known == nil {
		c.known = map[string]string{}
	}
	c.known[name] = handler
}

func (c *classes) forget(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.known, name)
}
