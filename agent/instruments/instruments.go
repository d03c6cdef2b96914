// Package instruments counts what the agent does, and the pods that it has, in the kubelet's metrics.
//
// It owns the mapping from steps, syncs and pods to the instruments; package exporter owns the endpoints. It decides
// nothing. The supervisor, the workers, the executor of steps and the volumes call it. It stores nothing: after a crash
// counters start at zero, as the kubelet's do.
package instruments

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/kube/pluginname"
	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/metrics"
	"github.com/nodelet/nodelet/metrics/exporter"
	"github.com/nodelet/nodelet/volumes"
)

// Metrics counts what the agent and its volumes do. It implements agent.Metrics and execute.Metrics, which describe
// each method.
type Metrics struct {
	exporter *exporter.Exporter
	agent    *metrics.Agent
	// steps has the durations of steps of pods, by result (success or failure) and step.
	steps *metrics.Vec[*metrics.Histogram]
	// relisted is the start of the last relist. Only the supervisor's goroutine uses it.
	relisted time.Time
	// firstNetworkPod is done when a pod with a network of its own has started.
	firstNetworkPod sync.Once
}

// New returns Metrics that count in the instruments of e. Call it once.
func New(e *exporter.Exporter) *Metrics {
	return &Metrics{exporter: e, agent: e.Agent, steps: e.AddSteps()}
}

// StatusPublished counts an accepted status of a pod, and how long after the change.
func (m *Metrics) StatusPublished(_ *corev1.Pod, took time.Duration) { m.agent.StatusSync.Took(took) }

// SandboxRun implements execute.Metrics.
func (m *Metrics) SandboxRun(handler string, took time.Duration, err error) {
	m.agent.RunSandbox.With(handler).Took(took)
	if err != nil {
		m.agent.RunSandboxErrors.With(handler).Inc()
	}
}

// HookFellBack implements execute.Metrics.
func (m *Metrics) HookFellBack() { m.agent.HookFallbacks.Inc() }

// SleepEnded implements execute.Metrics.
func (m *Metrics) SleepEnded() { m.agent.SleepsEnded.Inc() }

// CgroupChanged counts an operation on the cgroup of a pod, or on those of the classes of pods.
func (m *Metrics) CgroupChanged(operation string, took time.Duration) {
	m.agent.Cgroups.With(operation).Took(took)
}

// Evicted counts the eviction of a pod because of a signal.
func (m *Metrics) Evicted(signal string) { m.agent.Evictions.With(signal).Inc() }

// Step implements execute.Metrics.
func (m *Metrics) Step(pod *corev1.Pod, s podstate.Step, took time.Duration, p *podstate.Problem) {
	a := m.agent
	if p != nil && p.Cancelled {
		return
	}
	m.steps.With(resultOf(p), strings.TrimPrefix(fmt.Sprintf("%T", s), "podstate.")).Took(took)
	if p != nil {
		m.startFailed(pod, s, p)
	}
	switch s := s.(type) {
	case podstate.CreateSandbox:
		a.StartedPods.Inc()
		if podutil.HasUserNamespace(&pod.Spec) {
			a.StartedUserNamespaced.Inc()
		}
		if p != nil {
			m.userNamespaceFailed(pod)
			a.StartedPodsErrors.Inc()
		}
	case podstate.CreateContainer:
		if p != nil {
			m.userNamespaceFailed(pod)
		}
	case podstate.StartContainer:
		if p != nil {
			m.userNamespaceFailed(pod)
		} else {
			a.StartedContainers.With(containerType(pod, s.Name)).Inc()
		}
	}
}

// startFailed counts the failure of a step that the start of a container needs, and the start, which the kubelet counts
// before its outcome. One whose postStart hook fails has been counted. A failure without a reason is that of a hook
// that has not run yet.
func (m *Metrics) startFailed(pod *corev1.Pod, s podstate.Step, p *podstate.Problem) {
	name := ""
	switch s := s.(type) {
	case podstate.EnsureImage:
		name = s.Container // empty for an image volume: the kubelet does not count those either
	case podstate.CreateContainer:
		name = s.Name
	case podstate.StartContainer:
		name = s.Name
	case podstate.PostStart:
		name = s.Name
	}
	if name == "" || p.Reason == "" {
		return
	}
	if _, hook := s.(podstate.PostStart); !hook {
		m.agent.StartedContainers.With(containerType(pod, name)).Inc()
	}
	m.agent.StartedContainersErrors.With(p.Reason, containerType(pod, name)).Inc()
}

// userNamespaceFailed counts a failure of a pod with a user namespace. Most of them occur when a container is created.
func (m *Metrics) userNamespaceFailed(pod *corev1.Pod) {
	if podutil.HasUserNamespace(&pod.Spec) {
		m.agent.StartedUserNamespacedErrors.Inc()
	}
}

// resultOf is the label of nodelet_step_duration_seconds.
func resultOf(p *podstate.Problem) string {
	if p != nil {
		return "failure"
	}
	return "success"
}

func containerType(pod *corev1.Pod, name string) string {
	switch role, c := podutil.Container(&pod.Spec, name); {
	case c == nil || role == podutil.RoleApp:
		return "container"
	case role == podutil.RoleEphemeral:
		return "ephemeral_container"
	}
	return "init_container"
}

// Created implements agent.Metrics.
func (m *Metrics) Created(pod *corev1.Pod, waited time.Duration) {
	m.agent.PodWorkerStart.Took(waited)
	m.agent.ContainersPerPod.Observe(float64(len(pod.Spec.Containers)))
}

// Synced implements agent.Metrics.
func (m *Metrics) Synced(kind string, took time.Duration) {
	m.agent.PodWorker.With(kind).Took(took)
}

// Pulled implements execute.Metrics.
func (m *Metrics) Pulled(bytes uint64, took time.Duration) {
	m.agent.ImagePull.With(metrics.ImageSize(bytes)).Took(took)
}

// Running implements agent.Metrics.
func (m *Metrics) Running(pod *corev1.Pod, seen time.Time, delayed time.Duration) {
	a, now := m.agent, time.Now()
	a.PodStart.Took(now.Sub(seen))
	if pod.CreationTimestamp.IsZero() {
		return
	}
	total := max(0, now.Sub(pod.CreationTimestamp.Time))
	a.PodStartTotal.Took(total)
	if stateful(pod) {
		return
	}
	a.PodStartSLI.Took(max(0, total-delayed))
	if !pod.Spec.HostNetwork {
		m.firstNetworkPod.Do(func() { a.FirstNetworkPod.Set(max(0, total-delayed).Seconds()) })
	}
}

// stateful reports whether the pod has a volume that others provide. The service level of pod starts does not count
// such pods: https://github.com/kubernetes/community/blob/master/sig-scalability/slos/pod_startup_latency.md
func stateful(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.Secret == nil && v.ConfigMap == nil && v.DownwardAPI == nil && v.EmptyDir == nil && v.Projected == nil
	})
}

// Ended implements agent.Metrics.
func (m *Metrics) Ended(pod *corev1.Pod, container string, end *corev1.ContainerStateTerminated) {
	m.agent.TerminatedContainers.With(containerType(pod, container), strconv.Itoa(int(end.ExitCode)), end.Reason).Inc()
}

// Relisted implements agent.Metrics.
func (m *Metrics) Relisted(began time.Time, took time.Duration, err error) {
	a := m.agent
	a.Relist.Took(took)
	if !m.relisted.IsZero() {
		a.RelistInterval.Took(began.Sub(m.relisted))
	}
	m.relisted = began
	if err == nil {
		a.RelistLast.Set(float64(began.Unix()))
	}
}

// Rejected implements agent.Metrics.
func (m *Metrics) Rejected(reason string) { m.agent.Admission.With(rejection(reason)).Inc() }

// Preempted implements agent.Metrics.
func (m *Metrics) Preempted(resource string) { m.agent.Preemptions.With(resource).Inc() }

// migrated is the label for volumes of in-tree kinds that CSI drivers have replaced, which are counted as the driver's.
const migrated = "false"

// VolumeOperation implements volumes.Metrics.
func (m *Metrics) VolumeOperation(name, plugin string, took time.Duration, err error) {
	result := "success"
	if err != nil {
		result = "fail-unknown"
	}
	m.agent.Storage.With(migrated, name, result, plugin).Took(took)
}

// CSICalled implements volumes.Metrics.
func (m *Metrics) CSICalled(driver, method string, took time.Duration, err error) {
	m.agent.CSI.With(driver, status.Code(err).String(), "/csi.v1.Node/"+method, migrated).Took(took)
}

// SELinux implements volumes.Metrics.
func (m *Metrics) SELinux(result volumes.SELinuxResult, driver, accessMode string, applies bool) {
	s, plugin := m.agent.SELinux, driver
	if driver != pluginname.ISCSI {
		plugin = pluginname.CSI + "/" + driver
	}
	of := func(errors, warnings *metrics.Vec[*metrics.Gauge]) *metrics.Vec[*metrics.Gauge] {
		if applies {
			return errors
		}
		return warnings
	}
	switch result {
	case volumes.SELinuxAdmitted:
		s.Admitted.With(plugin, accessMode).Add(1)
	case volumes.SELinuxUnknown:
		of(s.ContainerErrors, s.ContainerWarnings).With(accessMode).Add(1)
	case volumes.SELinuxMixed:
		of(s.PodErrors, s.PodWarnings).With(accessMode).Add(1)
	case volumes.SELinuxConflict:
		of(s.VolumeErrors, s.VolumeWarnings).With(plugin, accessMode).Add(1)
	}
}

// Released implements agent.Metrics.
func (m *Metrics) Released(pod *corev1.Pod) {
	m.exporter.ForgetProbes(pod.Namespace, pod.Name, pod.UID)
}
