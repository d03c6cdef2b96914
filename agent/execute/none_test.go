package execute

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// noDevices is a node without device plugins.
type noDevices struct{}

func (noDevices) Container(context.Context, *corev1.Pod, *corev1.Container) (
	*deviceplugin.ContainerAllocateResponse, error) {
	return nil, nil
}

func (noDevices) Release(types.UID) {}

// noClaims is a node without Dynamic Resource Allocation.
type noClaims struct{}

func (noClaims) Prepare(context.Context, *corev1.Pod) error {
	return errors.New("this node does not prepare resource claims")
}

func (noClaims) Unprepare(context.Context, types.UID) error { return nil }

func (noClaims) Devices(*corev1.Pod, *corev1.Container) ([]string, error) { return nil, nil }

// presentCgroups are the cgroups of pods that nobody has removed.
type presentCgroups struct{ Cgroups }

func (presentCgroups) Restore(*corev1.Pod) error { return nil }
