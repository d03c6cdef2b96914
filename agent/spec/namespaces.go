package spec

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// namespaces returns which namespaces the pod has and which it shares with the node.
func namespaces(pod *corev1.Pod, mappings []*runtimeapi.IDMapping) (*runtimeapi.NamespaceOption, error) {
	userns, err := userNamespace(pod, mappings)
	if err != nil {
		return nil, err
	}
	out := &runtimeapi.NamespaceOption{
		Network:       runtimeapi.NamespaceMode_POD,
		Pid:           runtimeapi.NamespaceMode_CONTAINER,
		Ipc:           runtimeapi.NamespaceMode_POD,
		UsernsOptions: userns,
	}
	if pod.Spec.HostNetwork {
		out.Network = runtimeapi.NamespaceMode_NODE
	}
	if pod.Spec.HostIPC {
		out.Ipc = runtimeapi.NamespaceMode_NODE
	}
	switch {
	case pod.Spec.HostPID:
		out.Pid = runtimeapi.NamespaceMode_NODE
	case ptr.Deref(pod.Spec.ShareProcessNamespace, false):
		out.Pid = runtimeapi.NamespaceMode_POD
	}
	return out, nil
}

// containerNamespaces returns the namespaces of a container. An ephemeral container joins the process namespace of its
// target, unless all containers of the pod share one anyway. Then it does not matter whether the target runs.
func containerNamespaces(in *ContainerInput) (*runtimeapi.NamespaceOption, error) {
	out, err := namespaces(in.Pod, in.UserNS)
	target := podutil.Target(&in.Pod.Spec, in.Container.Name)
	if err != nil || target == "" || out.Pid != runtimeapi.NamespaceMode_CONTAINER {
		return out, err
	}
	if in.TargetID == "" {
		return nil, fmt.Errorf("unable to find target container %v", target)
	}
	out.Pid, out.TargetId = runtimeapi.NamespaceMode_TARGET, in.TargetID
	return out, nil
}

// userNamespace returns the pod's user namespace. It is that of the node unless spec.hostUsers is false.
func userNamespace(pod *corev1.Pod, mappings []*runtimeapi.IDMapping) (*runtimeapi.UserNamespace, error) {
	if !podutil.HasUserNamespace(&pod.Spec) {
		return &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_NODE}, nil
	}
	root := false
	for _, m := range mappings {
		if m.HostId == 0 || m.Length == 0 {
			return nil, fmt.Errorf("spec.hostUsers is false, but the mapping of %d IDs from %d to host ID %d is not valid: "+
				"it is empty or maps to root of the host", m.Length, m.ContainerId, m.HostId)
		}
		root = root || m.ContainerId == 0
	}
	if !root {
		return nil, errors.New("spec.hostUsers is false, but no host ID is allocated for the pod's root user")
	}
	return &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: mappings, Gids: mappings}, nil
}
