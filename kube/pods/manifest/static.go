package manifest

import (
	"cmp"
	"errors"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// makeStatic sets the identity of a static pod in pod, whose defaults are set, and validates it.
func (o Origin) makeStatic(pod *corev1.Pod, hash string) error {
	if pod.Name == "" {
		return errors.New("metadata.name: Required value")
	}
	pod.TypeMeta = metav1.TypeMeta{}
	pod.ObjectMeta = clean(pod.ObjectMeta)
	pod.Name += "-" + strings.ToLower(o.NodeName)
	if pod.UID == "" {
		pod.UID = types.UID(hash)
	}
	pod.Annotations[podutil.AnnotationHash] = string(pod.UID)
	pod.Annotations[podutil.AnnotationSource] = o.Source
	pod.Spec.NodeName = o.NodeName
	if o.Source == podutil.SourceFile {
		tolerateNoExecute(pod)
	}
	pod.Status = corev1.PodStatus{Phase: corev1.PodPending}
	return validate(pod).ToAggregate()
}

// clean removes what only an API server sets, and exported manifests contain, and sets an empty namespace and nil
// annotations.
func clean(m metav1.ObjectMeta) metav1.ObjectMeta {
	c := metav1.ObjectMeta{
		Name: m.Name, Namespace: cmp.Or(m.Namespace, metav1.NamespaceDefault), UID: m.UID,
		Labels: m.Labels, Annotations: m.Annotations, Finalizers: m.Finalizers,
	}
	if c.Annotations == nil {
		c.Annotations = map[string]string{}
	}
	for _, own := range []string{
		podutil.AnnotationSource, podutil.AnnotationHash, podutil.AnnotationMirror, podutil.AnnotationSeen,
	} {
		delete(c.Annotations, own)
	}
	return c
}

// tolerateNoExecute adds a toleration of all NoExecute taints, so that no taint evicts a static pod. It takes the place
// of one that ends after some seconds.
func tolerateNoExecute(pod *corev1.Pod) {
	t := corev1.Toleration{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}
	found := false
	for i := range pod.Spec.Tolerations {
		if have := &pod.Spec.Tolerations[i]; t.MatchToleration(have) {
			*have, found = t, true
		}
	}
	if !found {
		pod.Spec.Tolerations = append(pod.Spec.Tolerations, t)
	}
}
