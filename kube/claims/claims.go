// Package claims reads resource claims, and deletes the ResourceSlices of drivers that have left this node (resource.k8s.io/v1).
//
// A node may read claims only one by one, and only those of its pods, and ResourceSlices that are its own. It never decides
// which claim a pod may use. Package dra calls it, wired by cmd/nodelet. It keeps nothing that a crash could lose.
package claims

import (
	"context"
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

// Claim reads a claim as it is now.
func (c *Claims) Claim(ctx context.Context, namespace, name string) (*resourcev1.ResourceClaim, error) {
	got := &resourcev1.ResourceClaim{}
	err := client.Patiently(ctx, func(ctx context.Context) error {
		return c.Resource.Get().Throttle(nil).Namespace(namespace).Resource("resourceclaims").Name(name).Do(ctx).Into(got)
	})
	return got, err
}

// Drivers are the drivers that have ResourceSlices for this node, sorted.
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
	err := client.Bounded(ctx, func(ctx context.Context) error {
		of := c.own(fields.Set{resourcev1.ResourceSliceSelectorDriver: driver})
		return c.Resource.Delete().Resource(slicesResource).VersionedParams(of, client.Parameters).Body(&metav1.DeleteOptions{}).Do(ctx).Error()
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// own selects what is this node's, of what also fits others.
func (c *Claims) own(others fields.Set) *metav1.ListOptions {
	of := fields.Set{resourcev1.ResourceSliceSelectorNodeName: c.NodeName}
	for field, value := range others {
		of[field] = value
	}
	return &metav1.ListOptions{FieldSelector: of.String()}
}
