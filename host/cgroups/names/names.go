// Package names builds the names of cgroups for the cgroupfs and the systemd driver, as the kubelet does: of all
// pods, of a QoS class and of one pod.
//
// It is pure: it reads no hierarchy and creates no cgroup. Package cgroups and agent/spec call it, so that the cgroup
// that the agent creates and the parent that it passes to the runtime are the same. It has no state.
package names

import (
	"fmt"
	"path"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	podsRoot  = "kubepods"
	podPrefix = "pod"
	slice     = ".slice"
)

// Name is a cgroup as a list of parts below the root of the hierarchy, the same for both drivers: kubepods, burstable,
// pod<uid>.
type Name []string

// Parse reads a cgroup as configurations spell it, "/kubelet" or "/kube.slice/kube-reserved.slice". "" and "/" are the
// root of the hierarchy.
func Parse(cgroup string) Name {
	if base := path.Base(cgroup); strings.HasSuffix(base, slice) {
		parts := strings.Split(strings.TrimSuffix(base, slice), "-")
		for i := range parts {
			parts[i] = strings.ReplaceAll(parts[i], "_", "-")
		}
		return parts
	}
	var n Name
	for part := range strings.SplitSeq(cgroup, "/") {
		if part != "" {
			n = append(n, part)
		}
	}
	return n
}

// Below returns the cgroup with the given parts below n.
func (n Name) Below(parts ...string) Name { return append(append(Name{}, n...), parts...) }

// Spell spells n as a driver does: as a path of cgroupfs (/kubepods/burstable/pod1-2), or as a path of systemd
// slices, each of which carries the names of those above it and an underscore for a dash within a part
// (/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice).
func (n Name) Spell(systemd bool) string {
	if !systemd || len(n) == 0 {
		return "/" + path.Join(n...)
	}
	full, prefix := "", ""
	for _, part := range n {
		prefix += strings.ReplaceAll(part, "-", "_")
		full += "/" + prefix + slice
		prefix += "-"
	}
	return full
}

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
	for _, part := range n {
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
		return nil, fmt.Errorf("pod UID %q cannot name a cgroup: a UID must be %s", uid, UIDFormat)
	}
	return n.Class(qos).Below(podPrefix + string(uid)), nil
}

// UID reads a pod's UID from the name of a cgroup's directory.
func UID(dir string, systemd bool) (types.UID, bool) {
	if systemd {
		if !strings.HasSuffix(dir, slice) {
			return "", false
		}
		parts := Parse(dir)
		dir = parts[len(parts)-1]
	}
	uid, ok := strings.CutPrefix(dir, podPrefix)
	return types.UID(uid), ok && uid != ""
}
