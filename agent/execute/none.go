package execute

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/host/userns"
)

// NoDevices is a node without device plugins.
type NoDevices struct{}

// Container adds nothing.
func (NoDevices) Container(context.Context, *corev1.Pod, *corev1.Container) (
	*deviceplugin.ContainerAllocateResponse, error) {
	return nil, nil
}

// Release does nothing.
func (NoDevices) Release(types.UID) {}

// NoPlacement is a node on which all containers share all CPUs and all memory.
type NoPlacement struct{}

// Created returns no restriction.
func (NoPlacement) Created(types.UID, string) (cpus, nodes string) { return "", "" }

// Started does nothing.
func (NoPlacement) Started(*corev1.Pod, string) {}

// Release does nothing.
func (NoPlacement) Release(types.UID) {}

// NoClaims is a node without Dynamic Resource Allocation.
type NoClaims struct{}

// Prepare returns an error.
func (NoClaims) Prepare(context.Context, *corev1.Pod) error {
	return errors.New("this node agent does not prepare resource claims")
}

// Unprepare does nothing.
func (NoClaims) Unprepare(context.Context, types.UID) error { return nil }

// Devices adds nothing.
func (NoClaims) Devices(*corev1.Pod, *corev1.Container) ([]string, error) { return nil, nil }

// NoUserNamespaces is a node without user namespaces for pods.
type NoUserNamespaces struct{}

// Of returns an error.
func (NoUserNamespaces) Of(types.UID) (userns.Range, error) {
	return userns.Range{}, noUserNamespaces("")
}

// Release does nothing.
func (NoUserNamespaces) Release(types.UID) {}

// NoMetrics counts nothing.
type NoMetrics struct{}

// Step does nothing.
func (NoMetrics) Step(*corev1.Pod, podstate.Step, time.Duration, *podstate.Problem) {}

// Pulled does nothing.
func (NoMetrics) Pulled(uint64, time.Duration) {}
