package spec

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// ContainerFacts is what the labels and annotations of a container record about its creation.
type ContainerFacts struct {
	Name string
	// Hash is the recorded podutil.ContainerHash; empty if there is none, or if another agent recorded it with another
	// algorithm.
	Hash                     string
	TerminationMessagePath   string
	TerminationMessagePolicy corev1.TerminationMessagePolicy
	// PreStop is the handler to run before the container is stopped; nil if there is none.
	PreStop *corev1.LifecycleHandler
	Ports   []corev1.ContainerPort
	// Resources are the CPU and memory with which the container was created; nil if another agent created it and did
	// not record them.
	Resources *corev1.ResourceRequirements
}

// ParsePodLabels reads the labels of a sandbox or container. It fails on labels that do not identify a pod: the agent
// must leave such a sandbox or container alone.
func ParsePodLabels(labels map[string]string) (pod types.NamespacedName, err error) {
	pod.Namespace = labels[podutil.LabelPodNamespace]
	pod.Name = labels[podutil.LabelPodName]
	if pod.Namespace == "" || pod.Name == "" {
		return pod, fmt.Errorf("labels %s and %s do not name a pod", podutil.LabelPodNamespace,
			podutil.LabelPodName)
	}
	return pod, checkUID(types.UID(labels[podutil.LabelPodUID]))
}

// ParseContainer reads a container's labels and annotations. There are no facts if the labels do not identify a
// container of a pod. A single value that cannot be parsed keeps its zero value, and err names it: the agent can still
// stop the container.
func ParseContainer(labels, annotations map[string]string) (facts ContainerFacts, err error) {
	name := labels[podutil.LabelContainerName]
	_, err = ParsePodLabels(labels)
	if err = errors.Join(err, checkContainerName(name)); err != nil {
		return facts, err
	}
	r := annotationReader{annotations: annotations}
	facts = ContainerFacts{
		Name:                     name,
		Hash:                     recordedHash(annotations[AnnotationHash]),
		TerminationMessagePath:   annotations[AnnotationTerminationMessagePath],
		TerminationMessagePolicy: corev1.TerminationMessagePolicy(annotations[AnnotationTerminationMessagePolicy]),
	}
	var preStop corev1.LifecycleHandler
	if r.json(AnnotationPreStopHandler, &preStop) {
		facts.PreStop = &preStop
	}
	var ports []corev1.ContainerPort
	if r.json(AnnotationPorts, &ports) {
		facts.Ports = ports
	}
	var resources corev1.ResourceRequirements
	if r.json(AnnotationResources, &resources) {
		facts.Resources = &resources
	}
	return facts, errors.Join(r.errs...)
}

// annotationReader parses annotations and collects the errors.
type annotationReader struct {
	annotations map[string]string
	errs        []error
}

// json decodes the annotation into value and reports whether it exists and is valid.
func (r *annotationReader) json(key string, value any) bool {
	text, ok := r.annotations[key]
	if !ok {
		return false
	}
	if err := json.Unmarshal([]byte(text), value); err != nil {
		r.errs = append(r.errs, fmt.Errorf("annotation %s: %w", key, err))
		return false
	}
	return true
}

// recordedHash returns the recorded hash; empty if it is missing or not a hash of this form. An agent with
// another algorithm created such a container. It is adopted, not restarted.
func recordedHash(text string) string {
	if _, err := strconv.ParseUint(text, 16, 32); err != nil {
		return ""
	}
	return text
}
