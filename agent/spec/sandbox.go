package spec

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// SandboxInput is what Sandbox needs to know. Pointers are to the caller's values and are only read.
type SandboxInput struct {
	Node *Node
	// Pod is the pod with the resources that were granted to it.
	Pod *corev1.Pod
	// Attempt numbers the sandboxes of the pod from 0.
	Attempt uint32
	// UserNS is the pod's user namespace. It is needed when spec.hostUsers is false.
	UserNS []IDMapping
	// ExtraGroups are the groups that annotations of the pod's persistent volumes demand.
	ExtraGroups []int64
	// ExclusiveCPUs tells that a container of the pod owns its CPUs; the sandbox then gets no CPU quota.
	ExclusiveCPUs bool
}

// Sandbox writes the CRI configuration of one of the pod's sandboxes. The warnings are for the pod's events. A failure is
// a *Reason.
func Sandbox(in *SandboxInput) (*runtimeapi.PodSandboxConfig, []Warning, error) {
	config, warnings, err := sandbox(in)
	if err != nil {
		return nil, nil, sandboxError(err)
	}
	return config, warnings, nil
}

func sandbox(in *SandboxInput) (*runtimeapi.PodSandboxConfig, []Warning, error) {
	pod, node := in.Pod, in.Node
	if err := checkPod(pod); err != nil {
		return nil, nil, err
	}
	dns, warnings, err := DNS(pod, node)
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
		LogDirectory: node.PodLogDir(pod.Namespace, pod.Name, pod.UID),
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
	sysctls, err := podSysctls(in.Pod)
	if err != nil {
		return nil, err
	}
	resources, overhead := SandboxResources(in.Pod, in.Node, in.ExclusiveCPUs)
	return &runtimeapi.LinuxPodSandboxConfig{
		CgroupParent:    parent,
		SecurityContext: security,
		Sysctls:         sysctls,
		Resources:       resources,
		Overhead:        overhead,
	}, nil
}

// portMappings lists the ports of all app containers and the host ports of sidecars, which the scheduler reserves too.
// In one container a name, or a port without one, counts once.
func portMappings(pod *corev1.Pod) ([]*runtimeapi.PortMapping, error) {
	var out []*runtimeapi.PortMapping
	for role, c := range podutil.Containers(&pod.Spec) {
		if role != podutil.RoleApp && role != podutil.RoleSidecar {
			continue
		}
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

// portKey is what makes a port unique.
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
		return nil, fmt.Errorf("protocol %q is not known", p.Protocol)
	}
	return &runtimeapi.PortMapping{
		Protocol:      runtimeapi.Protocol(protocol), // without one: 0, which is TCP
		ContainerPort: p.ContainerPort,
		HostPort:      p.HostPort,
		HostIp:        p.HostIP,
	}, nil
}

// podSysctls returns the pod's sysctls by name. Whether they are allowed on this node was decided at admission.
func podSysctls(pod *corev1.Pod) (map[string]string, error) {
	out := map[string]string{}
	if pod.Spec.SecurityContext == nil {
		return out, nil
	}
	for _, s := range pod.Spec.SecurityContext.Sysctls {
		if s.Name == "" || strings.Contains(s.Name, "..") {
			return nil, fmt.Errorf("sysctl name %q is not valid", s.Name)
		}
		out[dotted(s.Name)] = s.Value
	}
	return out, nil
}

// dotted writes a sysctl's name with dots, which runtimes want: net/ipv4/ip_forward becomes net.ipv4.ip_forward. Where
// slashes separate, a dot is part of a name and becomes a slash, as sysctl.d(5) describes.
func dotted(name string) string {
	if i := strings.IndexAny(name, "./"); i < 0 || name[i] == '.' {
		return name
	}
	return strings.Map(func(r rune) rune {
		switch r {
		case '.':
			return '/'
		case '/':
			return '.'
		}
		return r
	}, name)
}
