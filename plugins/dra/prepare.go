package dra

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	api "k8s.io/kubelet/pkg/apis/dra/v1"
	"k8s.io/utils/ptr"

	"github.com/nodelet/nodelet/plugins/dra/checkpoint"
)

// wanted is a ResourceClaim that a pod needs.
type wanted struct {
	key       types.NamespacedName
	uid       types.UID
	allocated []resourcev1.DeviceRequestAllocationResult
}

// Prepare prepares all ResourceClaims of a pod. One that is prepared for another pod already is recorded for this pod
// too.
func (d *DRA) Prepare(ctx context.Context, pod *corev1.Pod) error {
	if err := d.prepare(ctx, pod); err != nil {
		return fmt.Errorf("prepare dynamic resources: %w", err)
	}
	return nil
}

func (d *DRA) prepare(ctx context.Context, pod *corev1.Pod) error {
	all, err := d.readAll(ctx, pod)
	if err != nil || len(all) == 0 {
		return err
	}
	keys := make([]types.NamespacedName, len(all))
	for i := range all {
		keys[i] = all[i].key
	}
	unlock, err := lockAll(ctx, &d.working, keys)
	if err != nil {
		return err
	}
	if err := d.record(pod.UID, all); err != nil {
		unlock()
		return err
	}
	return d.work(ctx, unlock, func() error { return d.prepareRecorded(ctx, pod.UID, keys) })
}

// readAll reads the ResourceClaims of a pod and checks that the pod may use them. Nothing is recorded before, so that a
// pod that cannot have its ResourceClaims can be removed without their drivers.
func (d *DRA) readAll(ctx context.Context, pod *corev1.Pod) (all []wanted, err error) {
	refs, err := references(pod)
	if err != nil {
		return nil, err
	}
	for _, r := range refs {
		c, err := d.cfg.API.Claim(ctx, pod.Namespace, r.name)
		if err != nil {
			return nil, fmt.Errorf("fetch ResourceClaim %s: %w", r.name, err)
		}
		if err := check(pod, r, c); err != nil {
			return nil, err
		}
		key := types.NamespacedName{Namespace: c.Namespace, Name: c.Name}
		w := wanted{key, c.UID, c.Status.Allocation.Devices.Results}
		if !slices.ContainsFunc(all, func(other wanted) bool { return other.key == w.key }) {
			all = append(all, w)
		}
	}
	return all, nil
}

// record records the ResourceClaims for the pod, if all their drivers are registered.
func (d *DRA) record(pod types.UID, all []wanted) error {
	for _, w := range all {
		for _, name := range driversOf(w.allocated) {
			_, done, err := d.use(name, pod)
			if err != nil {
				return err
			}
			done()
		}
	}
	if err := d.insert(pod, all); err != nil {
		return err
	}
	return d.save()
}

func (d *DRA) insert(pod types.UID, all []wanted) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, w := range all {
		switch c := d.claims[w.key]; {
		case c == nil:
		case c.ClaimUID != w.uid:
			return fmt.Errorf("old ResourceClaim with same name %s and different UID %s still exists "+
				"(previous pod force-deleted?!)",
				w.key.Name, c.ClaimUID)
		case !c.heldBy(pod) && !c.allocatedAs(w.allocated):
			return fmt.Errorf("ResourceClaim %s has been allocated again, and a pod that has gone from the API server "+
				"still has the devices of its earlier allocation", w.key.Name)
		}
	}
	for _, w := range all {
		c := d.claims[w.key]
		if c == nil {
			c = &claim{Claim: checkpoint.Claim{ClaimUID: w.uid, ClaimName: w.key.Name, Namespace: w.key.Namespace,
				PodUIDs: map[string]struct{}{}, DriverState: map[string]checkpoint.DriverState{}}}
			d.claims[w.key] = c
			for _, name := range driversOf(w.allocated) {
				c.DriverState[name] = checkpoint.DriverState{}
			}
		}
		c.allocated = w.allocated
		c.PodUIDs[string(pod)] = struct{}{}
	}
	return nil
}

// allocatedAs reports whether the claim was recorded for this allocation. When its last pod has gone from the API
// server, an object may lose its allocation and get another. mu is held.
func (c *claim) allocatedAs(now []resourcev1.DeviceRequestAllocationResult) bool {
	if c.allocated != nil {
		return equality.Semantic.DeepEqual(c.allocated, now)
	}
	for driver, state := range c.DriverState {
		for _, had := range state.Devices {
			has := func(r resourcev1.DeviceRequestAllocationResult) bool {
				return r.Driver == driver && r.Pool == had.PoolName && r.Device == had.DeviceName &&
					(had.ShareID == nil || ptr.Equal(had.ShareID, r.ShareID))
			}
			if !slices.ContainsFunc(now, has) {
				return false
			}
		}
	}
	return slices.Equal(slices.Sorted(maps.Keys(c.DriverState)), driversOf(now))
}

// prepareRecorded asks the drivers to prepare what is not prepared yet.
func (d *DRA) prepareRecorded(ctx context.Context, pod types.UID, keys []types.NamespacedName) error {
	requests := d.requests(keys, func(c *claim) bool { return !c.prepared })
	if len(requests) == 0 {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(requests)) {
		answers, err := d.askPrepare(ctx, name, pod, requests[name])
		if err != nil {
			return err
		}
		d.mu.Lock()
		for _, r := range requests[name] {
			d.claims[keyOf(r)].DriverState[name] = stateOf(answers[r.Uid])
		}
		d.mu.Unlock()
	}
	if err := d.save(); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, key := range keys {
		d.claims[key].prepared = true
	}
	return nil
}

// requests returns what to ask of which driver, for the ResourceClaims for which due returns true.
func (d *DRA) requests(keys []types.NamespacedName, due func(*claim) bool) map[string][]*api.Claim {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := map[string][]*api.Claim{}
	for _, key := range keys {
		c := d.claims[key]
		if !due(c) {
			continue
		}
		for name := range c.DriverState {
			all[name] = append(all[name], &api.Claim{Namespace: c.Namespace, Name: c.ClaimName, Uid: string(c.ClaimUID)})
		}
	}
	return all
}

func keyOf(r *api.Claim) types.NamespacedName {
	return types.NamespacedName{Namespace: r.Namespace, Name: r.Name}
}

func (d *DRA) askPrepare(ctx context.Context, name string, pod types.UID,
	claims []*api.Claim) (map[string]*api.NodePrepareResourceResponse, error) {
	var answer *api.NodePrepareResourcesResponse
	err := d.call(ctx, name, pod, func(ctx context.Context, c api.DRAPluginClient) (err error) {
		answer, err = c.NodePrepareResources(ctx, &api.NodePrepareResourcesRequest{Claims: claims})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("NodePrepareResources of DRA driver %s: %w", name, err)
	}
	return answer.GetClaims(), checkAnswers("NodePrepareResources", claims, answer.GetClaims())
}

// answer is the answer of a driver for one ResourceClaim.
type answer interface{ GetError() string }

// checkAnswers returns an error, with the kubelet's message, if a driver has not done what it was asked for.
func checkAnswers[A answer](verb string, asked []*api.Claim, answers map[string]A) error {
	for _, r := range asked {
		a, answered := answers[r.Uid]
		if !answered {
			return fmt.Errorf("%s skipped ResourceClaim %s", verb, r.Name)
		}
		if text := a.GetError(); text != "" {
			return fmt.Errorf("%s failed for ResourceClaim %s: %s", verb, r.Name, text)
		}
	}
	return nil
}

// stateOf returns the answer of a driver as it is stored.
func stateOf(a *api.NodePrepareResourceResponse) (s checkpoint.DriverState) {
	for _, one := range a.GetDevices() {
		device := checkpoint.Device{PoolName: one.PoolName, DeviceName: one.DeviceName, RequestNames: one.RequestNames,
			CDIDeviceIDs: one.CdiDeviceIds}
		if one.ShareId != nil {
			device.ShareID = new(types.UID(*one.ShareId))
		}
		s.Devices = append(s.Devices, device)
	}
	return s
}
