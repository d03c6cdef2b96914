package metrics

// Managers has the instruments of the CPU, memory and topology managers, under the kubelet's names.
type Managers struct {
	CPUs, CPUErrors         *Counter
	Shared, Exclusive       *Gauge
	PerNode                 *Vec[*Gauge] // by numa_node
	Memory, MemoryErrors    *Counter
	Decisions, Refusals     *Counter
	DecisionTook            *Histogram     // in milliseconds
	Aligned, AlignedFailure *Vec[*Counter] // by scope, boundary
	// Allocations and AllocationErrors are by resource_name, source; Assignments by resource_name, assignment_type.
	Allocations, AllocationErrors, Assignments *Vec[*Counter]
}

// NewManagers creates the instruments in r.
func NewManagers(r *Registry) *Managers {
	return &Managers{
		CPUs: r.Counter("kubelet_cpu_manager_pinning_requests_total",
			"[ALPHA] The number of cpu core allocations which required pinning."),
		CPUErrors: r.Counter("kubelet_cpu_manager_pinning_errors_total",
			"[ALPHA] The number of cpu core allocations which required pinning failed."),
		Shared: r.Gauge("kubelet_cpu_manager_shared_pool_size_millicores",
			"[ALPHA] The size of the shared CPU pool for non-guaranteed QoS pods, in millicores."),
		Exclusive: r.Gauge("kubelet_cpu_manager_exclusive_cpu_allocation_count",
			"[ALPHA] The total number of CPUs exclusively allocated to containers running on this node"),
		PerNode: r.Gauges("kubelet_cpu_manager_allocation_per_numa", "[ALPHA] Number of CPUs allocated per NUMA node",
			"numa_node"),
		Memory: r.Counter("kubelet_memory_manager_pinning_requests_total",
			"[ALPHA] The number of memory pages allocations which required pinning."),
		MemoryErrors: r.Counter("kubelet_memory_manager_pinning_errors_total",
			"[ALPHA] The number of memory pages allocations which required pinning that failed."),
		Decisions: r.Counter("kubelet_topology_manager_admission_requests_total",
			"[ALPHA] The number of admission requests where resources have to be aligned."),
		Refusals: r.Counter("kubelet_topology_manager_admission_errors_total",
			"[ALPHA] The number of admission request failures where resources could not be aligned."),
		DecisionTook: r.Histogram("kubelet_topology_manager_admission_duration_ms",
			"[ALPHA] Duration in milliseconds to serve a pod admission request.", exponential(.05, 2, 15)),
		Aligned: r.Counters("kubelet_container_aligned_compute_resources_count",
			"[ALPHA] Cumulative number of aligned compute resources allocated to containers by alignment type.",
			"scope", "boundary"),
		AlignedFailure: r.Counters("kubelet_container_aligned_compute_resources_failure_count",
			"[ALPHA] Cumulative number of failures to allocate aligned compute resources to containers by alignment type.",
			"scope", "boundary"),
		Allocations: r.Counters("kubelet_resource_manager_allocations_total",
			"[ALPHA] Number of exclusive resource allocations performed by a resource manager.", "resource_name", "source"),
		AllocationErrors: r.Counters("kubelet_resource_manager_allocation_errors_total",
			"[ALPHA] Number of errors encountered during exclusive resource allocation.", "resource_name", "source"),
		Assignments: r.Counters("kubelet_resource_manager_container_assignments_total",
			"[ALPHA] Number of containers with a specific type of resource assignment.", "resource_name",
			"assignment_type"),
	}
}
