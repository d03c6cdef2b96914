package pods

import (
	"cmp"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// summary is what the columns READY, STATUS and RESTARTS of kubectl get pods say about a pod.
type summary struct {
	total    int // app containers and sidecars
	ready    int // those that are ready
	state    string
	restarts int
	restart  time.Time // when the last instance that was restarted had ended; zero if unknown
}

// summarize follows the API server's table of pods: while a pod initializes, its state and restarts are those of its
// init containers, afterwards those of its app containers and sidecars.
func summarize(p *corev1.Pod) summary {
	var all, sidecars summary
	total := 0
	for range podutil.AppsAndSidecars(&p.Spec) {
		total++
	}
	initializing := ""
	for i := range p.Status.InitContainerStatuses {
		s := &p.Status.InitContainerStatuses[i]
		role, _ := podutil.Container(&p.Spec, s.Name)
		all.addRestarts(s)
		if role == podutil.RoleSidecar {
			sidecars.addRestarts(s)
		}
		switch end := s.State.Terminated; {
		case end != nil && end.ExitCode == 0:
			continue
		case role == podutil.RoleSidecar && s.Started != nil && *s.Started:
			if s.Ready {
				sidecars.ready++
			}
			continue
		case end == nil && (waits(s) == "" || waits(s) == "PodInitializing"):
			initializing = fmt.Sprintf("Init:%d/%d", i, len(p.Spec.InitContainers))
		default:
			initializing = "Init:" + cmp.Or(waits(s), ended(s))
		}
		break
	}
	initialized := podutil.Condition(p.Status.Conditions, corev1.PodInitialized)
	if initializing != "" && (initialized == nil || initialized.Status != corev1.ConditionTrue) {
		all.ready, all.state = sidecars.ready, initializing
	} else {
		all = sidecars
		all.state = all.addApps(&p.Status)
	}
	if p.DeletionTimestamp != nil && !podutil.IsTerminal(p.Status.Phase) {
		all.state = "Terminating"
	}
	all.total = total
	all.state = cmp.Or(all.state, initializing, p.Status.Reason, string(p.Status.Phase))
	return all
}

// addApps adds the app containers and returns the state that they give the pod; empty if all of them run.
func (m *summary) addApps(st *corev1.PodStatus) (state string) {
	failed, runs := "", false
	for i := range st.ContainerStatuses {
		s := &st.ContainerStatuses[i]
		m.addRestarts(s)
		state = cmp.Or(state, waits(s), ended(s))
		if end := s.State.Terminated; end != nil && end.ExitCode != 0 {
			failed = cmp.Or(failed, ended(s))
		}
		if s.Ready && s.State.Running != nil {
			m.ready++
			runs = true
		}
	}
	if state != "Completed" {
		return state
	}
	ready := podutil.Condition(st.Conditions, corev1.PodReady)
	switch {
	case runs && ready != nil && ready.Status == corev1.ConditionTrue:
		return "Running"
	case failed != "":
		return failed
	case runs:
		return "NotReady"
	}
	return state
}

func (m *summary) addRestarts(s *corev1.ContainerStatus) {
	m.restarts += int(s.RestartCount)
	if last := s.LastTerminationState.Terminated; last != nil && last.FinishedAt.After(m.restart) {
		m.restart = last.FinishedAt.Time
	}
}

// restartsText is, for example, "3 (2m ago)".
func (m *summary) restartsText(now time.Time) string {
	if m.restarts == 0 || m.restart.IsZero() {
		return fmt.Sprint(m.restarts)
	}
	return fmt.Sprintf("%d (%s ago)", m.restarts, duration.HumanDuration(now.Sub(m.restart)))
}

// waits returns why a container waits; empty if it does not.
func waits(s *corev1.ContainerStatus) string {
	if s.State.Waiting == nil {
		return ""
	}
	return s.State.Waiting.Reason
}

// ended returns how a container ended; empty if it has not ended.
func ended(s *corev1.ContainerStatus) string {
	end := s.State.Terminated
	switch {
	case end == nil:
		return ""
	case end.Reason != "":
		return end.Reason
	case end.Signal != 0:
		return fmt.Sprintf("Signal:%d", end.Signal)
	}
	return fmt.Sprintf("ExitCode:%d", end.ExitCode)
}
