package agent

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/nodelet/nodelet/agent/podstate"
)

// complete puts implementations that do nothing in place of what a node does not have.
func (h *Backends) complete() *Backends {
	if h.Devices == nil {
		h.Devices = noDevices{}
	}
	if h.Claims == nil {
		h.Claims = noResourceClaims{}
	}
	if h.Metrics == nil {
		h.Metrics = noMetrics{}
	}
	if h.Doomed == nil {
		h.Doomed = func(*corev1.Pod) *Eviction { return nil }
	}
	if h.Handler == nil {
		h.Handler = func(string) Handler { return Handler{} }
	}
	if h.NetworkProblem == nil {
		h.NetworkProblem = func(types.UID) string { return "" }
	}
	if h.Gone == nil {
		h.Gone = func() {}
	}
	return h
}

// noDevices is a node without device plugins.
type noDevices struct{}

func (noDevices) Reserve(*corev1.Pod, func(types.UID) bool) (func(context.Context) error, error) {
	return nil, nil
}

func (noDevices) Container(context.Context, *corev1.Pod, *corev1.Container) (
	*deviceplugin.ContainerAllocateResponse, error) {
	return nil, nil
}

func (noDevices) Release(types.UID) {}

// noResourceClaims is a node without Dynamic Resource Allocation.
type noResourceClaims struct{}

func (noResourceClaims) Prepare(context.Context, *corev1.Pod) error {
	return errors.New("this node agent does not prepare resource claims")
}

func (noResourceClaims) Unprepare(context.Context, types.UID) error { return nil }

func (noResourceClaims) Holds(types.UID) bool { return false }

func (noResourceClaims) Pods() []types.UID { return nil }

func (noResourceClaims) Devices(*corev1.Pod, *corev1.Container) ([]string, error) { return nil, nil }

// noMetrics counts nothing.
type noMetrics struct{}

func (noMetrics) Step(*corev1.Pod, podstate.Step, time.Duration, *podstate.Problem) {}
func (noMetrics) Synced(string, time.Duration)                                      {}
func (noMetrics) Pulled(uint64, time.Duration)                                      {}
func (noMetrics) Running(*corev1.Pod, time.Time, time.Duration)                     {}
func (noMetrics) Ended(*corev1.Pod, string, *corev1.ContainerStateTerminated)       {}
func (noMetrics) Relisted(time.Time, time.Duration)                                 {}
func (noMetrics) Rejected(string)                                                   {}
func (noMetrics) Preempted(string)                                                  {}
func (noMetrics) Gone(*corev1.Pod)                                                  {}
