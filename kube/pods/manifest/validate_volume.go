package manifest

import (
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func (c *checker) volumes(p *field.Path) {
	c.volume = map[string]*corev1.Volume{}
	for i := range c.pod.Spec.Volumes {
		v, vp := &c.pod.Spec.Volumes[i], p.Index(i)
		if c.required(vp.Child("name"), v.Name) {
			c.texts(vp.Child("name"), v.Name, validation.IsDNS1123Label(v.Name))
			if c.volume[v.Name] != nil {
				c.add(field.Duplicate(vp.Child("name"), v.Name))
			}
			c.volume[v.Name] = v
		}
		if countSet(v.VolumeSource) > 1 {
			c.add(field.Forbidden(vp, "a volume has one source"))
		}
		c.volumeSource(vp, &v.VolumeSource)
	}
}

func (f *findings) volumeSource(p *field.Path, v *corev1.VolumeSource) {
	switch {
	case v.EmptyDir != nil:
		if l := v.EmptyDir.SizeLimit; l != nil && l.Sign() < 0 {
			f.add(field.Invalid(p.Child("emptyDir", "sizeLimit"), l.String(), "must not be negative"))
		}
		if m := v.EmptyDir.Mode; m != nil {
			f.between(p.Child("emptyDir", "mode"), int64(*m), 0, 0o1777)
		}
	case v.HostPath != nil:
		f.hostPath(p.Child("hostPath"), v.HostPath)
	case v.Secret != nil:
		f.objectName(p.Child("secret", "secretName"), v.Secret.SecretName)
		f.mode(p.Child("secret", "defaultMode"), v.Secret.DefaultMode)
		f.items(p.Child("secret", "items"), v.Secret.Items)
	case v.ConfigMap != nil:
		f.objectName(p.Child("configMap", "name"), v.ConfigMap.Name)
		f.mode(p.Child("configMap", "defaultMode"), v.ConfigMap.DefaultMode)
		f.items(p.Child("configMap", "items"), v.ConfigMap.Items)
	case v.DownwardAPI != nil:
		f.mode(p.Child("downwardAPI", "defaultMode"), v.DownwardAPI.DefaultMode)
		f.downwardFiles(p.Child("downwardAPI", "items"), v.DownwardAPI.Items)
	case v.Projected != nil:
		f.projected(p.Child("projected"), v.Projected)
	case v.Image != nil:
		f.required(p.Child("image", "reference"), v.Image.Reference)
		f.pullPolicy(p.Child("image", "pullPolicy"), v.Image.PullPolicy)
	case v.NFS != nil:
		f.required(p.Child("nfs", "server"), v.NFS.Server)
		if !strings.HasPrefix(v.NFS.Path, "/") {
			f.add(field.Invalid(p.Child("nfs", "path"), v.NFS.Path, "must be an absolute path"))
		}
	case v.ISCSI != nil:
		f.iscsi(p.Child("iscsi"), v.ISCSI)
	}
}

// iscsiName matches the names of iSCSI targets and initiators.
var iscsiName = regexp.MustCompile(
	`^(iqn\.\d{4}-\d{2}\.[[:alnum:].-]+:[^,;*&$|\s]+|eui\.[[:alnum:]]{16}|naa\.[[:alnum:]]{32})$`)

func (f *findings) iscsi(p *field.Path, v *corev1.ISCSIVolumeSource) {
	f.required(p.Child("targetPortal"), v.TargetPortal)
	if f.required(p.Child("iqn"), v.IQN) {
		f.iscsiName(p.Child("iqn"), v.IQN)
	}
	if v.InitiatorName != nil {
		f.iscsiName(p.Child("initiatorName"), *v.InitiatorName)
	}
	f.between(p.Child("lun"), int64(v.Lun), 0, 255)
	if (v.DiscoveryCHAPAuth || v.SessionCHAPAuth) && v.SecretRef == nil {
		f.add(field.Required(p.Child("secretRef"), "has the passwords for CHAP"))
	}
}

func (f *findings) iscsiName(p *field.Path, name string) {
	if !iscsiName.MatchString(name) {
		f.add(field.Invalid(p, name, "must be an IQN such as iqn.2001-04.com.example:storage, an EUI or an NAA"))
	}
}

func (f *findings) hostPath(p *field.Path, h *corev1.HostPathVolumeSource) {
	if f.required(p.Child("path"), h.Path) {
		f.noBacksteps(p.Child("path"), h.Path)
	}
	if h.Type != nil {
		oneOf(f, p.Child("type"), *h.Type, corev1.HostPathUnset, corev1.HostPathDirectoryOrCreate, corev1.HostPathDirectory,
			corev1.HostPathFileOrCreate, corev1.HostPathFile, corev1.HostPathSocket,
			corev1.HostPathCharDev, corev1.HostPathBlockDev)
	}
}

func (f *findings) projected(p *field.Path, v *corev1.ProjectedVolumeSource) {
	f.mode(p.Child("defaultMode"), v.DefaultMode)
	for i, s := range v.Sources {
		sp := p.Child("sources").Index(i)
		if countSet(s) > 1 {
			f.add(field.Forbidden(sp, "must have one source"))
		}
		if s.Secret != nil {
			f.objectName(sp.Child("secret", "name"), s.Secret.Name)
			f.items(sp.Child("secret", "items"), s.Secret.Items)
		}
		if s.ConfigMap != nil {
			f.objectName(sp.Child("configMap", "name"), s.ConfigMap.Name)
			f.items(sp.Child("configMap", "items"), s.ConfigMap.Items)
		}
		if s.DownwardAPI != nil {
			f.downwardFiles(sp.Child("downwardAPI", "items"), s.DownwardAPI.Items)
		}
	}
	f.pathsOnce(p.Child("sources"), v.Sources)
}

// pathsOnce rejects two sources that would write the same file.
func (f *findings) pathsOnce(p *field.Path, sources []corev1.VolumeProjection) {
	seen := map[string]bool{}
	once := func(i int, file string) {
		if file != "" && seen[file] {
			f.add(field.Duplicate(p.Index(i), file))
		}
		seen[file] = true
	}
	for i, s := range sources {
		if s.Secret != nil {
			for _, item := range s.Secret.Items {
				once(i, item.Path)
			}
		}
		if s.ConfigMap != nil {
			for _, item := range s.ConfigMap.Items {
				once(i, item.Path)
			}
		}
		if s.DownwardAPI != nil {
			for _, file := range s.DownwardAPI.Items {
				once(i, file.Path)
			}
		}
	}
}

func (f *findings) items(p *field.Path, items []corev1.KeyToPath) {
	for i, item := range items {
		f.required(p.Index(i).Child("key"), item.Key)
		f.payloadPath(p.Index(i).Child("path"), item.Path)
		f.mode(p.Index(i).Child("mode"), item.Mode)
	}
}

func (f *findings) downwardFiles(p *field.Path, files []corev1.DownwardAPIVolumeFile) {
	for i, file := range files {
		fp := p.Index(i)
		f.payloadPath(fp.Child("path"), file.Path)
		f.mode(fp.Child("mode"), file.Mode)
		if (file.FieldRef != nil) == (file.ResourceFieldRef != nil) {
			f.add(field.Required(fp, "must have one of fieldRef and resourceFieldRef"))
		}
		if file.FieldRef != nil {
			f.fieldRef(fp.Child("fieldRef"), file.FieldRef, fileFields)
		}
		if file.ResourceFieldRef != nil {
			f.resourceRef(fp.Child("resourceFieldRef"), file.ResourceFieldRef, true)
		}
	}
}

// payloadPath rejects a file name that would leave its volume, or would conflict with the files that the volume is
// written with: a first element that starts with "..".
func (f *findings) payloadPath(p *field.Path, file string) {
	if !f.required(p, file) {
		return
	}
	f.below(p, file)
	if strings.HasPrefix(file, "..") {
		f.add(field.Invalid(p, file, "must not start with '..'"))
	}
}

func (f *findings) mode(p *field.Path, mode *int32) {
	if mode != nil && (*mode < 0 || *mode > 0o777) {
		f.add(field.Invalid(p, *mode, "must be from 0 to 0777 (octal), which is 511 in decimal"))
	}
}

var (
	// fileFields and envFields are the paths that a fieldRef may have; labels and annotations may also have a key.
	fileFields = []string{
		"metadata.name", "metadata.namespace", "metadata.labels", "metadata.annotations", "metadata.uid",
	}
	envFields = []string{
		"metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.host", "spec.serviceAccountName",
		"status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs",
	}
)

func (f *findings) fieldRef(p *field.Path, r *corev1.ObjectFieldSelector, known []string) {
	fp := p.Child("fieldPath")
	if r.APIVersion != "v1" {
		f.add(field.NotSupported(p.Child("apiVersion"), r.APIVersion, []string{"v1"}))
	}
	if !f.required(fp, r.FieldPath) || slices.Contains(known, r.FieldPath) {
		return
	}
	name, key, ok := strings.Cut(strings.TrimSuffix(r.FieldPath, "']"), "['")
	if !ok || !strings.HasSuffix(r.FieldPath, "']") || (name != "metadata.labels" && name != "metadata.annotations") {
		f.add(field.NotSupported(fp, r.FieldPath, known))
		return
	}
	if name == "metadata.annotations" {
		key = strings.ToLower(key)
	}
	f.texts(fp, r.FieldPath, validation.IsQualifiedName(key))
}

var resourceFields = []string{"limits.cpu", "limits.memory", "limits.ephemeral-storage",
	"requests.cpu", "requests.memory", "requests.ephemeral-storage"}

// sizeDivisors are the divisors of all resources but the CPU.
var sizeDivisors = []string{"1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"}

func (f *findings) resourceRef(p *field.Path, r *corev1.ResourceFieldSelector, needsContainer bool) {
	if needsContainer {
		f.required(p.Child("containerName"), r.ContainerName)
	}
	hugePages := strings.HasPrefix(r.Resource, "limits.hugepages-") || strings.HasPrefix(r.Resource, "requests.hugepages-")
	if f.required(p.Child("resource"), r.Resource) && !hugePages && !slices.Contains(resourceFields, r.Resource) {
		f.add(field.NotSupported(p.Child("resource"), r.Resource, resourceFields))
	}
	divisors := sizeDivisors
	if strings.HasSuffix(r.Resource, ".cpu") {
		divisors = []string{"1", "1m"}
	}
	if !r.Divisor.IsZero() {
		oneOf(f, p.Child("divisor"), r.Divisor.String(), divisors...)
	}
}
