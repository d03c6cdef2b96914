package node

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"

	"k8s.io/client-go/rest"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/kube/client"
	"github.com/nodelet/nodelet/test/waittest"
)

// kubeconfigEnv names the kubeconfig of an administrator. If it is set, the test below runs with a real API server.
const kubeconfigEnv = "NODELET_TEST_KUBECONFIG"

// TestRealServer registers a node at a real API server, changes its status, starts again with the same object, and
// deletes it.
func TestRealServer(t *testing.T) {
	path := os.Getenv(kubeconfigEnv)
	if path == "" {
		t.Skipf("needs an API server: set %s", kubeconfigEnv)
	}
	conn, err := client.LoadConfig(path)
	if err != nil {
		t.Fatal(err)
	}
	api, err := client.New(conn, 1000, 1000, "nodelet-test")
	if err != nil {
		t.Fatal(err)
	}
	cfg := testConfig(t)
	cfg.Name = fmt.Sprintf("nodelet-test-%d", time.Now().UnixNano())
	cfg.MachineRoot, cfg.RootDir = "/", "/"
	cfg.LocalStorage = true
	cfg.Event = func(kind, reason, message string) { t.Logf("event %s %s: %s", kind, reason, message) }
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), waittest.Limit)
		defer cancel()
		if err := api.Core.Delete().Resource("nodes").Name(cfg.Name).Do(ctx).Error(); err != nil {
			t.Error(err)
		}
	})
	began := time.Now()
	r, stop := runReal(t, cfg, api, conn)
	r.setRuntime(readyRuntime)
	<-r.Seen() // before, Node returns an object without a UID
	n := awaitCondition(t, r, corev1.NodeReady, corev1.ConditionTrue)
	t.Logf("ready after %v", time.Since(began))
	if n.Labels["mine"] != "yes" || n.Status.Capacity.Memory().IsZero() || n.Status.Capacity.StorageEphemeral().IsZero() {
		t.Errorf("got %v %v", n.Labels, n.Status.Capacity)
	}
	began = time.Now()
	r.SetPressure(pressure(corev1.NodeMemoryPressure))
	r.SetImages([]*runtimeapi.Image{{RepoTags: []string{"registry.k8s.io/pause:3.10"}, Size: 500000}})
	awaitCondition(t, r, corev1.NodeMemoryPressure, corev1.ConditionTrue)
	t.Logf("pressure seen after %v", time.Since(began))
	lease := &coordinationv1.Lease{}
	get := api.Coordination.Get().Namespace(corev1.NamespaceNodeLease).Resource("leases").Name(cfg.Name)
	waittest.Until(t, "the node has a lease", func() bool { return get.Do(t.Context()).Into(lease) == nil })
	if len(lease.OwnerReferences) != 1 || lease.OwnerReferences[0].UID != n.UID {
		t.Errorf("owner of the lease: got %+v, want the Node", lease.OwnerReferences)
	}
	stop()

	again, stop := runReal(t, cfg, api, conn) // an agent that starts again finds the object and keeps it Ready
	defer stop()
	n = awaitCondition(t, again, corev1.NodeReady, corev1.ConditionTrue)
	if len(n.Status.Images) != 1 || len(n.Status.Conditions) != 4 {
		t.Errorf("got %+v", n.Status)
	}
}

func runReal(t *testing.T, cfg Config, api *client.Client, conn *rest.Config) (*Reporter, func()) {
	t.Helper()
	heartbeats := client.NewTransport(5 * time.Second)
	if err := heartbeats.Use(conn); err != nil {
		t.Fatal(err)
	}
	r, err := New(cfg, api.Core, heartbeats.Config(""), heartbeats.Renew)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); r.Run(ctx) }()
	return r, func() { cancel(); <-done }
}

// awaitCondition waits until the object has a condition.
func awaitCondition(t *testing.T, r *Reporter, c corev1.NodeConditionType, want corev1.ConditionStatus) *corev1.Node {
	t.Helper()
	var n *corev1.Node
	waittest.Until(t, fmt.Sprintf("condition %s is %s", c, want), func() bool {
		n = r.Node()
		got := find(n.Status.Conditions, c)
		return got != nil && got.Status == want
	})
	return n
}
