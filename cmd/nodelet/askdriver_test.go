package main

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodelet/nodelet/csi"
	"github.com/nodelet/nodelet/kube/status"
)

// People hear of an abnormal volume, and of nothing else.
func TestVolumeHealth(t *testing.T) {
	t.Parallel()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}}
	sick, well := &csi.Condition{Abnormal: true, Message: "the disk is on fire"}, &csi.Condition{Message: "fine"}
	for _, c := range []struct {
		condition   *csi.Condition
		known, told bool
	}{{sick, true, true}, {well, true, false}, {nil, false, false}} {
		var log bytes.Buffer
		n := &nodelet{recorder: status.NewRecorder(status.RecorderConfig{Log: slog.New(slog.NewTextHandler(&log, nil))})}
		got := n.volumeHealth(pod, "data", c.condition)
		if (got != nil) != c.known || c.known && *got != c.condition.Abnormal {
			t.Errorf("%+v: %v", c.condition, got)
		}
		told := strings.Contains(log.String(), "VolumeConditionAbnormal") && strings.Contains(log.String(), "Volume data: the disk is on fire")
		if told != c.told || !c.told && log.Len() > 0 {
			t.Errorf("%+v: told %s", c.condition, log.String())
		}
	}
}
