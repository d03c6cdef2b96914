package pod

import (
	"iter"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ContainerStatus is the status of the named container, whatever its role; nil where the pod's status has
// none. Containers of one pod never share a name.
func ContainerStatus(st *corev1.PodStatus, name string) *corev1.ContainerStatus {
	for _, list := range [...][]corev1.ContainerStatus{
		st.ContainerStatuses, st.InitContainerStatuses, st.EphemeralContainerStatuses,
	} {
		if c := StatusIn(list, name); c != nil {
			return c
		}
	}
	return nil
}

// ContainerStatuses returns the statuses of all containers: init containers, app containers, ephemeral containers.
func ContainerStatuses(st *corev1.PodStatus) iter.Seq[*corev1.ContainerStatus] {
	return func(yield func(*corev1.ContainerStatus) bool) {
		for _, list := range [][]corev1.ContainerStatus{
			st.InitContainerStatuses, st.ContainerStatuses, st.EphemeralContainerStatuses,
		} {
			for i := range list {
				if !yield(&list[i]) {
					return
				}
			}
		}
	}
}

// StatusIn is the named container's entry in a list of statuses; nil where there is none.
func StatusIn(list []corev1.ContainerStatus, name string) *corev1.ContainerStatus {
	for i := range list {
		if list[i].Name == name {
			return &list[i]
		}
	}
	return nil
}

// Moment is a time in a status; zero for never, for which the kubelet writes the start of 1970.
func Moment(t metav1.Time) time.Time {
	if !t.After(time.Unix(0, 0)) {
		return time.Time{}
	}
	return t.Time
}

// NetworkIntact is a condition of nodelet. It is False while the network plugins report a problem with the pod's
// network. Otherwise the pod does not have this condition.
const NetworkIntact corev1.PodConditionType = "nodelet.dev/NetworkIntact"

// OwnsCondition reports whether a node agent writes and clears a condition. PodScheduled and DisruptionTarget are not
// among them: it shares these with other components. All others belong to controllers and to readiness gates.
func OwnsCondition(t corev1.PodConditionType) bool {
	switch t {
	case corev1.PodReady, corev1.PodInitialized, corev1.ContainersReady, corev1.PodReadyToStartContainers,
		corev1.PodResizePending, corev1.PodResizeInProgress, corev1.AllContainersRestarting, NetworkIntact:
		return true
	}
	return false
}

// Condition is the condition of that type; nil where there is none.
func Condition(list []corev1.PodCondition, t corev1.PodConditionType) *corev1.PodCondition {
	for i := range list {
		if list[i].Type == t {
			return &list[i]
		}
	}
	return nil
}

// IsTrue reports whether the status has a condition of that type with status True.
func IsTrue(st *corev1.PodStatus, t corev1.PodConditionType) bool {
	c := Condition(st.Conditions, t)
	return c != nil && c.Status == corev1.ConditionTrue
}

// ContainerID is a container ID in the form in which the API shows it: runtime://id.
func ContainerID(runtime, id string) string { return runtime + "://" + id }

// RuntimeID is a container ID as the runtime knows it, from the form that the API shows. An ID without a
// runtime is returned as it is.
func RuntimeID(shown string) string {
	if _, id, found := strings.Cut(shown, "://"); found {
		return id
	}
	return shown
}
