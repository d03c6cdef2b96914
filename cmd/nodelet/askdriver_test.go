package main

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodelet/nodelet/config"
	"github.com/nodelet/nodelet/csi"
	"github.com/nodelet/nodelet/kube/status"
)

// People hear of an abnormal volume where the gate is on, and of nothing else.
func TestVolumeHealth(t *testing.T) {
	t.Parallel()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}}
	sick, well := &csi.Condition{Abnormal: true, Message: "the disk is on fire"}, &csi.Condition{Message: "fine"}
	for _, c := range []struct {
		gate        bool
		condition   *csi.Condition
		known, told bool
	}{{true, sick, true, true}, {true, well, true, false}, {true, nil, false, false}, {false, sick, false, false}} {
		var log bytes.Buffer
		n := &nodelet{cfg: &config.Config{}, recorder: status.NewRecorder(status.RecorderConfig{Log: slog.New(slog.NewTextHandler(&log, nil))})}
		n.cfg.Kubelet.FeatureGates = map[string]bool{"CSIVolumeHealth": c.gate}
		got := n.volumeHealth(pod, "data", c.condition)
		if (got != nil) != c.known || c.known && *got != c.condition.Abnormal {
			t.Errorf("%+v with the gate %t: %v", c.condition, c.gate, got)
		}
		told := strings.Contains(log.String(), "VolumeConditionAbnormal") && strings.Contains(log.String(), "Volume data: the disk is on fire")
		if told != c.told || !c.told && log.Len() > 0 {
			t.Errorf("%+v with the gate %t: told %s", c.condition, c.gate, log.String())
		}
	}
}
