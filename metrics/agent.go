package metrics

import (
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// DefaultBuckets are the kubelet's buckets for most durations, in seconds.
var DefaultBuckets = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}

// runtimeBuckets are for calls to the container runtime: 14 buckets from 5 ms, each 2.5 times as large as the one
// before.
var runtimeBuckets = exponential(.005, 2.5, 14)

// startBuckets are for how long pods take to start, in seconds.
var startBuckets = []float64{
	0.5, 1, 2, 3, 4, 5, 6, 8, 10, 20, 30, 45, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600,
}

var (
	storageBuckets = []float64{.1, .25, .5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600}
	pullBuckets    = []float64{1, 5, 10, 20, 30, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600}
)

func exponential(first, factor float64, n int) []float64 {
	all := make([]float64, n)
	for i := range all {
		all[i] = first
		first *= factor
	}
	return all
}

// Agent has the instruments of the agent, under the kubelet's names. Packages do not use it: they call functions or an
// interface that count in it.
type Agent struct {
	// runtimeTotal, runtimeErrors and runtimeTook count calls to the container runtime, by operation_type.
	runtimeTotal, runtimeErrors *Vec[*Counter]
	runtimeTook                 *Vec[*Histogram]
	// losingSupport has the version of Kubernetes that is too new for the runtime.
	losingSupport *Vec[*Gauge]

	PodMetrics
	ContainerMetrics
	// Cgroups has the durations of changes to pods' cgroups, by operation_type: create, update or destroy.
	Cgroups     *Vec[*Histogram]
	ImagePull   *Vec[*Histogram] // by image_size_in_bytes, see ImageSize
	Storage     *Vec[*Histogram] // by migrated, operation_name, status, volume_plugin
	CSI         *Vec[*Histogram] // by driver_name, grpc_status_code, method_name, migrated
	Evictions   *Vec[*Counter]   // by eviction_signal
	Preemptions *Vec[*Counter]   // by preemption_signal
	SELinux     SELinux
}

// PodMetrics are the instruments of pods and their workers.
type PodMetrics struct {
	PodStart, PodStartTotal, PodStartSLI, PodWorkerStart *Histogram
	// PodWorker has the durations of syncs of pods, by operation_type: create, sync or terminate.
	PodWorker *Vec[*Histogram]
	// StatusSync has the times from a change of a status to its acceptance by the API server.
	StatusSync       *Histogram
	ContainersPerPod *Histogram
	// FirstNetworkPod is the duration of the first start of a pod with a network of its own.
	FirstNetworkPod *Gauge
	Relist          *Histogram
	// RelistInterval has the times from the start of one relist to the start of the next.
	RelistInterval *Histogram
	RelistLast     *Gauge

	StartedPods                 *Counter
	StartedPodsErrors           *Counter
	StartedUserNamespaced       *Counter
	StartedUserNamespacedErrors *Counter
	Admission                   *Vec[*Counter] // rejections, by reason
}

// ContainerMetrics are the instruments of sandboxes and containers.
type ContainerMetrics struct {
	RunSandbox       *Vec[*Histogram] // by runtime_handler
	RunSandboxErrors *Vec[*Counter]
	// StartedContainers counts by container_type: container, init_container or ephemeral_container.
	StartedContainers       *Vec[*Counter]
	StartedContainersErrors *Vec[*Counter] // by code and container_type
	TerminatedContainers    *Vec[*Counter] // by container_type, exit_code and reason

	HookFallbacks, SleepsEnded *Counter
}

// NewAgent adds the agent's instruments to a registry.
func NewAgent(r *Registry, node string) *Agent {
	name := r.Gauges("kubelet_node_name", "[ALPHA] The node's name. The count is always 1.", "node")
	name.With(node).Set(1)
	return &Agent{
		PodMetrics:       newPodMetrics(r),
		ContainerMetrics: newContainerMetrics(r),
		runtimeTotal: r.Counters("kubelet_runtime_operations_total",
			"[ALPHA] Cumulative number of runtime operations by operation type.", "operation_type"),
		runtimeErrors: r.Counters("kubelet_runtime_operations_errors_total",
			"[ALPHA] Cumulative number of runtime operation errors by operation type.", "operation_type"),
		runtimeTook: r.Histograms("kubelet_runtime_operations_duration_seconds",
			"[ALPHA] Duration in seconds of runtime operations. Broken down by operation type.", runtimeBuckets,
			"operation_type"),
		losingSupport: r.Gauges("kubelet_cri_losing_support", "[ALPHA] the Kubernetes version that the currently running "+
			"CRI implementation will lose support on if not upgraded.", "version"),
		Cgroups: r.Histograms("kubelet_cgroup_manager_duration_seconds",
			"[ALPHA] Duration in seconds for cgroup manager operations. Broken down by method.", DefaultBuckets,
			"operation_type"),
		ImagePull: r.Histograms("kubelet_image_pull_duration_seconds",
			"[ALPHA] Duration in seconds to pull an image.", pullBuckets, "image_size_in_bytes"),
		Storage: r.Histograms("storage_operation_duration_seconds",
			"[BETA] Storage operation duration", storageBuckets, "migrated", "operation_name", "status", "volume_plugin"),
		CSI: r.Histograms("csi_operations_seconds",
			"[ALPHA] Container Storage Interface operation duration with gRPC error code status total", storageBuckets,
			"driver_name", "grpc_status_code", "method_name", "migrated"),
		Evictions: r.Counters("kubelet_evictions",
			"[ALPHA] Cumulative number of pod evictions by eviction signal", "eviction_signal"),
		Preemptions: r.Counters("kubelet_preemptions",
			"[ALPHA] Cumulative number of pod preemptions by preemption resource", "preemption_signal"),
		SELinux: newSELinux(r),
	}
}

func newPodMetrics(r *Registry) PodMetrics {
	return PodMetrics{
		PodStart: r.Histogram("kubelet_pod_start_duration_seconds",
			"[ALPHA] Duration in seconds from kubelet seeing a pod for the first time to the pod starting to run",
			startBuckets),
		PodStartTotal: r.Histogram("kubelet_pod_start_total_duration_seconds",
			"[ALPHA] Duration in seconds to start a pod since creation, including time to pull images and run init "+
				"containers, measured from pod creation timestamp to when all its containers are reported as started and "+
				"observed via watch", startBuckets),
		PodStartSLI: r.Histogram("kubelet_pod_start_sli_duration_seconds",
			"[ALPHA] Duration in seconds to start a pod, excluding time to pull images and run init containers, measured "+
				"from pod creation timestamp to when all its containers are reported as started and observed via watch",
			startBuckets),
		PodWorkerStart: r.Histogram("kubelet_pod_worker_start_duration_seconds",
			"[ALPHA] Duration in seconds from kubelet seeing a pod to starting a worker.", DefaultBuckets),
		PodWorker: r.Histograms("kubelet_pod_worker_duration_seconds",
			"[ALPHA] Duration in seconds to sync a single pod. Broken down by operation type: create, update, or sync",
			DefaultBuckets, "operation_type"),
		StatusSync: r.Histogram("kubelet_pod_status_sync_duration_seconds",
			"[ALPHA] Duration in seconds to sync a pod status update. Measures time from detection of a change to pod status "+
				"until the API is successfully updated for that pod, even if multiple intevening changes to pod status occur.",
			[]float64{.01, .05, .1, .5, 1, 5, 10, 20, 30, 45, 60}),
		ContainersPerPod: r.Histogram("kubelet_containers_per_pod_count",
			"[ALPHA] The number of containers per pod.", exponential(1, 2, 5)),
		FirstNetworkPod: r.Gauge("kubelet_first_network_pod_start_sli_duration_seconds",
			"[INTERNAL] Duration in seconds to start the first network pod, excluding time to pull images and run init "+
				"containers, measured from pod creation timestamp to when all its containers are reported as started and "+
				"observed via watch"),
		Relist: r.Histogram("kubelet_pleg_relist_duration_seconds",
			"[ALPHA] Duration in seconds for relisting pods in PLEG.", DefaultBuckets),
		RelistInterval: r.Histogram("kubelet_pleg_relist_interval_seconds",
			"[ALPHA] Interval in seconds between relisting in PLEG.", DefaultBuckets),
		RelistLast: r.Gauge("kubelet_pleg_last_seen_seconds",
			"[ALPHA] Timestamp in seconds when PLEG was last seen active."),
		StartedPods: r.Counter("kubelet_started_pods_total", "[ALPHA] Cumulative number of pods started"),
		StartedPodsErrors: r.Counter("kubelet_started_pods_errors_total",
			"[ALPHA] Cumulative number of errors when starting pods"),
		StartedUserNamespaced: r.Counter("kubelet_started_user_namespaced_pods_total",
			"[ALPHA] Cumulative number of pods with user namespaces started. This metric will only be collected on Linux."),
		StartedUserNamespacedErrors: r.Counter("kubelet_started_user_namespaced_pods_errors_total",
			"[ALPHA] Cumulative number of errors when starting pods with user namespaces. This metric will only be "+
				"collected on Linux."),
		Admission: r.Counters("kubelet_admission_rejections_total",
			"[ALPHA] Cumulative number pod admission rejections by the Kubelet.", "reason"),
	}
}

func newContainerMetrics(r *Registry) ContainerMetrics {
	return ContainerMetrics{
		RunSandbox: r.Histograms("kubelet_run_podsandbox_duration_seconds",
			"[ALPHA] Duration in seconds of the run_podsandbox operations. Broken down by RuntimeClass.Handler.",
			DefaultBuckets, "runtime_handler"),
		RunSandboxErrors: r.Counters("kubelet_run_podsandbox_errors_total",
			"[ALPHA] Cumulative number of the run_podsandbox operation errors by RuntimeClass.Handler.", "runtime_handler"),
		StartedContainers: r.Counters("kubelet_started_containers_total",
			"[ALPHA] Cumulative number of containers started", "container_type"),
		StartedContainersErrors: r.Counters("kubelet_started_containers_errors_total",
			"[ALPHA] Cumulative number of errors when starting containers", "code", "container_type"),
		TerminatedContainers: r.Counters("kubelet_terminated_containers_total",
			"[ALPHA] Cumulative number of container terminations.", "container_type", "exit_code", "reason"),
		HookFallbacks: r.Counter("kubelet_lifecycle_handler_http_fallbacks_total",
			"[ALPHA] The number of times lifecycle handlers successfully fell back to http from https."),
		SleepsEnded: r.Counter("kubelet_sleep_action_terminated_early_total",
			"[ALPHA] The number of times lifecycle sleep handler got terminated before it finishes"),
	}
}

// needsRuntimeConfig is the version of Kubernetes that refuses runtimes without the call RuntimeConfig.
const needsRuntimeConfig = "1.38.0"

// RuntimeCall counts a call to the container runtime. verb is the name of the CRI method.
func (a *Agent) RuntimeCall(verb string, took time.Duration, err error) {
	operation := runtimeOperation(verb)
	a.runtimeTotal.With(operation).Inc()
	a.runtimeTook.With(operation).Took(took)
	if err != nil {
		a.runtimeErrors.With(operation).Inc()
	}
	if verb == "RuntimeConfig" && status.Code(err) == codes.Unimplemented {
		a.losingSupport.With(needsRuntimeConfig).Set(1)
	}
}

// runtimeOperation returns the kubelet's name of a CRI method: run_podsandbox for RunPodSandbox, and so on.
func runtimeOperation(verb string) string {
	switch verb {
	case "UpdateContainerResources":
		return "update_container"
	case "Version", "Status", "Exec", "Attach":
		return strings.ToLower(verb)
	}
	verb = strings.ReplaceAll(verb, "PodSandbox", "Podsandbox")
	var b strings.Builder
	for i, c := range verb {
		if c >= 'A' && c <= 'Z' {
			if i > 0 {
				b.WriteByte('_')
			}
			c += 'a' - 'A'
		}
		b.WriteRune(c)
	}
	return b.String()
}

// ImageSize returns the label for the size of an image: the range that contains it.
func ImageSize(bytes uint64) string {
	const mb, gb = 1 << 20, 1 << 30
	for _, s := range []struct {
		below uint64
		label string
	}{
		{10 * mb, "0-10MB"}, {100 * mb, "10MB-100MB"}, {500 * mb, "100MB-500MB"}, {gb, "500MB-1GB"}, {5 * gb, "1GB-5GB"},
		{10 * gb, "5GB-10GB"}, {20 * gb, "10GB-20GB"}, {30 * gb, "20GB-30GB"}, {40 * gb, "30GB-40GB"}, {60 * gb, "40GB-60GB"},
		{100 * gb, "60GB-100GB"},
	} {
		if bytes < s.below {
			return s.label
		}
	}
	return "GT100GB"
}
