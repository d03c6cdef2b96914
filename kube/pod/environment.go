package pod

import corev1 "k8s.io/api/core/v1"

// ServicesNamespace returns the namespace of the services whose addresses are in the environment of a pod.
func ServicesNamespace(pod *corev1.Pod) string {
	if links := pod.Spec.EnableServiceLinks; links != nil && !*links {
		return corev1.NamespaceDefault // the service of the API server is always there
	}
	return pod.Namespace
}
