// Package claims reads ResourceClaims, and deletes the ResourceSlices of drivers that were removed from this node
// (resource.k8s.io/v1).
//
// A node may only read single ResourceClaims of its pods, and its own ResourceSlices. This package never decides which
// ResourceClaim a pod may use. Package plugins/dra calls it; cmd/nodelet connects the two. It keeps no state, so a
// crash leaves nothing behind.
package claims

import (
	"context"
	"maps"
	"slices"

	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/rest"

	"github.com/nodelet/nodelet/kube/client"
)

// Claims speaks to /apis/resource.k8s.io/v1 for one node.
type Claims struct {
	Resource rest.Interface
	NodeName string
}

const slicesResource = "resourceslices"

// Claim reads a ResourceClaim.
func (c *Claims) Claim(ctx context.Context, namespace, name string) (*resourcev1.ResourceClaim, error) {
	got := &resourcev1.ResourceClaim{}
	err := client.RetryWhileLagging(ctx, func(ctx context.Context) error {
		return c.Resource.Get().Throttle(nil).Namespace(namespace).Resource("resourceclaims").Name(name).Do(ctx).Into(got)
	})
	return got, err
}

// Drivers returns the drivers that have ResourceSlices for this node, sorted.
func (c *Claims) Drivers(ctx context.Context) (names []string, err error) {
	list := &resourcev1.ResourceSliceList{}
	err = client.Bounded(ctx, func(ctx context.Context) error {
		return c.Resource.Get().Resource(slicesResource).VersionedParams(c.own(nil), client.Parameters).Do(ctx).Into(list)
	})
	for i := range list.Items {
		names = append(names, list.Items[i].Spec.Driver)
	}
	slices.Sort(names)
	return slices.Compact(names), err
}

// Delete deletes the ResourceSlices of a driver for this node.
func (c *Claims) Delete(ctx context.Context, driver string) error {
	err := client.BoundedWrite(ctx, func(ctx context.Context) error {
		of := c.own(fields.Set{resourcev1.ResourceSliceSelectorDriver: driver})
		return c.Resource.Delete().Resource(slicesResource).VersionedParams(of, client.Parameters).
			Body(&metav1.DeleteOptions{}).Do(ctx).Error()
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// own selects the ResourceSlices of this node that match others.
func (c *Claims) own(others fields.Set) *metav1.ListOptions {
	of := fields.Set{resourcev1.ResourceSliceSelectorNodeName: c.NodeName}
	maps.Copy(of, others)
	return &metav1.ListOptions{FieldSelector: of.String()}
}
