package manifest

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// Reference is a ConfigMap or Secret that a pod names, in the namespace of the pod.
type Reference struct {
	// Kind is "ConfigMap" or "Secret".
	Kind, Name string
	// Path is the field that names it.
	Path *field.Path
}

// References returns the ConfigMaps and Secrets that pod names anywhere, optional ones too.
func References(pod *corev1.Pod) []Reference {
	var refs []Reference
	add := func(kind, name string, path *field.Path) { refs = append(refs, Reference{kind, name, path}) }
	spec := field.NewPath("spec")
	for i, s := range pod.Spec.ImagePullSecrets {
		add("Secret", s.Name, spec.Child("imagePullSecrets").Index(i))
	}
	index := map[string]int{}
	for role, c := range podutil.Containers(&pod.Spec) {
		containerReferences(c, spec.Child(role.Field()).Index(index[role.Field()]), add)
		index[role.Field()]++
	}
	for i := range pod.Spec.Volumes {
		volumeReferences(&pod.Spec.Volumes[i].VolumeSource, spec.Child("volumes").Index(i), add)
	}
	return refs
}

func containerReferences(c *corev1.Container, p *field.Path, add func(string, string, *field.Path)) {
	for i, e := range c.Env {
		if from := e.ValueFrom; from != nil {
			fp := p.Child("env").Index(i).Child("valueFrom")
			if from.ConfigMapKeyRef != nil {
				add("ConfigMap", from.ConfigMapKeyRef.Name, fp.Child("configMapKeyRef", "name"))
			}
			if from.SecretKeyRef != nil {
				add("Secret", from.SecretKeyRef.Name, fp.Child("secretKeyRef", "name"))
			}
		}
	}
	for i, e := range c.EnvFrom {
		if e.ConfigMapRef != nil {
			add("ConfigMap", e.ConfigMapRef.Name, p.Child("envFrom").Index(i).Child("configMapRef", "name"))
		}
		if e.SecretRef != nil {
			add("Secret", e.SecretRef.Name, p.Child("envFrom").Index(i).Child("secretRef", "name"))
		}
	}
}

func volumeReferences(v *corev1.VolumeSource, p *field.Path, add func(string, string, *field.Path)) {
	if v.ConfigMap != nil {
		add("ConfigMap", v.ConfigMap.Name, p.Child("configMap", "name"))
	}
	if v.Secret != nil {
		add("Secret", v.Secret.SecretName, p.Child("secret", "secretName"))
	}
	if v.Projected != nil {
		for i, s := range v.Projected.Sources {
			sp := p.Child("projected", "sources").Index(i)
			if s.ConfigMap != nil {
				add("ConfigMap", s.ConfigMap.Name, sp.Child("configMap", "name"))
			}
			if s.Secret != nil {
				add("Secret", s.Secret.Name, sp.Child("secret", "name"))
			}
		}
	}
	networkVolumeReferences(v, func(source, secret string) { add("Secret", secret, p.Child(source, "secretRef", "name")) })
}

// networkVolumeReferences adds the Secrets of the in-tree network volumes.
func networkVolumeReferences(v *corev1.VolumeSource, add func(source, secret string)) {
	local := func(source string, ref *corev1.LocalObjectReference) {
		if ref != nil {
			add(source, ref.Name)
		}
	}
	switch {
	case v.CephFS != nil:
		local("cephfs", v.CephFS.SecretRef)
	case v.Cinder != nil:
		local("cinder", v.Cinder.SecretRef)
	case v.FlexVolume != nil:
		local("flexVolume", v.FlexVolume.SecretRef)
	case v.RBD != nil:
		local("rbd", v.RBD.SecretRef)
	case v.ScaleIO != nil:
		local("scaleIO", v.ScaleIO.SecretRef)
	case v.ISCSI != nil:
		local("iscsi", v.ISCSI.SecretRef)
	case v.StorageOS != nil:
		local("storageos", v.StorageOS.SecretRef)
	}
}

// CheckReferences rejects references of a static pod to objects that only an API server has. has reports whether the
// source of the pod has a ConfigMap or Secret; a nil has allows all of them.
func CheckReferences(pod *corev1.Pod, has func(kind, name string) bool) field.ErrorList {
	var errs field.ErrorList
	refuse := func(p *field.Path, what string) {
		errs = append(errs, field.Forbidden(p, "a static pod may not use "+what))
	}
	spec := field.NewPath("spec")
	if pod.Spec.ServiceAccountName != "" {
		refuse(spec.Child("serviceAccountName"), "a service account: remove the field")
	}
	if pod.Spec.DeprecatedServiceAccount != "" {
		refuse(spec.Child("serviceAccount"), "a service account: remove the field")
	}
	if len(pod.Spec.ResourceClaims) > 0 {
		refuse(spec.Child("resourceClaims"), "resource claims")
	}
	for i := range pod.Spec.Volumes {
		checkVolumeReferences(&pod.Spec.Volumes[i].VolumeSource, spec.Child("volumes").Index(i), refuse)
	}
	if has == nil {
		return errs
	}
	for _, r := range References(pod) {
		if !has(r.Kind, r.Name) {
			errs = append(errs, field.Forbidden(r.Path, fmt.Sprintf("a static pod may only use a %s that is a manifest too: "+
				"add %s %q of namespace %s to the manifest directory", r.Kind, r.Kind, r.Name, pod.Namespace)))
		}
	}
	return errs
}

func checkVolumeReferences(v *corev1.VolumeSource, p *field.Path, refuse func(*field.Path, string)) {
	for _, r := range []struct {
		set         bool
		field, what string
	}{
		{v.PersistentVolumeClaim != nil, "persistentVolumeClaim", "persistent volume claims"},
		{v.Ephemeral != nil, "ephemeral", "persistent volume claims"},
		{v.CSI != nil, "csi", "CSI volumes"},
		{v.Glusterfs != nil, "glusterfs", "endpoints"},
		{v.AzureFile != nil, "azureFile", "Secrets of the API server"},
	} {
		if r.set {
			refuse(p.Child(r.field), r.what)
		}
	}
	if v.Projected == nil {
		return
	}
	for i, s := range v.Projected.Sources {
		sp := p.Child("projected", "sources").Index(i)
		switch {
		case s.ServiceAccountToken != nil:
			refuse(sp.Child("serviceAccountToken"), "service account tokens")
		case s.ClusterTrustBundle != nil:
			refuse(sp.Child("clusterTrustBundle"), "cluster trust bundles")
		case s.PodCertificate != nil:
			refuse(sp.Child("podCertificate"), "pod certificates")
		}
	}
}
