package objects

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// Prime reads, in the background, what a running pod would need to restart a container or its sandbox: after a restart
// of the agent nothing has been read yet, and the API server may be away when it is needed. It costs the requests that
// creating the containers has cost before, one after the other.
func (o *Objects) Prime(pod *corev1.Pod) {
	o.alive.Go(func() {
		o.priming.Lock()
		defer o.priming.Unlock()
		for _, k := range o.unread(pod.UID) {
			switch { // an error is reported to the next caller that needs the object
			case o.ctx.Err() != nil:
				return
			case k.kind == Services:
				_, _ = o.Services(o.ctx, k.namespace)
			default:
				_, _ = o.get(o.ctx, k)
			}
		}
		if _, known := o.accounts.Load(pod.UID); !known && o.cfg.ServiceAccounts && pod.Spec.ServiceAccountName != "" {
			_, _ = o.ServiceAccount(o.ctx, pod)
		}
		class := ptr.Deref(pod.Spec.RuntimeClassName, "")
		if _, known := o.classes.Load(class); !known {
			_, _ = o.RuntimeHandler(o.ctx, class)
		}
	})
}

// unread returns what the pod uses and is neither known nor watched.
func (o *Objects) unread(pod types.UID) (keys []key) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, r := range o.pods[pod] {
		e := o.entries[r.key()] // nil for Services
		_, known := o.services.Load(r.Namespace)
		if r.Kind == Services && !known || e != nil && e.stop == nil && e.obj == nil && e.err == nil {
			keys = append(keys, r.key())
		}
	}
	return keys
}
