package volumes

import (
	"cmp"
	"context"
	"log/slog"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/csi"
	"github.com/nodelet/nodelet/kube/pluginname"
	"github.com/nodelet/nodelet/kube/storage"
	"github.com/nodelet/nodelet/test/ownmounts"
	"github.com/nodelet/nodelet/volumes/iscsi"
	"github.com/nodelet/nodelet/volumes/podfs"
)

func TestMain(m *testing.M) { ownmounts.Main(m) }

// newTestManager makes a Manager of which only Root, Cluster and Metrics matter. lun is the driver for LUNs.
func newTestManager(t *testing.T, cfg Config, lun csipb.NodeClient) *Manager {
	t.Helper()
	pods, err := podfs.New(podfs.Config{Log: slog.New(slog.DiscardHandler), Root: cfg.Root})
	if err != nil {
		t.Fatal(err)
	}
	cfg.NodeName = "node"
	cfg.Metrics = cmp.Or[Metrics](cfg.Metrics, noMetrics{})
	cfg.Log, cfg.Pods = slog.New(slog.DiscardHandler), pods
	cfg.InUse, cfg.Wake = func([]corev1.UniqueVolumeName) {}, func([]types.UID) {}
	m, err := newManager(cfg, csi.InTreeDriver{Plugin: pluginname.ISCSI, Node: lun, Handle: iscsi.HandleOf})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

// oneVolume is an API server with one claim, whose volume is attached, and one CSIDriver.
type oneVolume struct {
	noCluster
	claim    *storage.Claim
	driver   *storagev1.CSIDriver
	affinity error // of the volume
	unread   error // of the claim
}

func (c *oneVolume) Claim(context.Context, *corev1.Pod, *corev1.Volume) (*storage.Claim, error) {
	return c.claim, c.unread
}

func (c *oneVolume) CheckAffinity(*corev1.PersistentVolume) error { return c.affinity }

func (c *oneVolume) Driver(context.Context, string) (*storagev1.CSIDriver, error) {
	return c.driver, nil
}

// claimVolume is a pod's volume with a claim.
var claimVolume = &corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{
	PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "claim"},
}}

// requestFor is for a volume of a pod.
func requestFor(pod *corev1.Pod, v *corev1.Volume) Request {
	return Request{Request: podfs.Request{Pod: pod, Volume: v}, Limit: noLimit}
}

func noLimit(_ context.Context, call func() error) error { return call() }
