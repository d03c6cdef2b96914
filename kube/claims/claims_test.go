package claims_test

import (
	"slices"
	"testing"
	"testing/synctest"

	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodelet/nodelet/kube/claims"
	"github.com/nodelet/nodelet/test/kube/apitest"
)

func inWorld(t *testing.T, test func(t *testing.T, server *apitest.Server, c *claims.Claims)) {
	synctest.Test(t, func(t *testing.T) {
		server, api := apitest.New(t)
		test(t, server, &claims.Claims{Resource: api.Resource, NodeName: "node"})
	})
}

func TestClaim(t *testing.T) {
	inWorld(t, func(t *testing.T, server *apitest.Server, c *claims.Claims) {
		server.Put(&resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "gpu", UID: "uid"}})
		if got, err := c.Claim(t.Context(), "ns", "gpu"); err != nil || got.UID != "uid" {
			t.Errorf("got %+v, %v", got, err)
		}
		if _, err := c.Claim(t.Context(), "ns", "other"); !apierrors.IsNotFound(err) {
			t.Errorf("got %v", err)
		}
	})
}

// TestSlices checks that only slices of this node and of that driver are deleted.
func TestSlices(t *testing.T) {
	inWorld(t, func(t *testing.T, server *apitest.Server, c *claims.Claims) {
		put := func(name, node, driver string) {
			server.Put(&resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name},
				Spec: resourcev1.ResourceSliceSpec{NodeName: &node, Driver: driver}})
		}
		put("a", "node", "one")
		put("b", "node", "one")
		put("c", "node", "two")
		put("d", "other", "one")
		put("e", "other", "three")
		if got, err := c.Drivers(t.Context()); err != nil || !slices.Equal(got, []string{"one", "two"}) {
			t.Errorf("got %q, %v", got, err)
		}
		if err := c.Delete(t.Context(), "one"); err != nil {
			t.Error(err)
		}
		if got, err := c.Drivers(t.Context()); err != nil || !slices.Equal(got, []string{"two"}) {
			t.Errorf("drivers left: got %q, %v, want two", got, err)
		}
		if server.Get("resourceslices", "", "d") == nil {
			t.Error("another node's ResourceSlice: got it deleted, want it still there")
		}
	})
}
