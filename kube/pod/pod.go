// Package pod answers questions about the spec and status of a pod: which containers it has and what role
// each plays, its QoS class, whether it is static, a mirror or critical, whether a container restarts, how
// the API names a container. Each question has one answer, here; other packages ask instead of looking into
// the object themselves.
//
// It is pure: it reads API types, keeps nothing and never changes what it is given. Any package that has a
// pod may call it, usually under the name podutil. It has no state, so a crash leaves nothing behind.
package pod

import (
	"fmt"
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/nodelet/nodelet/host/cgroups/names"
)

// Annotations with which the kubelet and nodelet mark the pods of manifests and their mirror pods.
const (
	// AnnotationSource says where a pod comes from: SourceAPI, SourceFile or SourceHTTP.
	AnnotationSource = "kubernetes.io/config.source"
	// AnnotationHash is the hash of a static pod's manifest, which is its UID.
	AnnotationHash = "kubernetes.io/config.hash"
	// AnnotationMirror marks a mirror pod. Its value is the AnnotationHash of its static pod.
	AnnotationMirror = corev1.MirrorPodAnnotationKey
	// AnnotationSeen is when the node agent first saw a pod, in RFC 3339 with nanoseconds.
	AnnotationSeen = "kubernetes.io/config.seen"
)

// Values of AnnotationSource: pods of the API server, of manifest files and of a manifest URL.
const (
	SourceAPI  = "api"
	SourceFile = "file"
	SourceHTTP = "http"
)

// SystemCritical is the lowest priority that is reserved for the cluster's own pods.
const SystemCritical = 2_000_000_000

// defaultGrace is the grace period of a pod that does not set one, as in a manifest.
const defaultGrace = 30 * time.Second

// Name returns what logs call a pod: namespace/name, or its UID if its name is not known.
func Name(pod *corev1.Pod) string {
	if pod.Name == "" {
		return "pod with UID " + string(pod.UID)
	}
	return pod.Namespace + "/" + pod.Name
}

// Text returns a pod's identity for messages, as the kubelet writes it: name_namespace(uid).
func Text(pod *corev1.Pod) string {
	return fmt.Sprintf("%s_%s(%s)", pod.Name, pod.Namespace, pod.UID)
}

// IsStatic reports whether the pod comes from a manifest. A pod without AnnotationSource does not.
func IsStatic(pod *corev1.Pod) bool {
	source, set := pod.Annotations[AnnotationSource]
	return set && source != SourceAPI
}

// IsMirror reports whether the pod is the image of a static pod in the API.
func IsMirror(pod *corev1.Pod) bool {
	_, set := pod.Annotations[AnnotationMirror]
	return set
}

// IsCritical reports whether the system depends on the pod: it is static, a mirror pod, or has a system
// priority. Such a pod is neither evicted nor refused under pressure.
func IsCritical(pod *corev1.Pod) bool {
	return IsStatic(pod) || IsMirror(pod) || Priority(pod) >= SystemCritical
}

// Priority is the pod's priority, 0 where none is set.
func Priority(pod *corev1.Pod) int32 {
	if pod.Spec.Priority == nil {
		return 0
	}
	return *pod.Spec.Priority
}

// GracePeriod is how long the pod's containers have to end after they were asked to: the period of the
// deletion where the pod is being deleted, else that of the spec.
func GracePeriod(pod *corev1.Pod) time.Duration {
	for _, seconds := range []*int64{pod.DeletionGracePeriodSeconds, pod.Spec.TerminationGracePeriodSeconds} {
		if seconds != nil {
			return Grace(*seconds)
		}
	}
	return defaultGrace
}

// Grace is a grace period of so many seconds. The API does not bound it; one of more than math.MaxInt32 seconds, 68
// years, is cut to that, because it would overflow.
func Grace(seconds int64) time.Duration {
	return time.Duration(min(seconds, math.MaxInt32)) * time.Second
}

// HasUserNamespace reports whether a pod has a user namespace of its own.
func HasUserNamespace(spec *corev1.PodSpec) bool { return spec.HostUsers != nil && !*spec.HostUsers }

// IsTerminal reports whether a pod of that phase has ended for good.
func IsTerminal(phase corev1.PodPhase) bool {
	return phase == corev1.PodSucceeded || phase == corev1.PodFailed
}

// UIDFormat describes the UIDs that ValidUID accepts, for messages.
const UIDFormat = names.UIDFormat

// ValidUID reports whether uid can name a directory and a cgroup; see names.ValidUID.
func ValidUID(uid types.UID) bool { return names.ValidUID(uid) }

// CheckIdentity rejects a pod whose UID, namespace or name must not become a part of paths and cgroups.
func CheckIdentity(pod *corev1.Pod) error {
	if !ValidUID(pod.UID) {
		return fmt.Errorf("UID %q: must be %s", pod.UID, UIDFormat)
	}
	if msgs := validation.IsDNS1123Label(pod.Namespace); len(msgs) > 0 {
		return fmt.Errorf("namespace %q: %s", pod.Namespace, msgs[0])
	}
	if msgs := validation.IsDNS1123Subdomain(pod.Name); len(msgs) > 0 {
		return fmt.Errorf("name %q: %s", pod.Name, msgs[0])
	}
	return nil
}
