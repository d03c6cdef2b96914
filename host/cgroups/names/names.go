// Package names builds the names of cgroups for the cgroupfs and the systemd driver, as the kubelet does: of all
// pods, of a QoS class and of one pod.
//
// It is pure: it reads no hierarchy and creates no cgroup. Package cgroups and agent/spec call it, so that the cgroup
// that the agent creates and the parent that it passes to the runtime are the same. It has no state.
package names

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	podsRoot  = "kubepods"
	podPrefix = "pod"
	slice     = ".slice"
)

// Name is a cgroup, the same for both drivers: one of the configuration, such as /kubelet, and the parts below it, such
// as kubepods, burstable, pod<uid>.
type Name struct{ configured, below []string }

// Parse reads a cgroup as configurations spell it, "/kubelet" or "/kube.slice/kube-reserved.slice". "" and "/" are the
// root of the hierarchy.
func Parse(cgroup string) (n Name) {
	for part := range strings.SplitSeq(cgroup, "/") {
		if part != "" {
			n.configured = append(n.configured, part)
		}
	}
	return n
}

// ParseSlice reads the name or path of a systemd slice, in which the suffix may be missing.
func ParseSlice(cgroup string) Name {
	return Parse(strings.TrimSuffix(path.Base(cgroup), slice) + slice)
}

// Below returns the cgroup with the given parts below n.
func (n Name) Below(parts ...string) Name {
	return Name{n.configured, slices.Concat(n.below, parts)}
}

// Spell spells n as a driver does: as a path of cgroupfs (/kubepods/burstable/pod1-2), or as a path of systemd
// slices, each of which carries the names of those above it and an underscore for a dash within a part
// (/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice). A slice of the configuration keeps its
// name, which says where it is.
func (n Name) Spell(systemd bool) string {
	if !systemd {
		return "/" + path.Join(slices.Concat(n.configured, n.below)...)
	}
	var parts []string
	for _, part := range n.configured {
		if name, isSlice := strings.CutSuffix(part, slice); isSlice {
			parts = strings.Split(name, "-")
		} else {
			parts = append(parts, escape(part))
		}
	}
	for _, part := range n.below {
		parts = append(parts, escape(part))
	}
	full, prefix := "", ""
	for _, part := range parts {
		prefix += part
		full += "/" + prefix + slice
		prefix += "-"
	}
	return cmp.Or(full, "/")
}

func escape(part string) string { return strings.ReplaceAll(part, "-", "_") }

// Unit returns the systemd slice of n and the one above it.
func (n Name) Unit() (parent, unit string) {
	dir, unit := path.Split(n.Spell(true))
	if parent = path.Base(dir); parent == "/" {
		parent = "-" + slice
	}
	return parent, unit
}

// Check returns an error for parts that could lead out of the tree.
func (n Name) Check() error {
	for _, part := range slices.Concat(n.configured, n.below) {
		if part == "." || part == ".." || strings.ContainsAny(part, "/\x00\n") {
			return fmt.Errorf("%q cannot be part of a cgroup's name", part)
		}
	}
	return nil
}

// Pods returns the cgroup of all pods below a cgroupRoot of the configuration.
func Pods(root string) Name { return Parse(root).Below(podsRoot) }

// Class returns the cgroup of a QoS class below that of all pods. Guaranteed pods lie directly below the latter.
func (n Name) Class(qos corev1.PodQOSClass) Name {
	switch qos {
	case corev1.PodQOSBurstable, corev1.PodQOSBestEffort:
		return n.Below(strings.ToLower(string(qos)))
	}
	return n.Below()
}

// maxUID is the longest UID that ValidUID accepts. A UUID has 36 characters.
const maxUID = 128

// UIDFormat describes the UIDs that ValidUID accepts, for messages.
const UIDFormat = "1 to 128 letters, digits, hyphens and dots that begin with a letter or digit"

// ValidUID reports whether uid can name a directory and a cgroup. UIDs are UUIDs or the hash of a manifest,
// but a manifest can set its own: anything else could lead out of the pod's directory or be taken for
// another pod in the name of a cgroup.
func ValidUID(uid types.UID) bool {
	if uid == "" || len(uid) > maxUID {
		return false
	}
	for i, c := range []byte(uid) {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letter && (i == 0 || c != '-' && c != '.') {
			return false
		}
	}
	return true
}

// Pod returns the cgroup of a pod below that of all pods.
func (n Name) Pod(uid types.UID, qos corev1.PodQOSClass) (Name, error) {
	if !ValidUID(uid) {
		return Name{}, fmt.Errorf("pod UID %q cannot name a cgroup: a UID must be %s", uid, UIDFormat)
	}
	return n.Class(qos).Below(podPrefix + string(uid)), nil
}

// UID reads a pod's UID from the name of a cgroup's directory.
func UID(dir string, systemd bool) (types.UID, bool) {
	if systemd {
		name, isSlice := strings.CutSuffix(dir, slice)
		if !isSlice {
			return "", false
		}
		dir = strings.ReplaceAll(name[strings.LastIndexByte(name, '-')+1:], "_", "-")
	}
	uid, ok := strings.CutPrefix(dir, podPrefix)
	return types.UID(uid), ok && uid != ""
}
