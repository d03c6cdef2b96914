package pod_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

func TestStopSignal(t *testing.T) {
	for name, want := range map[corev1.Signal]runtimeapi.Signal{
		"SIGTERM":     runtimeapi.Signal_SIGNAL_SIGTERM,
		"SIGRTMIN":    runtimeapi.Signal_SIGNAL_SIGRTMIN,
		"SIGRTMIN+15": runtimeapi.Signal_SIGNAL_SIGRTMINPLUS15,
		"SIGRTMAX-14": runtimeapi.Signal_SIGNAL_SIGRTMAXMINUS14,
		"SIGCLD":      runtimeapi.Signal_SIGNAL_SIGCLD,
	} {
		if got, err := podutil.StopSignal(&corev1.Container{Lifecycle: &corev1.Lifecycle{StopSignal: &name}}); err != nil ||
			got != want {
			t.Errorf("%s: got %v %v, want %v", name, got, err, want)
		}
	}
	for _, lifecycle := range []*corev1.Lifecycle{nil, {}} {
		if got, err := podutil.StopSignal(&corev1.Container{Lifecycle: lifecycle}); err != nil ||
			got != runtimeapi.Signal_SIGNAL_RUNTIME_DEFAULT {
			t.Errorf("%v: got %v %v, want %v", lifecycle, got, err, runtimeapi.Signal_SIGNAL_RUNTIME_DEFAULT)
		}
	}
}
