package agent

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/host/cgroups"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// removeCgroup removes the cgroup of the pod and kills what still runs in it.
func (t *task) removeCgroup(ctx context.Context) error {
	var errs []error
	for _, class := range classes(t.pod) {
		errs = append(errs, t.backends.Cgroups.RemovePod(ctx, cgroups.Pod{UID: t.pod.UID, QOS: class}))
	}
	return errors.Join(errs...)
}

// cgroupExists reports whether the pod has a cgroup.
func (h *Backends) cgroupExists(pod *corev1.Pod) (bool, error) {
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

// podCgroups lists the pods that have a cgroup; none if the agent does not create cgroups for pods.
func (h *Backends) podCgroups() ([]cgroups.Pod, error) {
	if h.Node().Cgroups.Flat {
		return nil, nil
	}
	return h.Cgroups.Pods()
}

// classes returns the QoS classes in which the pod's cgroup may be: all of them if only its UID is known.
func classes(pod *corev1.Pod) []corev1.PodQOSClass {
	if len(pod.Spec.Containers) > 0 {
		return []corev1.PodQOSClass{podutil.QOS(pod)}
	}
	return []corev1.PodQOSClass{corev1.PodQOSGuaranteed, corev1.PodQOSBurstable, corev1.PodQOSBestEffort}
}
