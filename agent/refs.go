package agent

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/kube/objects"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// refsOf lists the ConfigMaps and Secrets that a pod refers to; it is never nil. Those in volumes are kept up to
// date. Those in environment variables are read when a container is created, and watched while a container cannot be
// created because something in them is missing.
func refsOf(pod *corev1.Pod, lacking bool) []objects.Ref {
	seen := map[objects.Ref]int{}
	all := []objects.Ref{{Kind: objects.Services, Namespace: servicesNamespace(pod)}}
	add := func(kind objects.Kind, name string, watch bool) {
		r := objects.Ref{Kind: kind, Namespace: pod.Namespace, Name: name}
		if kind == objects.TrustBundles {
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
	for i := range pod.Spec.Volumes {
		for _, r := range volumeRefs(&pod.Spec.Volumes[i]) {
			add(r.kind, r.name, true)
		}
	}
	for _, c := range podutil.Containers(&pod.Spec) {
		for _, r := range environmentRefs(c) {
			add(r.kind, r.name, lacking)
		}
	}
	return all
}

type namedRef struct {
	kind objects.Kind
	name string
}

func volumeRefs(v *corev1.Volume) (refs []namedRef) {
	if s := v.ConfigMap; s != nil {
		refs = append(refs, namedRef{objects.ConfigMap, s.Name})
	}
	if s := v.Secret; s != nil {
		refs = append(refs, namedRef{objects.Secret, s.SecretName})
	}
	if v.ISCSI != nil && v.ISCSI.SecretRef != nil {
		refs = append(refs, namedRef{objects.Secret, v.ISCSI.SecretRef.Name})
	}
	if v.Projected == nil {
		return refs
	}
	for i := range v.Projected.Sources {
		if s := v.Projected.Sources[i].ConfigMap; s != nil {
			refs = append(refs, namedRef{objects.ConfigMap, s.Name})
		}
		if s := v.Projected.Sources[i].Secret; s != nil {
			refs = append(refs, namedRef{objects.Secret, s.Name})
		}
		if v.Projected.Sources[i].ClusterTrustBundle != nil {
			refs = append(refs, namedRef{objects.TrustBundles, ""})
		}
	}
	return refs
}

func environmentRefs(c *corev1.Container) (refs []namedRef) {
	for i := range c.EnvFrom {
		if s := c.EnvFrom[i].ConfigMapRef; s != nil {
			refs = append(refs, namedRef{objects.ConfigMap, s.Name})
		}
		if s := c.EnvFrom[i].SecretRef; s != nil {
			refs = append(refs, namedRef{objects.Secret, s.Name})
		}
	}
	for i := range c.Env {
		from := c.Env[i].ValueFrom
		if from == nil {
			continue
		}
		if s := from.ConfigMapKeyRef; s != nil {
			refs = append(refs, namedRef{objects.ConfigMap, s.Name})
		}
		if s := from.SecretKeyRef; s != nil {
			refs = append(refs, namedRef{objects.Secret, s.Name})
		}
	}
	return refs
}
