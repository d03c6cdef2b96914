package objects

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// UsePod sets what the pod uses from now on: see Use. lacking reports that a container cannot be created because
// something is missing in the objects of its environment, which are watched for that time.
func (o *Objects) UsePod(pod *corev1.Pod, lacking bool) { o.Use(pod.UID, refsOf(pod, lacking)) }

// Drop takes back what UsePod has set: the pod is gone.
func (o *Objects) Drop(pod types.UID) { o.Use(pod, nil) }

// UsePod is as in Objects.
func (l *Local) UsePod(pod *corev1.Pod, lacking bool) { l.Use(pod.UID, refsOf(pod, lacking)) }

// Drop is as in Objects.
func (l *Local) Drop(pod types.UID) { l.Use(pod, nil) }

// refsOf lists the ConfigMaps and Secrets that a pod refers to; it is never nil. Those in volumes are kept up to
// date. Those in environment variables are read when a container is created, and watched while a container cannot be
// created because something in them is missing. Pull secrets are read when an image is needed: a private one that is
// on the node may be used only with the credentials with which it was pulled.
func refsOf(pod *corev1.Pod, lacking bool) []Ref {
	seen := map[Ref]int{}
	all := []Ref{{Kind: Services, Namespace: podutil.ServicesNamespace(pod)}}
	add := func(kind Kind, name string, watch bool) {
		r := Ref{Kind: kind, Namespace: pod.Namespace, Name: name}
		if kind == TrustBundles {
			r.Namespace = "" // it has no namespace
		}
		if i, known := seen[r]; known {
			all[i].Watch = all[i].Watch || watch
			return
		}
		seen[r] = len(all)
		r.Watch = watch
		all = append(all, r)
	}
	for v := range podutil.UsedVolumes(&pod.Spec) {
		for _, r := range volumeRefs(v) {
			add(r.kind, r.name, true)
		}
	}
	for _, c := range podutil.Containers(&pod.Spec) {
		configMaps, secrets := podutil.EnvironmentObjects(c)
		for _, name := range configMaps {
			add(ConfigMap, name, lacking)
		}
		for _, name := range secrets {
			add(Secret, name, lacking)
		}
	}
	for _, s := range pod.Spec.ImagePullSecrets {
		if s.Name != "" { // allowed in old manifests
			add(Secret, s.Name, false)
		}
	}
	return all
}

type namedRef struct {
	kind Kind
	name string
}

func volumeRefs(v *corev1.Volume) (refs []namedRef) {
	if s := v.ConfigMap; s != nil {
		refs = append(refs, namedRef{ConfigMap, s.Name})
	}
	if s := v.Secret; s != nil {
		refs = append(refs, namedRef{Secret, s.SecretName})
	}
	if v.ISCSI != nil && v.ISCSI.SecretRef != nil {
		refs = append(refs, namedRef{Secret, v.ISCSI.SecretRef.Name})
	}
	if v.Projected == nil {
		return refs
	}
	for i := range v.Projected.Sources {
		if s := v.Projected.Sources[i].ConfigMap; s != nil {
			refs = append(refs, namedRef{ConfigMap, s.Name})
		}
		if s := v.Projected.Sources[i].Secret; s != nil {
			refs = append(refs, namedRef{Secret, s.Name})
		}
		if v.Projected.Sources[i].ClusterTrustBundle != nil {
			refs = append(refs, namedRef{TrustBundles, ""})
		}
	}
	return refs
}
