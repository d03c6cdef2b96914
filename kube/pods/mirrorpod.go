package pods

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// annotationManifestObjects lists, on a mirror pod, the ConfigMaps and Secrets of the manifests that its static pod
// uses, in the form "ConfigMap/a Secret/b". The spec of the mirror pod does not name them: see mirrorOf.
const annotationManifestObjects = "nodelet.dev/manifest-objects"

// mirrorOf returns the mirror pod of a static pod: a copy with the hash of its manifest, owned by the node.
//
// ConfigMaps and Secrets of the manifests are left out of the copy. In the API server their names would mean other
// objects, and its NodeRestriction admission would reject the pod: it prevents nodes from reading Secrets by creating
// pods that name them.
func mirrorOf(pod *corev1.Pod, node string, nodeUID types.UID) *corev1.Pod {
	controller := true
	m := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:        pod.Name,
			Namespace:   pod.Namespace,
			Labels:      pod.Labels,
			Annotations: maps.Clone(pod.Annotations),
			Finalizers:  pod.Finalizers,
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "v1",
				Kind:       "Node",
				Name:       node,
				UID:        nodeUID,
				Controller: &controller,
			}},
		},
		Spec: pod.Spec,
	}
	m.Annotations[podutil.AnnotationMirror] = pod.Annotations[podutil.AnnotationHash]
	refs := podutil.References(pod)
	if len(refs) == 0 {
		return m
	}
	var names []string
	for _, r := range refs {
		names = append(names, r.Kind+"/"+r.Name)
	}
	slices.Sort(names)
	m.Annotations[annotationManifestObjects] = strings.Join(slices.Compact(names), " ")
	m.Spec = *pod.Spec.DeepCopy()
	withoutReferences(&m.Spec)
	return m
}

// withoutReferences removes the names of ConfigMaps and Secrets from a spec and keeps it valid: volumes become
// emptyDirs, because mounts refer to them.
func withoutReferences(s *corev1.PodSpec) {
	s.ImagePullSecrets = nil
	for _, c := range podutil.Containers(s) {
		c.EnvFrom = nil
		c.Env = slices.DeleteFunc(c.Env, func(e corev1.EnvVar) bool {
			return e.ValueFrom != nil && (e.ValueFrom.ConfigMapKeyRef != nil || e.ValueFrom.SecretKeyRef != nil)
		})
	}
	for i := range s.Volumes {
		if v := &s.Volumes[i].VolumeSource; len(podutil.VolumeReferences(v, nil)) > 0 {
			*v = corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
		}
	}
}
