package volumes

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodelet/nodelet/csi"
)

// TestVolumeHealth checks that an event reports an abnormal volume, and no other.
func TestVolumeHealth(t *testing.T) {
	t.Parallel()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}}
	sick, well := &csi.Condition{Abnormal: true, Message: "the disk is on fire"}, &csi.Condition{Message: "fine"}
	for _, c := range []struct {
		condition    *csi.Condition
		known, event bool
	}{{sick, true, true}, {well, true, false}, {nil, false, false}} {
		var events []string
		m := &Manager{cfg: Config{Event: func(_ *corev1.Pod, _, reason, message string) {
			events = append(events, reason+": "+message)
		}}}
		got := m.abnormal(pod, "data", c.condition)
		if (got != nil) != c.known || c.known && *got != c.condition.Abnormal {
			t.Errorf("%+v: got %v", c.condition, got)
		}
		want := []string(nil)
		if c.event {
			want = []string{"VolumeConditionAbnormal: Volume data: the disk is on fire"}
		}
		if !slices.Equal(events, want) {
			t.Errorf("%+v: got events %q, want %q", c.condition, events, want)
		}
	}
}

// TestOwnStorage checks which volumes have figures of their own in /stats/summary, and of which a driver is asked.
func TestOwnStorage(t *testing.T) {
	t.Parallel()
	for path, want := range map[string][2]bool{
		"/r/plugins/kubernetes.io/csi/volumeDevices/publish/pv/u":      {true, true},
		"/r/plugins/kubernetes.io/iscsi/volumeDevices/iface-a/lun-0/u": {true, false},
		"/dev/disk/by-id/wwn-1": {true, false},
		"":                      {false, false},
	} {
		if own, ofDriver := ownStorage(path, true); own != want[0] || ofDriver != want[1] {
			t.Errorf("device %s: got %t, %t, want %v", path, own, ofDriver, want)
		}
	}
	for path, want := range map[string][2]bool{
		"/r/pods/u/volumes/kubernetes.io~csi/pv/mount":       {true, true},
		"/r/pods/u/volumes/kubernetes.io~iscsi/pv":           {true, false},
		"/r/pods/u/volumes/kubernetes.io~nfs/share":          {true, false},
		"/r/pods/u/volumes/kubernetes.io~local-volume/mount": {true, false},
		"/r/pods/u/volumes/kubernetes.io~empty-dir/mount":    {false, false},
		"/srv/mount": {false, false},
		"":           {false, false},
	} {
		if own, ofDriver := ownStorage(path, false); own != want[0] || ofDriver != want[1] {
			t.Errorf("%s: got %t, %t, want %v", path, own, ofDriver, want)
		}
	}
}
