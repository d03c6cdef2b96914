package volumes

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/kube/pluginname"
	"github.com/nodelet/nodelet/kube/storage"
)

// errAffinity is what the node affinity of a volume says once the labels of the node have changed.
var errAffinity = errors.New("no matching NodeSelectorTerms")

// TestAffinityOfMountedCSI checks that the node affinity of a volume matters when its driver is called, and not for a
// volume that is published: the labels of a node may change, and its Node object be created again.
func TestAffinityOfMountedCSI(t *testing.T) {
	m := newMigration(t)
	m.bind()
	yes := true
	r := lunRequest(claimVolume)
	for i, c := range []struct {
		what      string
		affinity  error
		republish bool
		want      error
	}{
		{"not mounted, elsewhere", errAffinity, false, errAffinity},
		{"mounted here", nil, false, nil},
		{"mounted, elsewhere now", errAffinity, false, nil},
		{"published again, elsewhere now", errAffinity, true, errAffinity},
	} {
		m.affinity, r.Refresh = c.affinity, i > 1
		if c.republish {
			m.oneVolume.driver.Spec.RequiresRepublish = &yes
		}
		if _, err := m.manager.Mount(t.Context(), r, nil); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", c.what, err, c.want)
		}
	}
	if calls := m.publishCalls(m.id); calls != 1 {
		t.Errorf("got %d calls of NodePublishVolume, want 1", calls)
	}
	m.takeDown(t, r.Pod.UID)
}

// TestAffinityOfMountedLocal checks that the node affinity of a local volume matters when it is mounted, and not when
// it is refreshed.
func TestAffinityOfMountedLocal(t *testing.T) {
	t.Parallel()
	pv := modes(corev1.ReadWriteOnce)
	pv.Name, pv.Spec.Local = "local", &corev1.LocalVolumeSource{Path: t.TempDir()}
	cluster := &oneVolume{claim: &storage.Claim{PVC: &corev1.PersistentVolumeClaim{}, PV: pv}, affinity: errAffinity}
	manager := newTestManager(t, Config{Root: t.TempDir(), Cluster: cluster}, nil)
	r := lunRequest(claimVolume)
	if _, err := manager.Mount(t.Context(), r, nil); !errors.Is(err, errAffinity) {
		t.Errorf("not mounted: got %v, want %v", err, errAffinity)
	}
	cluster.affinity = nil
	if _, err := manager.Mount(t.Context(), r, nil); err != nil {
		t.Fatal(err)
	}
	cluster.affinity, r.Refresh = errAffinity, true
	if _, err := manager.Mount(t.Context(), r, nil); err != nil {
		t.Errorf("mounted: got %v", err)
	}
	if err := manager.Unmount(t.Context(), r.Pod.UID, OnDisk{Plugin: pluginname.Local, Name: "local"}); err != nil {
		t.Error(err)
	}
}
