package pod

// Labels by which the kubelet and nodelet mark their sandboxes and containers in the runtime.
const (
	LabelPodName       = "io.kubernetes.pod.name"
	LabelPodNamespace  = "io.kubernetes.pod.namespace"
	LabelPodUID        = "io.kubernetes.pod.uid"
	LabelContainerName = "io.kubernetes.container.name"
)

// AnnotationGrace is the annotation of containers in the runtime with the grace period of their pod.
const AnnotationGrace = "io.kubernetes.pod.terminationGracePeriod"
