package agent

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent/spec"
	"github.com/nodelet/nodelet/cgroups"
)

// makeCgroup makes the pod's cgroup with the limits that follow from its spec.
func (t *task) makeCgroup() error {
	node := t.hands.Node()
	if node.Cgroups.Flat {
		return nil
	}
	want := spec.PodCgroup(t.pod, node, false)
	r := cgroups.Resources{CPUShares: uint64(want.CPUShares), HugePages: want.Hugepages, Unified: want.Unified}
	if want.CPUQuota != nil {
		r.CPUQuota, r.CPUPeriod = *want.CPUQuota, uint64(*want.CPUPeriod)
	}
	if want.Memory != nil {
		r.Memory = *want.Memory
	}
	if want.Pids != nil {
		r.Pids = *want.Pids
	}
	_, err := t.hands.Cgroups.CreatePod(cgroups.Pod{UID: t.pod.UID, QOS: spec.QOSClass(t.pod)}, r)
	return err
}

// removeCgroup removes the pod's cgroup with whatever still runs in it.
func (t *task) removeCgroup(ctx context.Context) error {
	var errs []error
	for _, class := range classes(t.pod) {
		errs = append(errs, t.hands.Cgroups.RemovePod(ctx, cgroups.Pod{UID: t.pod.UID, QOS: class}))
	}
	return errors.Join(errs...)
}

// cgroupExists tells whether the pod has a cgroup.
func (h *Hands) cgroupExists(pod *corev1.Pod) (bool, error) {
	if h.Node().Cgroups.Flat {
		return false, nil
	}
	for _, class := range classes(pod) {
		if there, err := h.Cgroups.PodExists(cgroups.Pod{UID: pod.UID, QOS: class}); there || err != nil {
			return there, err
		}
	}
	return false, nil
}

// podCgroups lists the pods that have a cgroup. Without a cgroup for each pod there are none of the agent's making.
func (h *Hands) podCgroups() ([]cgroups.Pod, error) {
	if h.Node().Cgroups.Flat {
		return nil, nil
	}
	return h.Cgroups.Pods()
}

// classes are the QoS classes that the pod's cgroup may be in: all of them where only its UID is known.
func classes(pod *corev1.Pod) []corev1.PodQOSClass {
	if len(pod.Spec.Containers) > 0 {
		return []corev1.PodQOSClass{spec.QOSClass(pod)}
	}
	return []corev1.PodQOSClass{corev1.PodQOSGuaranteed, corev1.PodQOSBurstable, corev1.PodQOSBestEffort}
}
