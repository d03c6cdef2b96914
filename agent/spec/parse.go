package spec

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// PodRef names the pod a sandbox or container belongs to.
type PodRef struct {
	Namespace string
	Name      string
	UID       types.UID
}

// ContainerFacts is what the labels and annotations of a container tell of how it was made.
type ContainerFacts struct {
	Pod  PodRef
	Name string
	// Hash is the recorded ContainerHash; empty where there is none, or one of an agent with another recipe.
	Hash         string
	RestartCount uint32
	// DeletionGrace and TerminationGrace are in seconds: deletionGracePeriodSeconds and
	// terminationGracePeriodSeconds of the pod when the container was made; nil where the pod had none.
	DeletionGrace            *int64
	TerminationGrace         *int64
	TerminationMessagePath   string
	TerminationMessagePolicy corev1.TerminationMessagePolicy
	// PreStop is the handler to run before the container is stopped; nil where there is none.
	PreStop *corev1.LifecycleHandler
	Ports   []corev1.ContainerPort
	// Resources are those it was made with, CPU and memory alone; nil where an agent made it that does not say.
	Resources *corev1.ResourceRequirements
}

// ParsePodLabels reads a sandbox's or container's labels. It fails on labels that do not name a pod: such
// an instance was not made for a pod, and is none of the agent's business.
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

// ParseContainer reads a container's labels and annotations. Where the labels do not name a container of a pod it
// returns ok false. A single value that cannot be read is left at its zero value and named in err, so that the
// container can still be stopped.
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

// annotationReader collects what cannot be read.
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

// json reads the annotation into value and tells whether there was one.
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
