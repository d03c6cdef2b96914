package manifest

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// CheckReferences rejects references of a static pod to objects that only an API server has. has reports whether the
// source of the pod has a ConfigMap or Secret. pod has been validated.
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
	for i := range pod.Spec.Volumes {
		checkVolumeReferences(&pod.Spec.Volumes[i].VolumeSource, spec.Child("volumes").Index(i), refuse)
	}
	for _, r := range podutil.References(pod) {
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
