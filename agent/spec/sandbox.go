package spec

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/node/util/sysctl"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// SandboxInput is the input of Sandbox. Pointers refer to values of the caller, which Sandbox only reads.
type SandboxInput struct {
	Node *Node
	// Pod is the pod with its allocated resources.
	Pod *corev1.Pod
	// Attempt numbers the sandboxes of the pod from 0.
	Attempt uint32
	// UserNS is the pod's user namespace, for both users and groups. It is required if spec.hostUsers is false.
	UserNS []*runtimeapi.IDMapping
}

// Sandbox returns the CRI configuration of one of the pod's sandboxes. The warnings become events of the pod. An
// error is a *Reason.
func Sandbox(in *SandboxInput) (*runtimeapi.PodSandboxConfig, []Warning, error) {
	config, warnings, err := sandbox(in)
	if err != nil {
		return nil, nil, sandboxError(err)
	}
	return config, warnings, nil
}

func sandbox(in *SandboxInput) (*runtimeapi.PodSandboxConfig, []Warning, error) {
	pod, node := in.Pod, in.Node
	if err := podutil.CheckIdentity(pod); err != nil {
		return nil, nil, err
	}
	dns, warnings, err := dnsConfig(pod, node)
	if err != nil {
		return nil, nil, err
	}
	hostname := ""
	if !pod.Spec.HostNetwork {
		if hostname, err = kernelHostname(pod, node.ClusterDomain); err != nil {
			return nil, nil, err
		}
	}
	ports, err := portMappings(pod)
	if err != nil {
		return nil, nil, err
	}
	linux, err := sandboxLinux(in)
	if err != nil {
		return nil, nil, err
	}
	return &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{
			Name:      pod.Name,
			Uid:       string(pod.UID),
			Namespace: pod.Namespace,
			Attempt:   in.Attempt,
		},
		Hostname:     hostname,
		LogDirectory: node.PodLogDir(pod),
		DnsConfig:    dns,
		PortMappings: ports,
		Labels:       sandboxLabels(pod),
		Annotations:  pod.Annotations,
		Linux:        linux,
	}, warnings, nil
}

func sandboxLinux(in *SandboxInput) (*runtimeapi.LinuxPodSandboxConfig, error) {
	parent, err := in.Node.Cgroups.Pod(in.Pod.UID, podutil.QOS(in.Pod))
	if err != nil {
		return nil, err
	}
	security, err := sandboxSecurity(in)
	if err != nil {
		return nil, err
	}
	sysctls, err := podSysctls(in.Pod, in.Node)
	if err != nil {
		return nil, err
	}
	resources, overhead := SandboxResources(in.Pod, in.Node)
	return &runtimeapi.LinuxPodSandboxConfig{
		CgroupParent:    parent,
		SecurityContext: security,
		Sysctls:         sysctls,
		Resources:       resources,
		Overhead:        overhead,
	}, nil
}

// portMappings lists the ports of all app containers and the host ports of sidecars, which the scheduler reserves too.
// Ports of one container that have the same name are listed once; so are equal ports without a name.
func portMappings(pod *corev1.Pod) ([]*runtimeapi.PortMapping, error) {
	var out []*runtimeapi.PortMapping
	for role, c := range podutil.AppsAndSidecars(&pod.Spec) {
		seen := map[string]bool{}
		for _, p := range c.Ports {
			key := portKey(p)
			if seen[key] || role == podutil.RoleSidecar && p.HostPort == 0 {
				continue
			}
			seen[key] = true
			mapping, err := portMapping(p)
			if err != nil {
				return nil, fmt.Errorf("port %d of container %s: %w", p.ContainerPort, c.Name, err)
			}
			out = append(out, mapping)
		}
	}
	return out, nil
}

// portKey returns what identifies a port within its container.
func portKey(p corev1.ContainerPort) string {
	if p.Name != "" {
		return p.Name
	}
	return fmt.Sprintf("%s/%s/%d/%d", p.Protocol, p.HostIP, p.ContainerPort, p.HostPort)
}

func portMapping(p corev1.ContainerPort) (*runtimeapi.PortMapping, error) {
	for _, port := range []int32{p.ContainerPort, p.HostPort} {
		if port < 0 || port > 65535 {
			return nil, fmt.Errorf("%d is not a port number", port)
		}
	}
	protocol, ok := runtimeapi.Protocol_value[string(p.Protocol)]
	if !ok && p.Protocol != "" {
		return nil, fmt.Errorf("unknown protocol %q", p.Protocol)
	}
	return &runtimeapi.PortMapping{
		Protocol:      runtimeapi.Protocol(protocol), // 0, which is TCP, if the spec sets none
		ContainerPort: p.ContainerPort,
		HostPort:      p.HostPort,
		HostIp:        p.HostIP,
	}, nil
}

// podSysctls returns the sysctls of the node's configuration and those of the pod, which count before them, by name.
// Admission has already checked whether this node allows the pod's.
func podSysctls(pod *corev1.Pod, node *Node) (map[string]string, error) {
	out := defaultSysctls(pod, node)
	if pod.Spec.SecurityContext == nil {
		return out, nil
	}
	for _, s := range pod.Spec.SecurityContext.Sysctls {
		if s.Name == "" || strings.Contains(s.Name, "..") {
			return nil, fmt.Errorf("sysctl name %q is not valid", s.Name)
		}
		out[sysctl.NormalizeName(s.Name)] = s.Value
	}
	return out, nil
}

// defaultSysctls returns the sysctls of the node's configuration that belong to a namespace of the pod's own: others
// would change the host.
func defaultSysctls(pod *corev1.Pod, node *Node) map[string]string {
	own := map[sysctl.Namespace]bool{
		sysctl.IPCNamespace:  !pod.Spec.HostIPC,
		sysctl.NetNamespace:  !pod.Spec.HostNetwork,
		sysctl.UTSNamespace:  !pod.Spec.HostNetwork,
		sysctl.UserNamespace: podutil.HasUserNamespace(&pod.Spec),
	}
	out := map[string]string{}
	for name, value := range node.DefaultSysctls {
		if namespace, _, _ := sysctl.GetNamespace(name); own[namespace] {
			out[sysctl.NormalizeName(name)] = value
		}
	}
	return out
}
