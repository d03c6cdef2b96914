package objects

import (
	"k8s.io/apimachinery/pkg/types"
)

// Prime reads, in the background, what a pod that runs already would need to have a container started anew: a new life of the
// agent has never read it, and the API server may be away when it is wanted. namespace is where the pod's services are. It
// costs the reads that the making of the containers has cost before, one after the other.
func (o *Objects) Prime(pod types.UID, namespace string) {
	o.alive.Go(func() {
		o.priming.Lock()
		defer o.priming.Unlock()
		if !o.services.knows(namespace) && o.ctx.Err() == nil {
			_, _ = o.Services(o.ctx, namespace) // a failure is told when somebody needs them
		}
		for _, k := range o.unread(pod) {
			if o.ctx.Err() != nil {
				return
			}
			_, _ = o.get(o.ctx, k)
		}
	})
}

// unread are the objects that the pod uses and that nobody has read yet, nor watches.
func (o *Objects) unread(pod types.UID) (keys []key) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, r := range o.pods[pod] {
		if e := o.entries[r.key()]; e != nil && e.stop == nil && e.obj == nil && e.err == nil {
			keys = append(keys, e.key)
		}
	}
	return keys
}

// knows tells whether the services of a namespace have been read.
func (s *services) knows(namespace string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lists[namespace]
	return l != nil && !l.at.IsZero()
}
