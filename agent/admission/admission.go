// Package admission decides whether a new pod may run on this node.
//
// It is pure: it owns no data and does no I/O. Rejections have the kubelet's reasons and messages, and the checks run
// in the kubelet's order. A feature that this agent does not support leads to a rejection; it is never ignored
// silently. For a critical pod the package also selects the pods to preempt. The supervisor calls it once for each
// new pod. A crash leaves nothing behind.
package admission

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/nodelet/nodelet/agent/podstate"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// Reasons of rejections. They are the same as the kubelet's.
const (
	reasonFeatureUnsupported = "PodFeatureUnsupported"
	reasonOSSelector         = "PodOSSelectorNodeLabelDoesNotMatch"
	reasonOSNotSupported     = "PodOSNotSupported"
	reasonSupplementalGroups = "SupplementalGroupsPolicyNotSupported"
	outOf                    = "OutOf"

	// ReasonNodeAffinity is the reason for a pod whose selector or affinity the Node object does not match.
	ReasonNodeAffinity = "NodeAffinity"
)

// Node holds the facts about the node that admission depends on.
type Node struct {
	// Object is the Node object, or one built from the agent's settings if there is no API server. If it is nil, the
	// checks that depend on it are skipped, and it declares no features.
	Object *corev1.Node
	// Allocatable is what all pods together may request.
	Allocatable corev1.ResourceList
	// Device reports whether a resource belongs to a device plugin. Devices are counted when they are allocated: a pod
	// that has some is not refused because their plugin is gone.
	Device func(resource string) bool
	// Volume returns an error if the agent cannot mount a volume.
	Volume func(*corev1.Volume) error
	// UnsafeSysctls are the sysctls that pods may set in addition to the safe ones (KubeletConfiguration
	// allowedUnsafeSysctls): names, or prefixes that end in *.
	UnsafeSysctls []string
	// AppArmor: the kernel enforces AppArmor profiles.
	AppArmor bool
}

// Decision is the result of admission. The zero value admits the pod.
type Decision struct {
	// Rejection is why the pod may not run on this node; nil if it may.
	Rejection *podstate.Rejection
	// Preempt are the pods that must end before this critical pod can run: nil if it fits, or if Rejection is set.
	Preempt []*corev1.Pod
	// Short is the first resource of which the node has too little: Preempt is to free it, or it is missing.
	Short corev1.ResourceName
}

// Admit decides whether pod may run. others are the admitted pods that have not ended, with their allocated resources
// and, in their statuses, those that they have; without those that are already being preempted.
func Admit(pod *corev1.Pod, node Node, others []*corev1.Pod) Decision {
	for _, check := range []*podstate.Rejection{
		wrongVolume(pod, node.Volume), forbidden(pod, &node), unsupported(pod, node.Object), wrongOS(pod),
		wrongGroupsPolicy(pod, node.Object),
	} {
		if check != nil {
			return Decision{Rejection: check}
		}
	}
	short := slices.DeleteFunc(shortages(pod, node.Allocatable, others),
		func(s shortage) bool { return node.Device(string(s.name)) })
	misfit := wrongNode(pod, node.Object, others)
	switch {
	case len(short) == 0 || podutil.IsCritical(pod) && misfit != nil:
		return Decision{Rejection: misfit}
	case !podutil.IsCritical(pod):
		return Decision{Rejection: short[0].rejection(), Short: short[0].name}
	}
	victims, missing := preempt(pod, short, others)
	if len(missing) > 0 {
		return Decision{Rejection: cannotPreempt(missing), Short: short[0].name}
	}
	return Decision{Preempt: victims, Short: short[0].name}
}

func reject(reason, message string) *podstate.Rejection {
	return &podstate.Rejection{Reason: reason, Message: message}
}

// wrongVolume rejects a pod with a volume that the agent cannot mount.
func wrongVolume(pod *corev1.Pod, supported func(*corev1.Volume) error) *podstate.Rejection {
	for v := range podutil.UsedVolumes(&pod.Spec) {
		if err := supported(v); err != nil {
			return reject(podutil.ReasonUnexpectedAdmission, err.Error())
		}
	}
	return nil
}

// unsupported rejects features that this agent does not support, or that the node does not declare.
func unsupported(pod *corev1.Pod, node *corev1.Node) *podstate.Rejection {
	var missing []string
	if s := &pod.Spec; s.HostNetwork && podutil.HasUserNamespace(s) {
		missing = append(missing, "UserNamespacesHostNetworkSupport")
	}
	// Runtimes without this feature would ignore the options.
	if declared := node != nil && slices.Contains(node.Status.DeclaredFeatures, bindMountOptions); !declared &&
		hasBindMountOptions(pod) {
		missing = append(missing, bindMountOptions)
	}
	if len(missing) == 0 {
		return nil
	}
	return reject(reasonFeatureUnsupported,
		"Pod requires node features that are not available: "+strings.Join(missing, ", "))
}

// bindMountOptions is the feature without which volume mounts have no options.
const bindMountOptions = "VolumeBindMountOptions"

func hasBindMountOptions(pod *corev1.Pod) bool {
	for _, c := range podutil.Containers(&pod.Spec) {
		if slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return len(m.BindMountOptions) > 0 }) {
			return true
		}
	}
	return false
}

func wrongOS(pod *corev1.Pod) *podstate.Rejection {
	if os, set := pod.Labels[corev1.LabelOSStable]; set && os != string(corev1.Linux) {
		return reject(reasonOSSelector, "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label")
	}
	if pod.Spec.OS != nil && pod.Spec.OS.Name != corev1.Linux {
		return reject(reasonOSNotSupported, "Failed to admit pod as the OS field doesn't match node OS")
	}
	return nil
}

// wrongGroupsPolicy rejects a strict policy for supplemental groups if the node's status does not declare the feature.
func wrongGroupsPolicy(pod *corev1.Pod, node *corev1.Node) *podstate.Rejection {
	sc := pod.Spec.SecurityContext
	if node == nil || sc == nil || sc.SupplementalGroupsPolicy == nil ||
		*sc.SupplementalGroupsPolicy != corev1.SupplementalGroupsPolicyStrict {
		return nil
	}
	if f := node.Status.Features; f != nil && f.SupplementalGroupsPolicy != nil && *f.SupplementalGroupsPolicy {
		return nil
	}
	return reject(reasonSupplementalGroups,
		fmt.Sprintf("SupplementalGroupsPolicy=%s is not supported in this node", corev1.SupplementalGroupsPolicyStrict))
}

// wrongNode rejects a pod whose selector, affinity or node name does not match this node, whose host port is in use, or
// which does not tolerate a taint.
func wrongNode(pod *corev1.Pod, node *corev1.Node, others []*corev1.Pod) *podstate.Rejection {
	if node != nil {
		if fits, _ := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node); !fits {
			return failed(ReasonNodeAffinity, "node(s) didn't match Pod's node affinity/selector")
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

func failed(predicate, why string) *podstate.Rejection {
	return reject(predicate, fmt.Sprintf("Predicate %s failed: %s", predicate, why))
}

// hostPort is a port of the node that a pod uses.
type hostPort struct {
	ip       string
	protocol corev1.Protocol
	port     int32
}

// anyIP means all addresses of the node.
const anyIP = "0.0.0.0"

func (p hostPort) conflicts(q hostPort) bool {
	return p.protocol == q.protocol && p.port == q.port && (p.ip == q.ip || p.ip == anyIP || q.ip == anyIP)
}

// hostPorts returns the host ports of a pod's app containers and sidecars.
func hostPorts(pod *corev1.Pod) []hostPort {
	var all []hostPort
	for _, c := range podutil.AppsAndSidecars(&pod.Spec) {
		for _, p := range c.Ports {
			if p.HostPort > 0 {
				all = append(all, hostPort{cmp.Or(p.HostIP, anyIP), cmp.Or(p.Protocol, corev1.ProtocolTCP), p.HostPort})
			}
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

// untolerated reports whether the node has a taint that would evict the pod at once.
func untolerated(pod *corev1.Pod, node *corev1.Node) bool {
	_, found := corev1helpers.FindMatchingUntoleratedTaint(logr.Discard(), node.Spec.Taints, pod.Spec.Tolerations,
		func(t *corev1.Taint) bool { return t.Effect == corev1.TaintEffectNoExecute }, true)
	return found
}
