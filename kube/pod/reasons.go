package pod

// Reasons of container states, statuses and events. They are the same as the kubelet's.
const (
	ReasonContainerCreating = "ContainerCreating"
	ReasonPodInitializing   = "PodInitializing"
	ReasonCrashLoopBackOff  = "CrashLoopBackOff"
	ReasonErrImagePull      = "ErrImagePull"
	ReasonImagePullBackOff  = "ImagePullBackOff"
	ReasonErrImageNeverPull = "ErrImageNeverPull"
	ReasonInvalidImageName  = "InvalidImageName"
	ReasonImageInspect      = "ImageInspectError"
	// The CRI also begins the errors of a pull with these two.
	ReasonRegistryUnavailable       = "RegistryUnavailable"
	ReasonSignatureValidationFailed = "SignatureValidationFailed"

	ReasonConfigPodSandbox      = "ConfigPodSandboxError"
	ReasonCreateContainerConfig = "CreateContainerConfigError"
	ReasonCreateContainer       = "CreateContainerError"
	ReasonRunContainer          = "RunContainerError"
	ReasonPostStartHook         = "PostStartHookError"
	ReasonUnexpectedAdmission   = "UnexpectedAdmissionError"
	ReasonDeadlineExceeded      = "DeadlineExceeded"
	ReasonStatusUnknown         = "ContainerStatusUnknown"
	// ReasonPreempting and MessagePreempted are for a pod that is preempted by a critical pod.
	ReasonPreempting = "Preempting"
	MessagePreempted = "Preempted in order to admit critical pod"
	// MessageRejected begins the message of a pod that is rejected.
	MessageRejected = "Pod was rejected: "
	// MessageSandboxChanged is why the containers of a lost sandbox are stopped.
	MessageSandboxChanged = "Pod sandbox changed, it will be killed and re-created."
	// ReasonRestartingAll is the end of a container that a reset has removed.
	ReasonRestartingAll = "RestartingAllContainers"
	// MessageRestartingAll goes with ReasonRestartingAll.
	MessageRestartingAll = "The container is removed because RestartAllContainers in place"
)
