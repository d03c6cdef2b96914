package metrics

// SELinux has the instruments of volumes that are mounted with SELinux labels, under the kubelet's names. An error
// keeps a pod from running; a warning would be an error if volumes of every access mode were mounted with a label.
type SELinux struct {
	ContainerErrors, ContainerWarnings *Vec[*Gauge] // by access_mode
	PodErrors, PodWarnings             *Vec[*Gauge] // by access_mode
	VolumeErrors, VolumeWarnings       *Vec[*Gauge] // by volume_plugin, access_mode
	Admitted                           *Vec[*Gauge] // by volume_plugin, access_mode
}

func newSELinux(r *Registry) SELinux {
	const name = "volume_manager_selinux_"
	return SELinux{
		ContainerErrors: r.Gauges(name+"container_errors_total",
			"[ALPHA] Number of errors when the SELinux label of a container cannot be known; the pod is tried again.",
			"access_mode"),
		ContainerWarnings: r.Gauges(name+"container_warnings_total",
			"[ALPHA] Number of times when the SELinux label of a container could not be known, which did no harm yet.",
			"access_mode"),
		PodErrors: r.Gauges(name+"pod_context_mismatch_errors_total",
			"[ALPHA] Number of errors when containers of a pod need different SELinux labels of one volume; the pod is "+
				"tried again.", "access_mode"),
		PodWarnings: r.Gauges(name+"pod_context_mismatch_warnings_total",
			"[ALPHA] Number of times when containers of a pod needed different SELinux labels of one volume, which did no "+
				"harm yet.", "access_mode"),
		VolumeErrors: r.Gauges(name+"volume_context_mismatch_errors_total",
			"[ALPHA] Number of errors when a volume is in use with another SELinux label than the pod needs; the pod is "+
				"tried again.", "volume_plugin", "access_mode"),
		VolumeWarnings: r.Gauges(name+"volume_context_mismatch_warnings_total",
			"[ALPHA] Number of times when a volume was in use by a pod that wanted another SELinux label, which did no harm "+
				"yet.", "volume_plugin", "access_mode"),
		Admitted: r.Gauges(name+"volumes_admitted_total", "[ALPHA] Number of volumes whose SELinux label was fine.",
			"volume_plugin", "access_mode"),
	}
}
