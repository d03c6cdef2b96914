package config

import (
	"log/slog"
	"maps"
	"net/url"
	"regexp"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// The names which a file of this package carries in apiVersion and kind.
const (
	APIVersion = "kubelet.config.k8s.io/v1beta1"
	Kind       = "KubeletConfiguration"
)

// Values of cpuManagerPolicy and memoryManagerPolicy.
const (
	CPUPolicyNone      = "none"
	CPUPolicyStatic    = "static"
	MemoryPolicyNone   = "None"
	MemoryPolicyStatic = "Static"
)

// KubeletConfiguration mirrors the type of that name in kubelet.config.k8s.io/v1beta1 (see KubernetesVersion), field by
// field, with the same JSON names and shapes. It is a copy because importing the original would bring cobra, prometheus
// and OpenTelemetry into the binary. What a field means is said in the reference of Kubernetes
// (https://kubernetes.io/docs/reference/config-api/kubelet-config.v1beta1/).
//
// A nil pointer means "not set". After Load every field with a default has a value.
type KubeletConfiguration struct {
	metav1.TypeMeta `json:",inline"`

	// The server and the sources of pods.

	EnableServer       *bool               `json:"enableServer,omitempty"`
	StaticPodPath      string              `json:"staticPodPath,omitempty"`
	PodLogsDir         string              `json:"podLogsDir,omitempty"`
	SyncFrequency      metav1.Duration     `json:"syncFrequency,omitempty"`
	FileCheckFrequency metav1.Duration     `json:"fileCheckFrequency,omitempty"`
	HTTPCheckFrequency metav1.Duration     `json:"httpCheckFrequency,omitempty"`
	StaticPodURL       string              `json:"staticPodURL,omitempty"`
	StaticPodURLHeader map[string][]string `json:"staticPodURLHeader,omitempty"`
	Address            string              `json:"address,omitempty"`
	Port               int32               `json:"port,omitempty"`
	ReadOnlyPort       int32               `json:"readOnlyPort,omitempty"`

	// TLS and access.

	TLSCertFile         string         `json:"tlsCertFile,omitempty"`
	TLSPrivateKeyFile   string         `json:"tlsPrivateKeyFile,omitempty"`
	TLSCipherSuites     []string       `json:"tlsCipherSuites,omitempty"`
	TLSCurvePreferences []int32        `json:"tlsCurvePreferences,omitempty"`
	TLSMinVersion       string         `json:"tlsMinVersion,omitempty"`
	RotateCertificates  bool           `json:"rotateCertificates,omitempty"`
	ServerTLSBootstrap  bool           `json:"serverTLSBootstrap,omitempty"`
	Authentication      Authentication `json:"authentication"`
	Authorization       Authorization  `json:"authorization"`

	// Pulls, events, the agent itself.

	RegistryPullQPS                        *int32          `json:"registryPullQPS,omitempty"`
	RegistryBurst                          int32           `json:"registryBurst,omitempty"`
	ImagePullCredentialsVerificationPolicy string          `json:"imagePullCredentialsVerificationPolicy,omitempty"`
	PreloadedImagesVerificationAllowlist   []string        `json:"preloadedImagesVerificationAllowlist,omitempty"`
	EventRecordQPS                         *int32          `json:"eventRecordQPS,omitempty"`
	EventBurst                             int32           `json:"eventBurst,omitempty"`
	EnableDebuggingHandlers                *bool           `json:"enableDebuggingHandlers,omitempty"`
	EnableContentionProfiling              bool            `json:"enableContentionProfiling,omitempty"`
	HealthzPort                            *int32          `json:"healthzPort,omitempty"`
	HealthzBindAddress                     string          `json:"healthzBindAddress,omitempty"`
	OOMScoreAdj                            *int32          `json:"oomScoreAdj,omitempty"`
	ClusterDomain                          string          `json:"clusterDomain,omitempty"`
	ClusterDNS                             []string        `json:"clusterDNS,omitempty"`
	StreamingConnectionIdleTimeout         metav1.Duration `json:"streamingConnectionIdleTimeout,omitempty"`

	// The node and its images.

	NodeStatusUpdateFrequency   metav1.Duration `json:"nodeStatusUpdateFrequency,omitempty"`
	NodeStatusReportFrequency   metav1.Duration `json:"nodeStatusReportFrequency,omitempty"`
	NodeLeaseDurationSeconds    int32           `json:"nodeLeaseDurationSeconds,omitempty"`
	ImageMinimumGCAge           metav1.Duration `json:"imageMinimumGCAge,omitempty"`
	ImageMaximumGCAge           metav1.Duration `json:"imageMaximumGCAge,omitempty"`
	ImageGCHighThresholdPercent *int32          `json:"imageGCHighThresholdPercent,omitempty"`
	ImageGCLowThresholdPercent  *int32          `json:"imageGCLowThresholdPercent,omitempty"`
	VolumeStatsAggPeriod        metav1.Duration `json:"volumeStatsAggPeriod,omitempty"`

	// Cgroups, CPUs, memory, devices.

	KubeletCgroups               string            `json:"kubeletCgroups,omitempty"`
	SystemCgroups                string            `json:"systemCgroups,omitempty"`
	CgroupRoot                   string            `json:"cgroupRoot,omitempty"`
	CgroupsPerQOS                *bool             `json:"cgroupsPerQOS,omitempty"`
	CgroupDriver                 string            `json:"cgroupDriver,omitempty"`
	CPUManagerPolicy             string            `json:"cpuManagerPolicy,omitempty"`
	SingleProcessOOMKill         *bool             `json:"singleProcessOOMKill,omitempty"`
	CPUManagerPolicyOptions      map[string]string `json:"cpuManagerPolicyOptions,omitempty"`
	CPUManagerReconcilePeriod    metav1.Duration   `json:"cpuManagerReconcilePeriod,omitempty"`
	MemoryManagerPolicy          string            `json:"memoryManagerPolicy,omitempty"`
	TopologyManagerPolicy        string            `json:"topologyManagerPolicy,omitempty"`
	TopologyManagerScope         string            `json:"topologyManagerScope,omitempty"`
	TopologyManagerPolicyOptions map[string]string `json:"topologyManagerPolicyOptions,omitempty"`
	QOSReserved                  map[string]string `json:"qosReserved,omitempty"`

	// Pods and containers.

	RuntimeRequestTimeout metav1.Duration  `json:"runtimeRequestTimeout,omitempty"`
	HairpinMode           string           `json:"hairpinMode,omitempty"`
	MaxPods               int32            `json:"maxPods,omitempty"`
	PodCIDR               string           `json:"podCIDR,omitempty"`
	PodPidsLimit          *int64           `json:"podPidsLimit,omitempty"`
	ResolverConfig        *string          `json:"resolvConf,omitempty"`
	RunOnce               bool             `json:"runOnce,omitempty"`
	CPUCFSQuota           *bool            `json:"cpuCFSQuota,omitempty"`
	CPUCFSQuotaPeriod     *metav1.Duration `json:"cpuCFSQuotaPeriod,omitempty"`
	NodeStatusMaxImages   *int32           `json:"nodeStatusMaxImages,omitempty"`
	MaxOpenFiles          int64            `json:"maxOpenFiles,omitempty"`

	// The API server.

	ContentType  string `json:"contentType,omitempty"`
	KubeAPIQPS   *int32 `json:"kubeAPIQPS,omitempty"`
	KubeAPIBurst int32  `json:"kubeAPIBurst,omitempty"`

	// Pulls, continued.

	SerializeImagePulls   *bool  `json:"serializeImagePulls,omitempty"`
	MaxParallelImagePulls *int32 `json:"maxParallelImagePulls,omitempty"`

	// Eviction.

	EvictionHard                     map[string]string `json:"evictionHard,omitempty"`
	EvictionSoft                     map[string]string `json:"evictionSoft,omitempty"`
	EvictionSoftGracePeriod          map[string]string `json:"evictionSoftGracePeriod,omitempty"`
	EvictionPressureTransitionPeriod metav1.Duration   `json:"evictionPressureTransitionPeriod,omitempty"`
	EvictionMaxPodGracePeriod        int32             `json:"evictionMaxPodGracePeriod,omitempty"`
	EvictionMinimumReclaim           map[string]string `json:"evictionMinimumReclaim,omitempty"`
	MergeDefaultEvictionSettings     *bool             `json:"mergeDefaultEvictionSettings,omitempty"`

	// The machine, gates, logs of containers.

	PodsPerCore                               int32            `json:"podsPerCore,omitempty"`
	EnableControllerAttachDetach              *bool            `json:"enableControllerAttachDetach,omitempty"`
	ProtectKernelDefaults                     bool             `json:"protectKernelDefaults,omitempty"`
	MakeIPTablesUtilChains                    *bool            `json:"makeIPTablesUtilChains,omitempty"`
	IPTablesMasqueradeBit                     *int32           `json:"iptablesMasqueradeBit,omitempty"`
	IPTablesDropBit                           *int32           `json:"iptablesDropBit,omitempty"`
	FeatureGates                              map[string]bool  `json:"featureGates,omitempty"`
	FailSwapOn                                *bool            `json:"failSwapOn,omitempty"`
	MemorySwap                                MemorySwap       `json:"memorySwap,omitempty"`
	ContainerLogMaxSize                       string           `json:"containerLogMaxSize,omitempty"`
	ContainerLogMaxFiles                      *int32           `json:"containerLogMaxFiles,omitempty"`
	ContainerLogMaxWorkers                    *int32           `json:"containerLogMaxWorkers,omitempty"`
	ContainerLogMonitorInterval               *metav1.Duration `json:"containerLogMonitorInterval,omitempty"`
	ConfigMapAndSecretChangeDetectionStrategy string           `json:"configMapAndSecretChangeDetectionStrategy,omitempty"`

	// What pods may not use.

	SystemReserved              map[string]string `json:"systemReserved,omitempty"`
	KubeReserved                map[string]string `json:"kubeReserved,omitempty"`
	ReservedSystemCPUs          string            `json:"reservedSystemCPUs,omitempty"`
	ShowHiddenMetricsForVersion string            `json:"showHiddenMetricsForVersion,omitempty"`
	SystemReservedCgroup        string            `json:"systemReservedCgroup,omitempty"`
	KubeReservedCgroup          string            `json:"kubeReservedCgroup,omitempty"`
	EnforceNodeAllocatable      []string          `json:"enforceNodeAllocatable,omitempty"`
	AllowedUnsafeSysctls        []string          `json:"allowedUnsafeSysctls,omitempty"`
	DefaultPodSysctls           map[string]string `json:"defaultPodSysctls,omitempty"`

	// The rest, in the order in which it came to be.

	VolumePluginDir                  string                `json:"volumePluginDir,omitempty"`
	ProviderID                       string                `json:"providerID,omitempty"`
	KernelMemcgNotification          bool                  `json:"kernelMemcgNotification,omitempty"`
	Logging                          Logging               `json:"logging,omitempty"`
	EnableSystemLogHandler           *bool                 `json:"enableSystemLogHandler,omitempty"`
	EnableSystemLogQuery             *bool                 `json:"enableSystemLogQuery,omitempty"`
	ShutdownGracePeriod              metav1.Duration       `json:"shutdownGracePeriod,omitempty"`
	ShutdownGracePeriodCriticalPods  metav1.Duration       `json:"shutdownGracePeriodCriticalPods,omitempty"`
	ShutdownGracePeriodByPodPriority []PriorityShutdown    `json:"shutdownGracePeriodByPodPriority,omitempty"`
	CrashLoopBackOff                 CrashLoop             `json:"crashLoopBackOff,omitempty"`
	ReservedMemory                   []NUMAMemory          `json:"reservedMemory,omitempty"`
	EnableProfilingHandler           *bool                 `json:"enableProfilingHandler,omitempty"`
	EnableDebugFlagsHandler          *bool                 `json:"enableDebugFlagsHandler,omitempty"`
	SeccompDefault                   *bool                 `json:"seccompDefault,omitempty"`
	MemoryThrottlingFactor           *float64              `json:"memoryThrottlingFactor,omitempty"`
	MemoryReservationPolicy          string                `json:"memoryReservationPolicy,omitempty"`
	RegisterWithTaints               []corev1.Taint        `json:"registerWithTaints,omitempty"`
	RegisterNode                     *bool                 `json:"registerNode,omitempty"`
	Tracing                          *TracingConfiguration `json:"tracing,omitempty"`
	LocalStorageCapacityIsolation    *bool                 `json:"localStorageCapacityIsolation,omitempty"`
	ContainerRuntimeEndpoint         string                `json:"containerRuntimeEndpoint"`
	ImageServiceEndpoint             string                `json:"imageServiceEndpoint,omitempty"`
	FailCgroupV1                     *bool                 `json:"failCgroupV1,omitempty"`
	UserNamespaces                   *UserNamespaces       `json:"userNamespaces,omitempty"`
}

// LogValue implements slog.LogValuer: the configuration as YAML, without secrets.
func (c KubeletConfiguration) LogValue() slog.Value {
	text, err := yaml.Marshal(c.Masked())
	if err != nil {
		return slog.StringValue(err.Error())
	}
	return slog.StringValue(string(text))
}

// Masked returns the configuration with its secrets replaced: the password in staticPodURL and the header values with
// which it is requested.
func (c KubeletConfiguration) Masked() KubeletConfiguration {
	return c.masked(func(string) bool { return true })
}

// credential matches the names of headers whose values are probably credentials.
var credential = regexp.MustCompile(`(?i)auth|cookie|credential|key|pass|secret|session|signature|token`)

// InUse returns the configuration as /configz shows it to clients that may read it: with the cgroup driver in use, and
// without the password in staticPodURL and the values of headers that are named like credentials. The kubelet shows
// those as well.
func (c KubeletConfiguration) InUse(cgroupDriver string) KubeletConfiguration {
	c.CgroupDriver = cgroupDriver
	return c.masked(credential.MatchString)
}

func (c KubeletConfiguration) masked(hide func(header string) bool) KubeletConfiguration {
	masked := maps.Clone(c.StaticPodURLHeader)
	for name := range masked {
		if hide(name) {
			masked[name] = []string{"<masked>"}
		}
	}
	c.StaticPodURLHeader = masked
	c.StaticPodURL = WithoutPassword(c.StaticPodURL)
	return c
}

// WithoutPassword returns a URL without its password, and a text that is no URL as it is.
func WithoutPassword(text string) string {
	if u, err := url.Parse(text); err == nil && u.User != nil {
		return u.Redacted()
	}
	return text
}
