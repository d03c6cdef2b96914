package manifest

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// uid is the UID that the kubelet gives a static pod, so that a node can change hands with its static pods running: 32
// hexadecimal digits, the FNV-1a hash of the pod as the kubelet has it in memory, then of the node and the manifest's place.
//
// The pod is the manifest's with defaults set, and not yet changed in any other way. The kubelet writes it out as go-spew's %#v
// does, with the names and the order of fields of Kubernetes' internal types; those of v1.36 are known here. A kubelet whose
// types have other fields gives other UIDs, to its own older pods as well.
func (o Origin) uid(pod *corev1.Pod) string {
	p := *pod
	p.TypeMeta = metav1.TypeMeta{} // objects in memory do not carry it
	h := fnv.New128a()
	d := dump{w: h, spec: reflect.ValueOf(p.Spec)}
	d.value(reflect.ValueOf(&p), true)
	if o.Source == "file" {
		fmt.Fprintf(h, "host:%sfile:%s", o.NodeName, o.Where)
	} else {
		fmt.Fprintf(h, "url:%s", o.Where)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// internalFields are the fields of those internal types that differ from API version v1 in more than their package: what they
// have, in their order. A name that the type of v1 lacks is a field of its pod spec.
var internalFields = map[reflect.Type][]string{
	reflect.TypeFor[corev1.PodSpec](): strings.Fields(`Volumes InitContainers Containers EphemeralContainers RestartPolicy
		TerminationGracePeriodSeconds ActiveDeadlineSeconds DNSPolicy NodeSelector ServiceAccountName
		AutomountServiceAccountToken NodeName SecurityContext ImagePullSecrets Hostname Subdomain SetHostnameAsFQDN Affinity
		SchedulerName Tolerations HostAliases PriorityClassName Priority PreemptionPolicy DNSConfig ReadinessGates
		RuntimeClassName Overhead EnableServiceLinks TopologySpreadConstraints OS SchedulingGates ResourceClaims Resources
		HostnameOverride SchedulingGroup`),
	reflect.TypeFor[corev1.PodSecurityContext](): strings.Fields(`HostNetwork HostPID HostIPC ShareProcessNamespace HostUsers
		SELinuxOptions WindowsOptions RunAsUser RunAsGroup RunAsNonRoot SupplementalGroups SupplementalGroupsPolicy FSGroup
		FSGroupChangePolicy Sysctls SeccompProfile AppArmorProfile SELinuxChangePolicy`),
	reflect.TypeFor[corev1.VolumeSource](): strings.Fields(`HostPath EmptyDir GCEPersistentDisk AWSElasticBlockStore GitRepo
		Secret NFS ISCSI Glusterfs PersistentVolumeClaim RBD Quobyte FlexVolume Cinder CephFS Flocker DownwardAPI FC AzureFile
		ConfigMap VsphereVolume AzureDisk PhotonPersistentDisk Projected PortworxVolume ScaleIO StorageOS CSI Ephemeral Image`),
	reflect.TypeFor[corev1.PodStatus](): strings.Fields(`ObservedGeneration Phase Conditions Message Reason NominatedNodeName
		HostIP HostIPs PodIPs StartTime QOSClass InitContainerStatuses ContainerStatuses EphemeralContainerStatuses Resize
		ResourceClaimStatuses ExtendedResourceClaimStatus AllocatedResources Resources NodeAllocatableResourceClaimStatuses`),
}

// dump writes values of API version v1 as go-spew would write those of the internal types.
type dump struct {
	w    io.Writer
	spec reflect.Value
}

func (d dump) text(s string) { _, _ = io.WriteString(d.w, s) } // a hash takes everything

// value writes v, after its type where typed says so: elements of slices and maps, and what a pointer points to, have none.
func (d dump) value(v reflect.Value, typed bool) {
	if typed {
		d.text("(" + internalName(v.Type()) + ")")
	}
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			d.text("<nil>")
			return
		}
		d.value(v.Elem(), false)
	case reflect.Struct:
		d.fields(v)
	case reflect.Map:
		d.entries(v)
	case reflect.Slice:
		if v.IsNil() {
			d.text("<nil>")
			return
		}
		d.text("[")
		for i := range v.Len() {
			d.text(separator(i))
			d.value(v.Index(i), false)
		}
		d.text("]")
	case reflect.String:
		d.text(v.String())
	case reflect.Bool:
		d.text(strconv.FormatBool(v.Bool()))
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		d.text(strconv.FormatInt(v.Int(), 10))
	default: // bytes, and the words of large quantities
		d.text(strconv.FormatUint(v.Uint(), 10))
	}
}

func (d dump) fields(v reflect.Value) {
	d.text("{")
	names, differ := internalFields[v.Type()]
	if !differ {
		for _, f := range reflect.VisibleFields(v.Type()) {
			if len(f.Index) == 1 {
				names = append(names, f.Name)
			}
		}
	}
	for i, name := range names {
		d.text(separator(i) + name + ":")
		f := v.FieldByName(name)
		if !f.IsValid() {
			f = d.spec.FieldByName(name)
		}
		d.value(f, true)
	}
	d.text("}")
}

func (d dump) entries(v reflect.Value) {
	if v.IsNil() {
		d.text("<nil>")
		return
	}
	d.text("map[")
	for i, key := range slices.SortedFunc(slices.Values(v.MapKeys()), func(a, b reflect.Value) int { return cmp.Compare(a.String(), b.String()) }) {
		d.text(separator(i) + key.String() + ":")
		d.value(v.MapIndex(key), false)
	}
	d.text("]")
}

func separator(i int) string {
	if i > 0 {
		return " "
	}
	return ""
}

// internalName is the name of the internal type: that of API group core is in a package of another name.
func internalName(t reflect.Type) string {
	switch {
	case t.PkgPath() == "k8s.io/api/core/v1":
		return "core." + t.Name()
	case t.Name() != "":
		return t.String()
	case t.Kind() == reflect.Pointer:
		return "*" + internalName(t.Elem())
	case t.Kind() == reflect.Slice:
		return "[]" + internalName(t.Elem())
	case t.Kind() == reflect.Map:
		return "map[" + internalName(t.Key()) + "]" + internalName(t.Elem())
	default:
		return t.String()
	}
}
