package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/component-helpers/resource"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// Reasons and words of refusals; they are the kubelet's.
const (
	reasonUnexpectedAdmission  = "UnexpectedAdmissionError"
	reasonFeatureUnsupported   = "PodFeatureUnsupported"
	reasonOSSelector           = "PodOSSelectorNodeLabelDoesNotMatch"
	reasonOSNotSupported       = "PodOSNotSupported"
	reasonSupplementalGroups   = "SupplementalGroupsPolicyNotSupported"
	insufficientResourcePrefix = "OutOf"
)

// Admit decides whether a pod that is new on this node may run here. It asks what the kubelet asks, in the kubelet's order,
// and refuses what this agent cannot do instead of leaving it out silently.
//
// node is the Node object, or one made from the agent's own settings where there is no API server; nil leaves out what
// depends on it. allocatable is what the node can give away. others are the admitted pods that have not ended.
func Admit(pod *corev1.Pod, node *corev1.Node, allocatable corev1.ResourceList, others []*corev1.Pod) *Rejection {
	if r := unsupported(pod); r != nil {
		return r
	}
	if r := wrongOS(pod); r != nil {
		return r
	}
	if r := wrongGroupsPolicy(pod, node); r != nil {
		return r
	}
	if r := outOfResources(pod, allocatable, others); r != nil {
		return r
	}
	return wrongNode(pod, node, others)
}

// unsupported refuses what this agent cannot do.
func unsupported(pod *corev1.Pod) *Rejection {
	spec := &pod.Spec
	for i := range spec.Volumes {
		if spec.Volumes[i].GitRepo != nil {
			return &Rejection{reasonUnexpectedAdmission, fmt.Sprintf("volume %q: gitRepo volumes are not supported; "+
				"clone into an emptyDir from an init container instead", spec.Volumes[i].Name)}
		}
	}
	var missing []string
	if spec.HostNetwork && spec.HostUsers != nil && !*spec.HostUsers {
		missing = append(missing, "UserNamespacesHostNetworkSupport")
	}
	if len(missing) > 0 {
		return &Rejection{reasonFeatureUnsupported,
			"Pod requires node features that are not available: " + strings.Join(missing, ", ")}
	}
	return nil
}

func wrongOS(pod *corev1.Pod) *Rejection {
	if os, set := pod.Labels[corev1.LabelOSStable]; set && os != string(corev1.Linux) {
		return &Rejection{reasonOSSelector, "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label"}
	}
	if pod.Spec.OS != nil && pod.Spec.OS.Name != corev1.Linux {
		return &Rejection{reasonOSNotSupported, "Failed to admit pod as the OS field doesn't match node OS"}
	}
	return nil
}

// wrongGroupsPolicy: a strict policy for supplementary groups needs a runtime that knows it, which the node's status tells.
func wrongGroupsPolicy(pod *corev1.Pod, node *corev1.Node) *Rejection {
	sc := pod.Spec.SecurityContext
	if node == nil || sc == nil || sc.SupplementalGroupsPolicy == nil || *sc.SupplementalGroupsPolicy != corev1.SupplementalGroupsPolicyStrict {
		return nil
	}
	if f := node.Status.Features; f != nil && f.SupplementalGroupsPolicy != nil && *f.SupplementalGroupsPolicy {
		return nil
	}
	return &Rejection{reasonSupplementalGroups,
		fmt.Sprintf("SupplementalGroupsPolicy=%s is not supported in this node", corev1.SupplementalGroupsPolicyStrict)}
}

// outOfResources: the pod asks for more than is left.
func outOfResources(pod *corev1.Pod, allocatable corev1.ResourceList, others []*corev1.Pod) *Rejection {
	if used, capacity := int64(len(others)), allocatable.Pods().Value(); used+1 > capacity {
		return insufficient(corev1.ResourcePods, 1, used, capacity)
	}
	wants := takes(pod)
	names := slices.SortedFunc(maps.Keys(wants), func(a, b corev1.ResourceName) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a, b))
	})
	for _, name := range names {
		capacity, offered := allocatable[name]
		if !counted(name) || extended(name) && !offered {
			continue // an extended resource that the node does not know is the cluster's affair
		}
		want := wants[name]
		requested, used := amount(name, want), int64(0)
		for _, other := range others {
			used += amount(name, takes(other)[name])
		}
		if total := amount(name, capacity); requested > 0 && requested > total-used {
			return insufficient(name, requested, used, total)
		}
	}
	return nil
}

// takes is what a pod takes of the node, without the extended resources for which it has a resource claim.
func takes(pod *corev1.Pod) corev1.ResourceList {
	all := resource.PodRequests(pod, resource.PodResourcesOptions{})
	if s := pod.Status.ExtendedResourceClaimStatus; s != nil {
		for _, m := range s.RequestMappings {
			delete(all, corev1.ResourceName(m.ResourceName))
		}
	}
	return all
}

func insufficient(name corev1.ResourceName, requested, used, capacity int64) *Rejection {
	return &Rejection{insufficientResourcePrefix + string(name), fmt.Sprintf(
		"Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d", name, requested, used, capacity)}
}

// rank is the order in which resources are looked at, so that the first that lacks is always the same.
func rank(name corev1.ResourceName) int {
	switch name {
	case corev1.ResourceCPU:
		return 0
	case corev1.ResourceMemory:
		return 1
	case corev1.ResourceEphemeralStorage:
		return 2
	}
	return 3
}

// counted tells whether a resource is one that nodes give away.
func counted(name corev1.ResourceName) bool {
	return rank(name) < 3 || extended(name) || strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) ||
		strings.Contains(string(name), corev1.ResourceDefaultNamespacePrefix) ||
		strings.HasPrefix(string(name), corev1.ResourceAttachableVolumesPrefix)
}

// extended tells whether a resource is an extended one: outside the domain kubernetes.io, and no quota's name.
func extended(name corev1.ResourceName) bool {
	n := string(name)
	return strings.Contains(n, "/") && !strings.Contains(n, corev1.ResourceDefaultNamespacePrefix) &&
		!strings.HasPrefix(n, corev1.DefaultResourceRequestsPrefix)
}

// amount is a quantity in the unit that the kubelet counts in: thousandths of a CPU, else ones.
func amount(name corev1.ResourceName, q apiresource.Quantity) int64 {
	if name == corev1.ResourceCPU {
		return q.MilliValue()
	}
	return q.Value()
}

// wrongNode: the pod is for another node, or something here keeps it away.
func wrongNode(pod *corev1.Pod, node *corev1.Node, others []*corev1.Pod) *Rejection {
	if node != nil {
		if fits, _ := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node); !fits {
			return failed("NodeAffinity", "node(s) didn't match Pod's node affinity/selector")
		}
		if pod.Spec.NodeName != "" && pod.Spec.NodeName != node.Name {
			return failed("NodeName", "node(s) didn't match the requested node name")
		}
	}
	if portTaken(pod, others) {
		return failed("NodePorts", "node(s) didn't have free ports for the requested pod ports")
	}
	if node != nil && !podutil.IsStatic(pod) && untolerated(pod, node) {
		return failed("TaintToleration", "node(s) had taints that the pod didn't tolerate")
	}
	return nil
}

func failed(predicate, why string) *Rejection {
	return &Rejection{predicate, fmt.Sprintf("Predicate %s failed: %s", predicate, why)}
}

// hostPort is a port of the node that a pod takes.
type hostPort struct {
	ip       string
	protocol corev1.Protocol
	port     int32
}

// anyIP stands for all addresses of the node.
const anyIP = "0.0.0.0"

func (p hostPort) conflicts(q hostPort) bool {
	return p.protocol == q.protocol && p.port == q.port && (p.ip == q.ip || p.ip == anyIP || q.ip == anyIP)
}

// hostPorts are the ports of a pod's containers, with its sidecars.
func hostPorts(pod *corev1.Pod) []hostPort {
	var all []hostPort
	add := func(c *corev1.Container) {
		for _, p := range c.Ports {
			if p.HostPort > 0 {
				all = append(all, hostPort{cmp.Or(p.HostIP, anyIP), cmp.Or(p.Protocol, corev1.ProtocolTCP), p.HostPort})
			}
		}
	}
	for i := range pod.Spec.Containers {
		add(&pod.Spec.Containers[i])
	}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; podutil.IsSidecar(c) {
			add(c)
		}
	}
	return all
}

func portTaken(pod *corev1.Pod, others []*corev1.Pod) bool {
	wants := hostPorts(pod)
	if len(wants) == 0 {
		return false
	}
	for _, other := range others {
		for _, has := range hostPorts(other) {
			if slices.ContainsFunc(wants, has.conflicts) {
				return true
			}
		}
	}
	return false
}

// untolerated: the node has a taint that would drive the pod out at once.
func untolerated(pod *corev1.Pod, node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool {
		return taint.Effect == corev1.TaintEffectNoExecute && !slices.ContainsFunc(pod.Spec.Tolerations,
			func(t corev1.Toleration) bool { return tolerates(t, taint) })
	})
}

func tolerates(t corev1.Toleration, taint corev1.Taint) bool {
	if t.Effect != "" && t.Effect != taint.Effect || t.Key != "" && t.Key != taint.Key {
		return false
	}
	switch t.Operator {
	case corev1.TolerationOpExists:
		return true
	case "", corev1.TolerationOpEqual:
		return t.Value == taint.Value
	}
	return false
}
