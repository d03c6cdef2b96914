package devices

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// endTurn lets the pods go on that wait for a reservation. mu is held.
func (v *inventory) endTurn(r *reservation) {
	if i := slices.Index(v.turns, r); i >= 0 {
		v.turns = slices.Delete(v.turns, i, i+1)
		close(r.ended)
	}
}

// giveBack ends the reservation of a pod. If its plugins are being called, its turn lasts until they have answered;
// otherwise they will not be called. mu is held.
func (v *inventory) giveBack(pod types.UID) {
	if r := v.reserved[pod]; r != nil && !r.calling {
		v.endTurn(r)
	}
	delete(v.reserved, pod)
}

// before returns an earlier reservation of a resource that r asks for, nil if there is none. mu is held.
func (v *inventory) before(r *reservation) *reservation {
	for _, o := range v.turns {
		if o == r {
			break
		}
		for name := range o.asks {
			if r.asks[name] {
				return o
			}
		}
	}
	return nil
}

// awaitTurn waits until no earlier reservation needs the plugins of this one. Allocate does not say for which pod it
// is: plugins that share GPUs rely on calls pod by pod, in the order of the pods.
func (d *Devices) awaitTurn(ctx context.Context, r *reservation) error {
	for {
		d.mu.Lock()
		earlier, kept := d.before(r), d.reserved[r.pod.UID] == r
		r.calling = kept && earlier == nil
		d.mu.Unlock()
		switch {
		case !kept:
			return errTakenBack
		case earlier == nil:
			return nil
		}
		select {
		case <-earlier.ended:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
