package objects

import (
	"context"
	"fmt"
	"sync"
	"time"

	nodev1 "k8s.io/api/node/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/nodelet/nodelet/kube/client"
)

// classFresh is how long a runtime class is not asked about again. Its handler cannot change while it exists.
const classFresh = time.Minute

// classes remembers the handlers of runtime classes by name.
type classes struct {
	mu    sync.Mutex
	known map[string]class
}

type class struct {
	handler string
	read    time.Time
}

// RuntimeHandler returns the handler of a runtime class, which the runtime knows it by. The empty name is the default class,
// whose handler is empty. A class that does not exist is an error that satisfies apierrors.IsNotFound, worded as the
// kubelet's. While the API server cannot be reached, what was last read is returned.
func (o *Objects) RuntimeHandler(ctx context.Context, name string) (string, error) {
	if name == "" {
		return "", nil
	}
	o.classes.mu.Lock()
	known, ok := o.classes.known[name]
	o.classes.mu.Unlock()
	if ok && time.Since(known.read) < classFresh {
		return known.handler, nil
	}
	got := &nodev1.RuntimeClass{}
	err := client.Bounded(ctx, func(ctx context.Context) error {
		return o.cfg.Node.Get().Resource("runtimeclasses").Name(name).Do(ctx).Into(got)
	})
	switch {
	case apierrors.IsNotFound(err):
		o.classes.forget(name)
		return "", apierrors.NewNotFound(nodev1.Resource("runtimeclass"), name)
	case err != nil && ok && noAnswer(err):
		return known.handler, nil
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
		c.known = map[string]class{}
	}
	c.known[name] = class{handler, time.Now()}
}

func (c *classes) forget(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.known, name)
}
