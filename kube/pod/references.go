package pod

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Reference is a ConfigMap or Secret that a pod names, in the namespace of the pod. It may be optional.
type Reference struct {
	// Kind is "ConfigMap" or "Secret".
	Kind, Name string
	// Path is the field that names it.
	Path *field.Path
}

// References returns what a pod names anywhere.
func References(pod *corev1.Pod) (refs []Reference) {
	spec := field.NewPath("spec")
	refs = PullSecretReferences(&pod.Spec, spec)
	index := map[string]int{}
	for role, c := range Containers(&pod.Spec) {
		refs = append(refs, EnvironmentReferences(c, spec.Child(role.Field()).Index(index[role.Field()]))...)
		index[role.Field()]++
	}
	for i := range pod.Spec.Volumes {
		refs = append(refs, VolumeReferences(&pod.Spec.Volumes[i].VolumeSource, spec.Child("volumes").Index(i))...)
	}
	return refs
}

// PullSecretReferences returns which Secrets a spec, the field p, names in imagePullSecrets. An entry may have no name,
// as in old manifests.
func PullSecretReferences(s *corev1.PodSpec, p *field.Path) (refs []Reference) {
	for i, secret := range s.ImagePullSecrets {
		if secret.Name != "" {
			refs = append(refs, Reference{"Secret", secret.Name, p.Child("imagePullSecrets").Index(i)})
		}
	}
	return refs
}

// EnvironmentReferences returns what the environment of a container, the field p, names.
func EnvironmentReferences(c *corev1.Container, p *field.Path) (refs []Reference) {
	for i, e := range c.Env {
		if from := e.ValueFrom; from != nil {
			fp := p.Child("env").Index(i).Child("valueFrom")
			if from.ConfigMapKeyRef != nil {
				refs = append(refs, Reference{"ConfigMap", from.ConfigMapKeyRef.Name, fp.Child("configMapKeyRef", "name")})
			}
			if from.SecretKeyRef != nil {
				refs = append(refs, Reference{"Secret", from.SecretKeyRef.Name, fp.Child("secretKeyRef", "name")})
			}
		}
	}
	for i, e := range c.EnvFrom {
		fp := p.Child("envFrom").Index(i)
		if e.ConfigMapRef != nil {
			refs = append(refs, Reference{"ConfigMap", e.ConfigMapRef.Name, fp.Child("configMapRef", "name")})
		}
		if e.SecretRef != nil {
			refs = append(refs, Reference{"Secret", e.SecretRef.Name, fp.Child("secretRef", "name")})
		}
	}
	return refs
}

// VolumeReferences returns what a volume, the field p, names.
func VolumeReferences(v *corev1.VolumeSource, p *field.Path) (refs []Reference) {
	if v.ConfigMap != nil {
		refs = append(refs, Reference{"ConfigMap", v.ConfigMap.Name, p.Child("configMap", "name")})
	}
	if v.Secret != nil {
		refs = append(refs, Reference{"Secret", v.Secret.SecretName, p.Child("secret", "secretName")})
	}
	if v.Projected != nil {
		for i, s := range v.Projected.Sources {
			sp := p.Child("projected", "sources").Index(i)
			if s.ConfigMap != nil {
				refs = append(refs, Reference{"ConfigMap", s.ConfigMap.Name, sp.Child("configMap", "name")})
			}
			if s.Secret != nil {
				refs = append(refs, Reference{"Secret", s.Secret.Name, sp.Child("secret", "name")})
			}
		}
	}
	network := func(source string, secret *corev1.LocalObjectReference) {
		if secret != nil {
			refs = append(refs, Reference{"Secret", secret.Name, p.Child(source, "secretRef", "name")})
		}
	}
	switch {
	case v.CephFS != nil:
		network("cephfs", v.CephFS.SecretRef)
	case v.Cinder != nil:
		network("cinder", v.Cinder.SecretRef)
	case v.FlexVolume != nil:
		network("flexVolume", v.FlexVolume.SecretRef)
	case v.RBD != nil:
		network("rbd", v.RBD.SecretRef)
	case v.ScaleIO != nil:
		network("scaleIO", v.ScaleIO.SecretRef)
	case v.ISCSI != nil:
		network("iscsi", v.ISCSI.SecretRef)
	case v.StorageOS != nil:
		network("storageos", v.StorageOS.SecretRef)
	}
	return refs
}
