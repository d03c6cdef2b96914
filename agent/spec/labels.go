package spec

import (
	"encoding/json"
	"fmt"
	"maps"
	"strconv"

	corev1 "k8s.io/api/core/v1"
)

// Labels and annotations on sandboxes and containers. They are the kubelet's, and all that is needed to know a pod's
// instances after a restart of the agent.
const (
	LabelPodName       = "io.kubernetes.pod.name"
	LabelPodNamespace  = "io.kubernetes.pod.namespace"
	LabelPodUID        = "io.kubernetes.pod.uid"
	LabelContainerName = "io.kubernetes.container.name"

	AnnotationHash                     = "io.kubernetes.container.hash"
	AnnotationRestartCount             = "io.kubernetes.container.restartCount"
	AnnotationTerminationMessagePath   = "io.kubernetes.container.terminationMessagePath"
	AnnotationTerminationMessagePolicy = "io.kubernetes.container.terminationMessagePolicy"
	AnnotationPreStopHandler           = "io.kubernetes.container.preStopHandler"
	AnnotationPorts                    = "io.kubernetes.container.ports"
	AnnotationDeletionGracePeriod      = "io.kubernetes.pod.deletionGracePeriod"
	AnnotationTerminationGracePeriod   = "io.kubernetes.pod.terminationGracePeriod"

	// AnnotationResources is this agent's own: the CPU and memory that a container was made with, as JSON.
	AnnotationResources = "io.nodelet.container.resources"
)

// sandboxLabels are the pod's labels and its identity, which wins over labels of the same name.
func sandboxLabels(pod *corev1.Pod) map[string]string {
	labels := make(map[string]string, len(pod.Labels)+3)
	maps.Copy(labels, pod.Labels)
	labels[LabelPodName] = pod.Name
	labels[LabelPodNamespace] = pod.Namespace
	labels[LabelPodUID] = string(pod.UID)
	return labels
}

func containerLabels(pod *corev1.Pod, c *corev1.Container) map[string]string {
	return map[string]string{
		LabelPodName:       pod.Name,
		LabelPodNamespace:  pod.Namespace,
		LabelPodUID:        string(pod.UID),
		LabelContainerName: c.Name,
	}
}

// containerAnnotations records what is needed to restart and to stop the container when its pod is not known any more.
// Of annotations with one name, ours win over those of device plugins.
func containerAnnotations(in *ContainerInput) (map[string]string, error) {
	pod, c := in.Pod, in.Container
	a := make(map[string]string, len(in.Devices.Annotations)+8)
	maps.Copy(a, in.Devices.Annotations)
	a[AnnotationHash] = ContainerHash(c)
	a[AnnotationRestartCount] = strconv.FormatUint(uint64(in.Attempt), 10)
	a[AnnotationTerminationMessagePath] = c.TerminationMessagePath
	a[AnnotationTerminationMessagePolicy] = string(c.TerminationMessagePolicy)
	resources, _ := json.Marshal(EffectiveResources(pod, c)) // quantities always encode
	a[AnnotationResources] = string(resources)
	if s := pod.DeletionGracePeriodSeconds; s != nil {
		a[AnnotationDeletionGracePeriod] = strconv.FormatInt(*s, 10)
	}
	if s := pod.Spec.TerminationGracePeriodSeconds; s != nil {
		a[AnnotationTerminationGracePeriod] = strconv.FormatInt(*s, 10)
	}
	if c.Lifecycle != nil && c.Lifecycle.PreStop != nil {
		encoded, err := json.Marshal(c.Lifecycle.PreStop)
		if err != nil {
			return nil, fmt.Errorf("lifecycle.preStop: %w", err)
		}
		a[AnnotationPreStopHandler] = string(encoded)
	}
	if len(c.Ports) > 0 {
		encoded, _ := json.Marshal(c.Ports) // strings and numbers always encode
		a[AnnotationPorts] = string(encoded)
	}
	return a, nil
}
