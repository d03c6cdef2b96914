package spec

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/host/cgroups/names"
)

// Cgroups holds the settings that determine the names of the pods' cgroups.
type Cgroups struct {
	// Root is cgroupRoot of the KubeletConfiguration, a path below the cgroup file system such as / or /kubelet.
	Root string
	// Systemd selects the names of the systemd driver (kubepods-burstable.slice) instead of those of cgroupfs.
	Systemd bool
	// Flat: cgroupsPerQOS is off, so pods have no cgroup of their own.
	Flat bool
}

// Pod returns the pod's cgroup, which is the CRI cgroup_parent of its sandbox; empty if pods have none.
func (c Cgroups) Pod(uid types.UID, class corev1.PodQOSClass) (string, error) {
	if c.Flat {
		return "", nil
	}
	name, err := names.Pods(c.Root).Pod(uid, class)
	if err != nil {
		return "", err
	}
	return name.Spell(c.Systemd), nil
}
