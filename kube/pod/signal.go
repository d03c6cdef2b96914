package pod

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// StopSignal returns the signal of lifecycle.stopSignal, or that of the runtime if it is not set. The API writes
// real-time signals as SIGRTMIN+2 and SIGRTMAX-2, the CRI as SIGNAL_SIGRTMINPLUS2 and SIGNAL_SIGRTMAXMINUS2. The error
// names a signal that Linux does not have.
func StopSignal(c *corev1.Container) (runtimeapi.Signal, error) {
	if c.Lifecycle == nil || c.Lifecycle.StopSignal == nil {
		return runtimeapi.Signal_SIGNAL_RUNTIME_DEFAULT, nil
	}
	name := string(*c.Lifecycle.StopSignal)
	value, ok := runtimeapi.Signal_value["SIGNAL_"+strings.NewReplacer("+", "PLUS", "-", "MINUS").Replace(name)]
	if !ok || !strings.HasPrefix(name, "SIG") || strings.Contains(name, "PLUS") || strings.Contains(name, "MINUS") {
		return 0, fmt.Errorf("unknown signal %q in lifecycle.stopSignal", name)
	}
	return runtimeapi.Signal(value), nil
}
