package dra

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	api "k8s.io/kubelet/pkg/apis/dra/v1"
)

// Unprepare asks the drivers to unprepare what is recorded for this pod alone.
func (d *DRA) Unprepare(ctx context.Context, pod types.UID) error {
	if err := d.unprepare(ctx, pod); err != nil {
		return fmt.Errorf("unprepare dynamic resources: %w", err)
	}
	return nil
}

func (d *DRA) unprepare(ctx context.Context, pod types.UID) error {
	d.mu.Lock()
	keys := d.claims.of(pod)
	d.mu.Unlock()
	if len(keys) == 0 {
		return nil
	}
	unlock, err := lockAll(ctx, &d.working, keys)
	if err != nil {
		return err
	}
	return d.work(ctx, unlock, func() error { return d.unprepareLocked(ctx, pod, keys) })
}

// unprepareLocked ends the pod's use of its ResourceClaims, which the caller has locked.
func (d *DRA) unprepareLocked(ctx context.Context, pod types.UID, keys []types.NamespacedName) error {
	d.mu.Lock()
	keys = slices.DeleteFunc(keys, func(key types.NamespacedName) bool { return d.drop(key, pod) })
	d.mu.Unlock()
	requests := d.requests(keys, func(c *claim) bool {
		c.prepared = false // whatever the drivers answer, it must not be used any more
		return true
	})
	failed := map[types.NamespacedName]bool{}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(requests)) {
		if err := d.askUnprepare(ctx, name, pod, requests[name]); err != nil {
			errs = append(errs, err)
			for _, r := range requests[name] {
				failed[keyOf(r)] = true
			}
		}
	}
	d.mu.Lock()
	maps.DeleteFunc(d.claims, func(key types.NamespacedName, _ *claim) bool {
		return slices.Contains(keys, key) && !failed[key]
	})
	d.mu.Unlock()
	return errors.Join(append(errs, d.save())...)
}

// drop removes the pod from a ResourceClaim that other pods have too, and reports whether the drivers need not be
// called. The pod may have lost the ResourceClaim while it waited for the lock. mu is held.
func (d *DRA) drop(key types.NamespacedName, pod types.UID) bool {
	c := d.claims[key]
	if c == nil {
		return true
	}
	if c.heldBy(pod) && len(c.PodUIDs) == 1 {
		return false
	}
	delete(c.PodUIDs, string(pod))
	return true
}

func (d *DRA) askUnprepare(ctx context.Context, name string, pod types.UID, claims []*api.Claim) error {
	var answer *api.NodeUnprepareResourcesResponse
	err := d.call(ctx, name, pod, func(ctx context.Context, c api.DRAPluginClient) (err error) {
		answer, err = c.NodeUnprepareResources(ctx, &api.NodeUnprepareResourcesRequest{Claims: claims})
		return err
	})
	if err != nil {
		return fmt.Errorf("NodeUnprepareResources of DRA driver %s: %w", name, err)
	}
	return checkAnswers("NodeUnprepareResources", claims, answer.GetClaims())
}
