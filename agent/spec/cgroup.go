package spec

import (
	"fmt"
	"path"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Cgroups says how the cgroups of pods are called.
type Cgroups struct {
	// Root is KubeletConfiguration cgroupRoot, a path below the cgroup file system such as / or /kubelet.
	Root string
	// Systemd selects the names of the systemd driver (kubepods-burstable.slice) over those of cgroupfs.
	Systemd bool
	// Flat is set where cgroupsPerQOS is off: pods then have no cgroup of their own.
	Flat bool
}

const podCgroupPrefix = "pod"

// Pod is the pod's cgroup, which is the CRI cgroup_parent of its sandbox: with cgroupfs
// /kubepods/burstable/pod<uid>, with systemd /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid>.slice
// where each - of the UID is a _. It is empty where pods have no cgroup.
func (c Cgroups) Pod(uid types.UID, class corev1.PodQOSClass) (string, error) {
	if c.Flat {
		return "", nil
	}
	if err := checkUID(uid); err != nil {
		return "", err
	}
	return c.name(append(c.class(class), podCgroupPrefix+string(uid))), nil
}

// PodUID reads the UID of a pod from the last element of its cgroup's path. It is false for a cgroup of another kind.
func (c Cgroups) PodUID(cgroup string) (types.UID, bool) {
	base := path.Base(cgroup)
	if c.Systemd {
		slice, ok := strings.CutSuffix(base, ".slice")
		if !ok {
			return "", false
		}
		base = strings.ReplaceAll(slice[strings.LastIndexByte(slice, '-')+1:], "_", "-")
	}
	uid, ok := strings.CutPrefix(base, podCgroupPrefix)
	if !ok || checkUID(types.UID(uid)) != nil {
		return "", false
	}
	return types.UID(uid), true
}

func (c Cgroups) kubepods() []string {
	var parts []string
	for part := range strings.SplitSeq(c.Root, "/") {
		if part != "" {
			parts = append(parts, part)
		}
	}
	if c.Flat {
		return parts
	}
	return append(parts, "kubepods")
}

func (c Cgroups) class(class corev1.PodQOSClass) []string {
	if c.Flat || class == corev1.PodQOSGuaranteed {
		return c.kubepods()
	}
	return append(c.kubepods(), strings.ToLower(string(class)))
}

// name writes a cgroup's path. A systemd slice carries the names of its parents, joined by -, so a - within a name
// becomes a _.
func (c Cgroups) name(parts []string) string {
	if !c.Systemd {
		return "/" + path.Join(parts...)
	}
	var full, slice strings.Builder
	for i, part := range parts {
		if i > 0 {
			slice.WriteByte('-')
		}
		slice.WriteString(strings.ReplaceAll(part, "-", "_"))
		fmt.Fprintf(&full, "/%s.slice", slice.String())
	}
	if full.Len() == 0 {
		return "/"
	}
	return full.String()
}
