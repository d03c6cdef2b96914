package cgroups

import (
	"fmt"
	"path"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

const (
	podsRoot  = "kubepods"
	podPrefix = "pod"
	slice     = ".slice"
)

// Pod names the cgroup of one pod.
type Pod struct {
	UID types.UID
	QOS corev1.PodQOSClass
}

// name is a cgroup as a list of parts below the root of the hierarchy, the same for both drivers: kubepods, burstable,
// pod<uid>. The drivers spell it differently.
type name []string

// parseName reads a cgroup as configurations spell it, "/kubelet" or "/kube.slice/kube-reserved.slice". "" and "/" are the
// root of the hierarchy.
func parseName(cgroup string) name {
	if base := path.Base(cgroup); strings.HasSuffix(base, slice) {
		parts := strings.Split(strings.TrimSuffix(base, slice), "-")
		for i := range parts {
			parts[i] = strings.ReplaceAll(parts[i], "_", "-")
		}
		return parts
	}
	var n name
	for part := range strings.SplitSeq(cgroup, "/") {
		if part != "" {
			n = append(n, part)
		}
	}
	return n
}

// below returns the cgroup with the given parts below n.
func (n name) below(parts ...string) name {
	return append(append(name{}, n...), parts...)
}

// cgroupfs spells n as the cgroupfs driver does: /kubepods/burstable/pod1-2.
func (n name) cgroupfs() string { return "/" + path.Join(n...) }

// systemd spells n as the systemd driver does, where each slice carries the names of those above it:
// /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice. A dash within a part becomes an underscore.
func (n name) systemd() string {
	full, prefix := "", ""
	for _, part := range n {
		prefix += strings.ReplaceAll(part, "-", "_")
		full += "/" + prefix + slice
		prefix += "-"
	}
	if full == "" {
		return "/"
	}
	return full
}

// unit returns the systemd slice of n and the one above it.
func (n name) unit() (parent, unit string) {
	dir, unit := path.Split(n.systemd())
	if parent = path.Base(dir); parent == "/" {
		parent = "-" + slice
	}
	return parent, unit
}

// check refuses parts that could lead out of the tree.
func (n name) check() error {
	for _, part := range n {
		if part == "." || part == ".." || strings.ContainsAny(part, "/\x00\n") {
			return fmt.Errorf("%q cannot be part of a cgroup's name", part)
		}
	}
	return nil
}

// podName returns the cgroup of a pod: directly below kubepods for a guaranteed pod, else below its class.
func (t *Tree) podName(p Pod) (name, error) {
	if !podutil.ValidUID(p.UID) {
		return nil, fmt.Errorf("pod UID %q cannot name a cgroup: a UID must be %s", p.UID, podutil.UIDFormat)
	}
	return append(t.classRoot(p.QOS), podPrefix+string(p.UID)), nil
}

func (t *Tree) classRoot(qos corev1.PodQOSClass) name {
	switch qos {
	case corev1.PodQOSBurstable, corev1.PodQOSBestEffort:
		return t.pods.below(strings.ToLower(string(qos)))
	}
	return t.pods.below()
}

// uidOf reads a pod's UID from the name of a directory, as the driver in use spells it.
func (t *Tree) uidOf(dir string) (types.UID, bool) {
	last := dir
	if t.systemd.Load() {
		if !strings.HasSuffix(dir, slice) {
			return "", false
		}
		parts := parseName(dir)
		last = parts[len(parts)-1]
	}
	uid, ok := strings.CutPrefix(last, podPrefix)
	return types.UID(uid), ok && uid != ""
}
