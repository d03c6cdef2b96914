package volumes

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodelet/nodelet/kube/pluginname"
	"github.com/nodelet/nodelet/kube/storage"
)

// TestRefreshWithoutClaim checks that a mounted volume whose claim cannot be read stays as it is and is refreshed
// later, and that a pod does not get a volume without its claim.
func TestRefreshWithoutClaim(t *testing.T) {
	t.Parallel()
	errUnread := errors.New("the API server does not answer")
	pv := modes(corev1.ReadWriteOnce)
	pv.Name, pv.Spec.Local = "local", &corev1.LocalVolumeSource{Path: t.TempDir()}
	for what, lose := range map[string]func(*oneVolume){
		"no answer":     func(c *oneVolume) { c.claim, c.unread = nil, errUnread },
		"claim deleted": func(c *oneVolume) { c.claim.PVC.DeletionTimestamp = &metav1.Time{} },
	} {
		cluster := &oneVolume{claim: &storage.Claim{PVC: &corev1.PersistentVolumeClaim{}, PV: pv}}
		manager := newTestManager(t, Config{Root: t.TempDir(), Cluster: cluster}, nil)
		r := lunRequest(claimVolume)
		mounted, err := manager.Mount(t.Context(), r, nil)
		if err != nil {
			t.Fatal(err)
		}
		lose(cluster)
		if _, err := manager.Mount(t.Context(), r, nil); err == nil {
			t.Errorf("%s, not mounted: got no error", what)
		}
		mounted.RefreshAt = time.Time{}
		r.Refresh, r.Mounted = true, mounted
		got, err := manager.Mount(t.Context(), r, nil)
		if err != nil || !got.RefreshAt.After(time.Now()) {
			t.Errorf("%s: got refresh at %v, error %v, want a later time", what, got.RefreshAt, err)
		}
		if got.RefreshAt = (time.Time{}); got != mounted {
			t.Errorf("%s: got %+v, want %+v", what, got, mounted)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := manager.Mount(ctx, r, nil); err == nil {
			t.Errorf("%s, cancelled: got no error", what)
		}
		if err := manager.Unmount(t.Context(), r.Pod.UID, OnDisk{Plugin: pluginname.Local, Name: pv.Name}); err != nil {
			t.Error(err)
		}
	}
}
