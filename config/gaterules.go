package config

import (
	"maps"
	"slices"
)

// behavior says how nodelet behaves with a feature gate.
type behavior int

const (
	behavesAsSet behavior = iota // as the user sets it
	behavesAsOn                  // always as with the gate on
	behavesAsOff                 // always as with the gate off
)

// gateRule is how nodelet behaves with a gate, and why if that differs from the setting.
type gateRule struct {
	behaves behavior
	note    string
}

const (
	windowsOnly   = "it is about Windows"
	notThere      = "nodelet does not have this feature"
	loggingAlone  = "it is about the kubelet's logging library"
	clientAlone   = "it is about the kubelet's library for the API server"
	protobufOnly  = "nodelet always uses protobuf with the API server"
	asServed      = "the API server's gate decides whether pods have the field"
	declaredAsSet = "with the gate off, the node does not declare the feature; a pod that uses it nevertheless gets it"
)

// gateRules has every gate that the kubelet reads, and those that nodelet reads besides.
var gateRules = map[string]gateRule{
	"AllAlpha": {},
	"AllBeta":  {},
	"AllowDNSOnlyNodeCSR": {behavesAsOff,
		"the serving certificate is requested when the node has an address"},
	"AllowParsingUserUIDFromCertAuth": {behaves: behavesAsOn},
	"AtomicFIFO":                      {behavesAsOn, clientAlone},
	"AtomicWriteVolumeUserFields":     {behavesAsOn, asServed},
	"CPUManagerPolicyAlphaOptions":    {},
	"CPUManagerPolicyBetaOptions":     {},
	"CRIListStreaming":                {},
	"CSIVolumeHealth": {note: "reported by a metric and an event, not in " +
		"status.volumeHealth of the pod or status.storageHealth of the CSINode"},
	"ChangeContainerStatusOnKubeletRestart": {behavesAsOff,
		"a restart of the agent leaves started and ready as they were"},
	"ClientsAllowCARotation": {behavesAsOn,
		"the files of the kubeconfig are read again when they change"},
	"ClientsAllowCBOR":             {behavesAsOff, protobufOnly},
	"ClientsAllowTLSCacheGC":       {behavesAsOn, clientAlone},
	"ClientsPreferCBOR":            {behavesAsOff, protobufOnly},
	"ClusterTrustBundle":           {},
	"ClusterTrustBundleProjection": {},
	"ComponentFlagz":               {},
	"ComponentStatusz":             {},
	"ContainerCheckpoint":          {},
	"ContainerRestartRules":        {behaves: behavesAsOn},
	"ContainerStopSignals": {behavesAsOn,
		asServed + "; the status of a container does not have its stopSignal"},
	"ContextualLogging":                       {behavesAsOn, loggingAlone},
	"CustomCPUCFSQuotaPeriod":                 {},
	"DRAExtendedResource":                     {behaves: behavesAsOn},
	"DRANodeAllocatableResources":             {behavesAsOff, notThere},
	"DRAOptionalNodeOperations":               {behavesAsOff, "drivers are always called"},
	"DRAWorkloadResourceClaims":               {behavesAsOff, notThere},
	"DefaultPodSysctls":                       {},
	"DisableCPUQuotaWithExclusiveCPUs":        {},
	"DisableNodeKubeProxyVersion":             {behaves: behavesAsOn},
	"DynamicResourceAllocation":               {behaves: behavesAsOn},
	"EmptyDirVolumeMode":                      {behavesAsOn, asServed},
	"EnvFiles":                                {behaves: behavesAsOn},
	"EventedPLEG":                             {behavesAsOn, "events of the runtime are used whenever it sends them"},
	"ExtendWebSocketsToKubelet":               {},
	"GRPCContainerProbeTLS":                   {behavesAsOn, asServed},
	"GitRepoVolumeDriver":                     {behavesAsOff, "volumes of this kind are refused"},
	"GracefulNodeShutdown":                    {},
	"GracefulNodeShutdownBasedOnPodPriority":  {},
	"H2CContainerProbe":                       {behavesAsOn, asServed},
	"HugepageAwareEviction":                   {behaves: behavesAsOn},
	"ImageMaximumGCAge":                       {behaves: behavesAsOn},
	"ImageVolume":                             {behaves: behavesAsOn},
	"ImageVolumeWithDigest":                   {behavesAsOff, notThere},
	"InOrderInformers":                        {behaves: behavesAsOn},
	"InOrderInformersBatchProcess":            {behavesAsOn, clientAlone},
	"InPlacePodLevelResourcesVerticalScaling": {behavesAsOn, declaredAsSet},
	"InPlacePodVerticalScaling":               {behaves: behavesAsOn},
	"InPlacePodVerticalScalingExclusiveCPUs": {behavesAsOff,
		"a container with exclusive CPUs is not resized"},
	"InPlacePodVerticalScalingExclusiveMemory": {behavesAsOff,
		"a container with exclusive memory is not resized"},
	"InPlacePodVerticalScalingInitContainers":      {behaves: behavesAsOn},
	"InPlacePodVerticalScalingMemoryBackedVolumes": {behavesAsOff, "volumes in memory keep their size"},
	"InPlacePodVerticalScalingSchedulerPreemption": {behavesAsOn,
		"a resize preempts no pods, also not one of a critical pod"},
	"InformerResourceVersion":         {behavesAsOn, clientAlone},
	"KubeletAllocatedPodsEndpoint":    {},
	"KubeletCrashLoopBackOffMax":      {},
	"KubeletEnsureSecretPulledImages": {},
	"KubeletFineGrainedAuthz":         {behaves: behavesAsOn},
	"KubeletInUserNamespace": {note: "the status of the node says whether nodelet is in a user namespace; " +
		"nodelet must be root on the machine"},
	"KubeletPSI":                                       {behaves: behavesAsOn},
	"KubeletPodResourcesGet":                           {behaves: behavesAsOn},
	"KubeletPodResourcesListUseActivePods":             {behavesAsOn, "pods that have ended are never listed"},
	"KubeletRegistrationGetOnExistsOnly":               {behavesAsOff, "the Node is read also if it may not be created"},
	"KubeletSeparateDiskGC":                            {behavesAsOn, "a file system of containers is recognized"},
	"KubeletServiceAccountTokenForCredentialProviders": {},
	"LocalStorageCapacityIsolationFSQuotaMonitoring":   {behavesAsOff, "volumes are measured by walking through them"},
	"LoggingAlphaOptions":                              {},
	"LoggingBetaOptions":                               {behavesAsOn, loggingAlone},
	"MemoryQoS":                                        {},
	"MutableCSINodeAllocatableCount":                   {behaves: behavesAsOn},
	"NativeHistograms":                                 {behavesAsOff, "histograms have fixed buckets only"},
	"NodeDeclaredFeatures":                             {behaves: behavesAsOn},
	"NodeLogQuery":                                     {behaves: behavesAsOn},
	"NodeSwap":                                         {behaves: behavesAsOn},
	"PLEGOnDemandRelist":                               {behaves: behavesAsOn},
	"PodAndContainerStatsFromCRI":                      {behavesAsOff, "nodelet measures cgroups itself"},
	"PodCertificateRequest":                            {},
	"PodLevelResourceManagers":                         {},
	"PodLevelResources":                                {behaves: behavesAsOn},
	"PodLevelResourcesFixDefaulting": {behavesAsOff,
		"static pods have the defaults that the API server of Kubernetes 1.36 sets in other pods"},
	"PodLevelResourcesFixKubeletQOSClass":  {behaves: behavesAsOn},
	"PodLogsQuerySplitStreams":             {behaves: behavesAsOn},
	"PodObservedGenerationTracking":        {behaves: behavesAsOn},
	"PodReadyToStartContainersCondition":   {behaves: behavesAsOn},
	"PodsAPI":                              {},
	"QOSReserved":                          {behavesAsOff, notThere},
	"RecoverVolumeExpansionFailure":        {behaves: behavesAsOn},
	"RecursiveReadOnlyMounts":              {behaves: behavesAsOn},
	"ReduceDefaultCrashLoopBackOffDecay":   {},
	"ReloadKubeletClientCAFile":            {behaves: behavesAsOn},
	"ReloadKubeletServerCertificateFile":   {behaves: behavesAsOn},
	"ResourceHealthStatus":                 {},
	"ResourceHealthStatusMessage":          {},
	"RestartAllContainersOnContainerExits": {behavesAsOn, declaredAsSet},
	"RotateKubeletServerCertificate":       {},
	"RuntimeClassInImageCriApi":            {behavesAsOff, notThere},
	"SELinuxChangePolicy":                  {behaves: behavesAsOn},
	"SELinuxMount":                         {},
	"SELinuxMountReadWriteOncePod":         {behaves: behavesAsOn},
	"SupplementalGroupsPolicy":             {behaves: behavesAsOn},
	"TaintTolerationComparisonOperators":   {behavesAsOn, asServed},
	"TopologyManagerPolicyAlphaOptions":    {behavesAsOff, "there is no such option"},
	"TopologyManagerPolicyBetaOptions":     {behavesAsOn, "all options are allowed"},
	"TopologyManagerPolicyOptions":         {behaves: behavesAsOn},
	"UnlockWhileProcessingFIFO":            {behavesAsOn, clientAlone},
	"UserNamespacesHostNetworkSupport": {behavesAsOff,
		"a pod with hostNetwork and a user namespace of its own is refused"},
	"UserNamespacesSupport":       {behaves: behavesAsOn},
	"VolumeBindMountOptions":      {},
	"WatchListClient":             {behavesAsOn, "pods are listed if the API server cannot stream them"},
	"WindowsCPUAndMemoryAffinity": {behavesAsOff, windowsOnly},
	"WindowsGracefulNodeShutdown": {behavesAsOff, windowsOnly},
}

// GateInfo describes a feature gate for the metric kubernetes_feature_enabled and for reference pages.
type GateInfo struct {
	Name    string
	Stage   string // ALPHA, BETA, GA or DEPRECATED
	Default bool
	Locked  bool
	Support Support
	// Fixed reports whether nodelet does not follow the gate, but behaves always as with it on, or off.
	Fixed, Always bool
	Note          string
}

// Gates returns the gates that the kubelet or nodelet reads, by name. All other gates of Kubernetes are accepted, and
// are about other components.
func Gates() []GateInfo {
	var all []GateInfo
	for _, name := range slices.Sorted(maps.Keys(gateRules)) {
		g, rule := gates()[name], gateRules[name]
		info := GateInfo{
			Name:    name,
			Stage:   g.stage,
			Default: g.on,
			Locked:  g.locked,
			Fixed:   rule.behaves != behavesAsSet,
			Always:  rule.behaves == behavesAsOn,
			Note:    rule.note,
			Support: rule.support(g),
		}
		all = append(all, info)
	}
	return all
}

// support compares a rule with what the kubelet does.
func (r gateRule) support(g gate) Support {
	switch r.behaves {
	case behavesAsOn:
		if g.locked && g.on {
			return Acts
		}
		return Differs
	case behavesAsOff:
		if g.locked && !g.on {
			return Acts
		}
		return NoEffect
	}
	if r.note != "" {
		return Differs
	}
	return Acts
}
