package spec

import (
	"encoding/json"
	"fmt"
	"maps"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// Annotations of containers, the same as the kubelet's. After a restart the agent needs nothing but them and the labels
// to recognize the instances of a pod.
const (
	AnnotationHash                     = "io.kubernetes.container.hash"
	AnnotationRestartCount             = "io.kubernetes.container.restartCount"
	AnnotationTerminationMessagePath   = "io.kubernetes.container.terminationMessagePath"
	AnnotationTerminationMessagePolicy = "io.kubernetes.container.terminationMessagePolicy"
	AnnotationPreStopHandler           = "io.kubernetes.container.preStopHandler"
	AnnotationPorts                    = "io.kubernetes.container.ports"
	AnnotationDeletionGracePeriod      = "io.kubernetes.pod.deletionGracePeriod"

	// AnnotationResources is specific to nodelet: the CPU and memory with which the container was created, as JSON.
	AnnotationResources = "io.nodelet.container.resources"
)

// sandboxLabels returns the pod's labels and the labels of its identity, which override labels of the same name.
func sandboxLabels(pod *corev1.Pod) map[string]string {
	labels := make(map[string]string, len(pod.Labels)+3)
	maps.Copy(labels, pod.Labels)
	labels[podutil.LabelPodName] = pod.Name
	labels[podutil.LabelPodNamespace] = pod.Namespace
	labels[podutil.LabelPodUID] = string(pod.UID)
	return labels
}

func containerLabels(pod *corev1.Pod, c *corev1.Container) map[string]string {
	return map[string]string{
		podutil.LabelPodName:       pod.Name,
		podutil.LabelPodNamespace:  pod.Namespace,
		podutil.LabelPodUID:        string(pod.UID),
		podutil.LabelContainerName: c.Name,
	}
}

// containerAnnotations returns what the agent needs to restart the container, and to stop it after its pod was deleted
// from the API. The agent's annotations override those of device plugins with the same name.
func containerAnnotations(in *ContainerInput) (map[string]string, error) {
	pod, c := in.Pod, in.Container
	a := make(map[string]string, len(in.Devices.Annotations)+8)
	maps.Copy(a, in.Devices.Annotations)
	a[AnnotationHash] = podutil.ContainerHash(c)
	a[AnnotationRestartCount] = strconv.FormatUint(uint64(in.Attempt), 10)
	a[AnnotationTerminationMessagePath] = c.TerminationMessagePath
	a[AnnotationTerminationMessagePolicy] = string(c.TerminationMessagePolicy)
	resources, _ := json.Marshal(EffectiveResources(pod, c)) // encoding quantities cannot fail
	a[AnnotationResources] = string(resources)
	if s := pod.DeletionGracePeriodSeconds; s != nil {
		a[AnnotationDeletionGracePeriod] = strconv.FormatInt(*s, 10)
	}
	if s := pod.Spec.TerminationGracePeriodSeconds; s != nil {
		a[podutil.AnnotationGrace] = strconv.FormatInt(*s, 10)
	}
	if c.Lifecycle != nil && c.Lifecycle.PreStop != nil {
		encoded, err := json.Marshal(c.Lifecycle.PreStop)
		if err != nil {
			return nil, fmt.Errorf("lifecycle.preStop: %w", err)
		}
		a[AnnotationPreStopHandler] = string(encoded)
	}
	if len(c.Ports) > 0 {
		encoded, _ := json.Marshal(c.Ports) // encoding strings and numbers cannot fail
		a[AnnotationPorts] = string(encoded)
	}
	return a, nil
}
