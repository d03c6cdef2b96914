package objects

import (
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// remembered has what the API server last said of each key, for the time when it says nothing about it.
type remembered[V any] struct{ sync.Map }

// get returns what read returns, for which the API server has limit to answer. An error other than NotFound says
// nothing about k: then it is what was last read.
func (r *remembered[V]) get(k any, read func(limit time.Duration) (V, error)) (V, error) {
	last, known := r.last(k)
	got, err := read(answerLimit(known))
	switch {
	case err == nil:
		r.Store(k, got)
	case apierrors.IsNotFound(err):
		r.Delete(k)
	case known:
		return last, nil
	}
	return got, err
}

func (r *remembered[V]) last(k any) (v V, known bool) {
	got, known := r.Load(k)
	v, _ = got.(V)
	return v, known
}
