package objects

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// UsePod sets what the pod uses from now on: see Use. lacking reports that a container cannot be created, perhaps
// because something is missing in the objects of its environment or among its pull secrets, which are watched for that
// time.
func (o *Objects) UsePod(pod *corev1.Pod, lacking bool) { o.Use(pod.UID, refsOf(pod, lacking)) }

// Drop takes back what UsePod has set: the pod is gone.
func (o *Objects) Drop(pod types.UID) { o.Use(pod, nil) }

// UsePod is as in Objects.
func (l *Local) UsePod(pod *corev1.Pod, lacking bool) { l.Use(pod.UID, refsOf(pod, lacking)) }

// Drop is as in Objects.
func (l *Local) Drop(pod types.UID) { l.Use(pod, nil) }

// refsOf lists the ConfigMaps and Secrets that a pod refers to; it is never nil. Those in volumes are kept up to
// date. Those in environment variables are read when a container is created, and pull secrets when an image is needed:
// a private one that is on the node may be used only with the credentials with which it was pulled. Both are watched
// while something in them may be missing, so that a container cannot be created.
func refsOf(pod *corev1.Pod, lacking bool) []Ref {
	all := []Ref{{Kind: Services, Namespace: podutil.ServicesNamespace(pod)}}
	index := map[key]int{} // a pod may name an object in many places
	add := func(kind Kind, name string, watch bool) {
		k := key{kind, pod.Namespace, name}
		i, known := index[k]
		if !known {
			i = len(all)
			index[k] = i
			all = append(all, Ref{Kind: kind, Namespace: pod.Namespace, Name: name})
		}
		all[i].Watch = all[i].Watch || watch
	}
	for v := range podutil.UsedVolumes(&pod.Spec) {
		for _, r := range podutil.VolumeReferences(&v.VolumeSource, nil) {
			add(Kind(r.Kind), r.Name, true)
		}
		if showsTrustBundles(v) {
			all = append(all, Ref{Kind: TrustBundles, Watch: true})
		}
	}
	for _, c := range podutil.Containers(&pod.Spec) {
		for _, r := range podutil.EnvironmentReferences(c, nil) {
			add(Kind(r.Kind), r.Name, lacking)
		}
	}
	for _, r := range podutil.PullSecretReferences(&pod.Spec, nil) {
		add(Secret, r.Name, lacking)
	}
	return all
}

func showsTrustBundles(v *corev1.Volume) bool {
	return v.Projected != nil && slices.ContainsFunc(v.Projected.Sources,
		func(s corev1.VolumeProjection) bool { return s.ClusterTrustBundle != nil })
}
