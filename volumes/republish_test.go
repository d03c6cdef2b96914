package volumes

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/csi"
)

// publishCalls returns how often the driver was asked to publish a volume.
func (m *migration) publishCalls(id string) int {
	return len(slices.DeleteFunc(m.driver.Calls(), func(call string) bool { return call != "NodePublishVolume "+id }))
}

// TestRepublishIsSwitchedOn checks that a volume of a running pod is refreshed whatever its CSIDriver says at the
// mount, and is published again once the CSIDriver requires that.
func TestRepublishIsSwitchedOn(t *testing.T) {
	m := newMigration(t)
	m.bind()
	yes, no := true, false
	spec := &m.oneVolume.driver.Spec
	spec.AttachRequired, spec.PodInfoOnMount = &no, &yes
	spec.VolumeLifecycleModes = append(spec.VolumeLifecycleModes, storagev1.VolumeLifecycleEphemeral)
	inline := &corev1.Volume{Name: "inline", VolumeSource: corev1.VolumeSource{
		CSI: &corev1.CSIVolumeSource{Driver: ebs},
	}}
	for uid, v := range map[types.UID]*corev1.Volume{"uid": claimVolume, "uid-2": inline} {
		r := lunRequest(v)
		r.Pod.UID = uid
		spec.RequiresRepublish = &no
		id := m.id
		if v == inline {
			id = csi.InlineHandle(uid, v.Name)
		}
		for i, c := range []struct {
			republish *bool
			calls     int
		}{{&no, 1}, {&no, 1}, {&yes, 2}, {&no, 2}} {
			spec.RequiresRepublish, r.Refresh = c.republish, i > 0
			got, err := m.manager.Mount(t.Context(), r, nil)
			if err != nil || got.RefreshAt.IsZero() {
				t.Errorf("%s: got refresh at %v, error %v, want a time", v.Name, got.RefreshAt, err)
			}
			if calls := m.publishCalls(id); calls != c.calls {
				t.Errorf("%s, step %d: got %d calls of NodePublishVolume, want %d", v.Name, i, calls, c.calls)
			}
		}
	}
	m.unmount(t, "uid-2")
	m.takeDown(t, "uid")
}

// TestLifecycleModeOfPublished checks that a volume which is published needs no CSIDriver that serves its kind: the
// object may be deleted and created again. A volume that is not published does.
func TestLifecycleModeOfPublished(t *testing.T) {
	m := newMigration(t)
	yes := true
	spec := &m.oneVolume.driver.Spec
	spec.PodInfoOnMount = &yes
	persistent := spec.VolumeLifecycleModes
	r := lunRequest(&corev1.Volume{Name: "inline", VolumeSource: corev1.VolumeSource{
		CSI: &corev1.CSIVolumeSource{Driver: ebs},
	}})
	if _, err := m.manager.Mount(t.Context(), r, nil); err == nil {
		t.Error("not published: got no error")
	}
	spec.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecycleEphemeral}
	if _, err := m.manager.Mount(t.Context(), r, nil); err != nil {
		t.Fatal(err)
	}
	spec.VolumeLifecycleModes, r.Refresh = persistent, true
	if _, err := m.manager.Mount(t.Context(), r, nil); err != nil {
		t.Errorf("published: got %v", err)
	}
	m.unmount(t, r.Pod.UID)
}
