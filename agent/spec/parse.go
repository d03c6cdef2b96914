package spec

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// PodRef identifies the pod that a sandbox or container belongs to.
type PodRef struct {
	Namespace string
	Name      string
	UID       types.UID
}

// ContainerFacts is what the labels and annotations of a container record about its creation.
type ContainerFacts struct {
	Pod  PodRef
	Name string
	// Hash is the recorded ContainerHash; empty if there is none, or if another agent recorded it with another
	// algorithm.
	Hash         string
	RestartCount uint32
	// DeletionGrace and TerminationGrace are the pod's deletionGracePeriodSeconds and terminationGracePeriodSeconds
	// at the creation of the container, in seconds; nil if the pod had none.
	DeletionGrace            *int64
	TerminationGrace         *int64
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
func ParsePodLabels(labels map[string]string) (PodRef, error) {
	ref := PodRef{
		Namespace: labels[LabelPodNamespace],
		Name:      labels[LabelPodName],
		UID:       types.UID(labels[LabelPodUID]),
	}
	if ref.Namespace == "" || ref.Name == "" {
		return PodRef{}, fmt.Errorf("labels %s and %s do not name a pod", LabelPodNamespace, LabelPodName)
	}
	if err := checkUID(ref.UID); err != nil {
		return PodRef{}, fmt.Errorf("label %s: %w", LabelPodUID, err)
	}
	return ref, nil
}

// ParseContainer reads a container's labels and annotations. If the labels do not identify a container of a pod, ok
// is false. A single value that cannot be parsed keeps its zero value, and err names it; ok is still true, so that
// the agent can stop the container.
func ParseContainer(labels, annotations map[string]string) (facts ContainerFacts, ok bool, err error) {
	pod, err := ParsePodLabels(labels)
	if err != nil {
		return ContainerFacts{}, false, err
	}
	name := labels[LabelContainerName]
	if err := checkContainerName(name); err != nil {
		return ContainerFacts{}, false, fmt.Errorf("label %s: %w", LabelContainerName, err)
	}
	r := annotationReader{annotations: annotations}
	facts = ContainerFacts{
		Pod:                      pod,
		Name:                     name,
		Hash:                     recordedHash(annotations[AnnotationHash]),
		RestartCount:             r.count(AnnotationRestartCount),
		DeletionGrace:            r.seconds(AnnotationDeletionGracePeriod),
		TerminationGrace:         r.seconds(AnnotationTerminationGracePeriod),
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
	return facts, true, errors.Join(r.errs...)
}

// annotationReader parses annotations and collects the errors.
type annotationReader struct {
	annotations map[string]string
	errs        []error
}

func (r *annotationReader) count(key string) uint32 {
	text, ok := r.annotations[key]
	if !ok {
		return 0
	}
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		r.errs = append(r.errs, fmt.Errorf("annotation %s: %w", key, err))
		return 0
	}
	return uint32(n)
}

func (r *annotationReader) seconds(key string) *int64 {
	text, ok := r.annotations[key]
	if !ok {
		return nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		r.errs = append(r.errs, fmt.Errorf("annotation %s: %w", key, err))
		return nil
	}
	return &n
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
