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
	m := &Manager{cfg: Config{Root: "/r"}}
	for _, c := range []struct {
		path        string
		device, own bool
		directory   string // of the volume of a driver
	}{
		{"/r/plugins/kubernetes.io/csi/volumeDevices/publish/pv/u", true, true, "pv"},
		{"/r/plugins/kubernetes.io/iscsi/volumeDevices/iface-a/lun-0/u", true, true, ""},
		{"/dev/disk/by-id/wwn-1", true, true, ""},
		{"", true, false, ""},
		{"/r/pods/u/volumes/kubernetes.io~csi/pv/mount", false, true, "pv"},
		{"/r/pods/u/volumes/kubernetes.io~iscsi/pv", false, true, ""},
		{"/r/pods/u/volumes/kubernetes.io~nfs/share", false, true, ""},
		{"/r/pods/u/volumes/kubernetes.io~local-volume/mount", false, true, ""},
		{"/r/pods/u/volumes/kubernetes.io~empty-dir/mount", false, false, ""},
		{"/srv/mount", false, false, ""},
		{"/srv/kubernetes.io~nfs/share", false, false, ""},
		{"/srv/kubernetes.io~csi/pv/mount", false, false, ""},
		{"", false, false, ""},
	} {
		if own, directory := m.ownStorage("u", c.path, c.device); own != c.own || directory != c.directory {
			t.Errorf("%s, device %t: got %t, %q, want %t, %q", c.path, c.device, own, directory, c.own, c.directory)
		}
	}
}
