package spec

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/host/cgroups/names"
)

// Cgroups says how the cgroups of pods are named.
type Cgroups struct {
	// Root is cgroupRoot of the KubeletConfiguration, a path below the cgroup file system such as / or /kubelet.
	Root string
	// Systemd selects the names of the systemd driver (kubepods-burstable.slice) over those of cgroupfs.
	Systemd bool
	// Flat is set if cgroupsPerQOS is off: pods then have no cgroup of their own.
	Flat bool
}

// Pod returns the pod's cgroup, which is the CRI cgroup_parent of its sandbox; empty where pods have none.
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
