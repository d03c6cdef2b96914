package objects

import (
	"context"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// remembered has the last answer of the API server for each key, for the time when it does not answer.
type remembered[V any] struct{ sync.Map }

// get returns what read returns. While the API server does not answer, it is the last answer for the key k.
func (r *remembered[V]) get(ctx context.Context, k any, read func(context.Context) (V, error)) (V, error) {
	last, known := r.last(k)
	ctx, cancel := bounded(ctx, known)
	defer cancel()
	got, err := read(ctx)
	switch {
	case err == nil:
		r.Store(k, got)
	case apierrors.IsNotFound(err):
		r.Delete(k)
	case known && noAnswer(err):
		return last, nil
	}
	return got, err
}

func (r *remembered[V]) last(k any) (v V, known bool) {
	got, known := r.Load(k)
	v, _ = got.(V)
	return v, known
}
