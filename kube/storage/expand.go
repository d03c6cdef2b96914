package storage

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/kube/client"
)

// Growth returns the size to which this node has to expand a claim's volume, nil if it does not have to: the one that
// is allocated to the claim, as the storage may have rounded up that of the PersistentVolume. Without the status of an
// expansion the sizes alone decide: that is so with an external-resizer without RecoverVolumeExpansionFailure, and if
// an administrator enlarges the PersistentVolume.
func (c *Claim) Growth() *resource.Quantity {
	want := c.PV.Spec.Capacity[corev1.ResourceStorage]
	switch c.PVC.Status.AllocatedResourceStatuses[corev1.ResourceStorage] {
	case corev1.PersistentVolumeClaimNodeResizePending, corev1.PersistentVolumeClaimNodeResizeInProgress:
		if allocated, known := c.PVC.Status.AllocatedResources[corev1.ResourceStorage]; known {
			want = allocated
		}
		return &want
	}
	if has := c.PVC.Status.Capacity.Storage(); c.plain() && has.Cmp(want) < 0 {
		return &want
	}
	return nil
}

// plain reports whether no external-resizer that knows the status of an expansion on a node has written it. Then only
// the sizes count.
func (c *Claim) plain() bool {
	_, status := c.PVC.Status.AllocatedResourceStatuses[corev1.ResourceStorage]
	_, allocated := c.PVC.Status.AllocatedResources[corev1.ResourceStorage]
	return !status && !allocated
}

// pending reports whether a claim says that its file system has to be expanded.
func pending(claim *corev1.PersistentVolumeClaim) bool {
	return slices.ContainsFunc(claim.Status.Conditions, func(c corev1.PersistentVolumeClaimCondition) bool {
		return c.Type == corev1.PersistentVolumeClaimFileSystemResizePending && c.Status == corev1.ConditionTrue
	})
}

// nodeExpansionNotRequired is an annotation of the claims whose volumes the control plane has expanded wholly.
const nodeExpansionNotRequired = "volume.kubernetes.io/node-expansion-not-required"

// GrowthElsewhere returns the size to which this node has to expand a claim's volume, which has a size of has bytes on
// it, because another node has done so: each node that uses a ReadWriteMany volume expands it. It returns nil if there
// is no need, and if has is 0, for not known.
func (c *Claim) GrowthElsewhere(has int64) *resource.Quantity {
	size := c.PVC.Status.Capacity[corev1.ResourceStorage]
	_, goesOn := c.PVC.Status.AllocatedResourceStatuses[corev1.ResourceStorage]
	_, unneeded := c.PVC.Annotations[nodeExpansionNotRequired]
	many := slices.Contains(c.PVC.Spec.AccessModes, corev1.ReadWriteMany)
	if has == 0 || size.Value() <= has || goesOn || unneeded || !many {
		return nil
	}
	return &size
}

// Growing writes to a claim's status that this node expands its volume.
func (s *Storage) Growing(ctx context.Context, c *Claim) error {
	const inProgress = corev1.PersistentVolumeClaimNodeResizeInProgress
	if c.plain() || c.PVC.Status.AllocatedResourceStatuses[corev1.ResourceStorage] == inProgress {
		return nil
	}
	return s.patchClaim(ctx, c, map[string]any{"allocatedResourceStatuses": map[string]any{"storage": inProgress}})
}

// Grown writes to a claim's status that its volume has the new size.
func (s *Storage) Grown(ctx context.Context, c *Claim, size resource.Quantity) error {
	status := map[string]any{"capacity": map[string]string{"storage": size.String()},
		"allocatedResourceStatuses": map[string]any{"storage": nil}}
	var drop []any
	for _, condition := range c.PVC.Status.Conditions {
		switch condition.Type {
		case corev1.PersistentVolumeClaimResizing, corev1.PersistentVolumeClaimFileSystemResizePending,
			corev1.PersistentVolumeClaimControllerResizeError, corev1.PersistentVolumeClaimNodeResizeError:
			drop = append(drop, map[string]any{"type": condition.Type, "$patch": "delete"})
		}
	}
	if drop != nil {
		status["conditions"] = drop
	}
	return s.patchClaim(ctx, c, status)
}

// NotGrown writes to a claim's status that its volume could not be expanded. never marks the expansion as infeasible,
// as does a claim that requests another size: the control plane acts on a new request only after the node has given up
// the old one. What the status says already is not written again.
func (s *Storage) NotGrown(ctx context.Context, c *Claim, cause error, never bool) error {
	if c.plain() {
		return nil
	}
	status := map[string]any{"conditions": []any{map[string]any{
		"type": corev1.PersistentVolumeClaimNodeResizeError, "status": corev1.ConditionTrue, "message": cause.Error(),
		"lastTransitionTime": metav1.NewTime(time.Now()),
	}}}
	switch {
	case never, c.Overtaken():
		status["allocatedResourceStatuses"] = map[string]any{"storage": corev1.PersistentVolumeClaimNodeResizeInfeasible}
	case c.failed(cause):
		return nil
	}
	return s.patchClaim(ctx, c, status)
}

// failed reports whether the claim says why its volume could not be expanded.
func (c *Claim) failed(cause error) bool {
	return slices.ContainsFunc(c.PVC.Status.Conditions, func(has corev1.PersistentVolumeClaimCondition) bool {
		return has.Type == corev1.PersistentVolumeClaimNodeResizeError && has.Status == corev1.ConditionTrue &&
			has.Message == cause.Error()
	})
}

// Overtaken reports whether the claim requests another size than the one for which its volume is being expanded. The
// size of the PersistentVolume says nothing about that: the storage may have rounded it up.
func (c *Claim) Overtaken() bool {
	size, known := c.PVC.Status.AllocatedResources[corev1.ResourceStorage]
	return known && !size.Equal(c.PVC.Spec.Resources.Requests[corev1.ResourceStorage])
}

func (s *Storage) patchClaim(ctx context.Context, c *Claim, status map[string]any) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": c.PVC.ResourceVersion, "uid": c.PVC.UID},
		"status":   status,
	})
	if err != nil {
		return err
	}
	got := &corev1.PersistentVolumeClaim{}
	err = client.BoundedWrite(ctx, func(ctx context.Context) error {
		return s.cfg.Core.Patch(types.StrategicMergePatchType).Namespace(c.PVC.Namespace).Resource("persistentvolumeclaims").
			Name(c.PVC.Name).SubResource("status").Body(patch).Do(ctx).Into(got)
	})
	if err != nil {
		return fmt.Errorf("update the status of PVC %s/%s: %w", c.PVC.Namespace, c.PVC.Name, err)
	}
	c.PVC = got
	return nil
}
