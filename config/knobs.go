package config

// A knob is one thing a user may set: a field of KubeletConfiguration, a flag, or both.
type knob struct {
	field string // path of the field, such as "authentication.x509.clientCAFile"; empty if there is only a flag
	flag  string // name of the flag without dashes; empty if there is only a field
	kind  *kind  // how the flag's text is read
	acts  bool   // whether nodelet acts on it: flip it in the change that makes nodelet act on it
	group group  // where --help shows the flag; only --help-all shows a flag without a group
	help  string // what --help says; for a knob without effect, what to do instead
	def   string // default of a knob that is only a flag; the defaults of fields are in setDefaults
}

// group is a heading of --help.
type group int

const (
	gHidden group = iota
	gFiles
	gNode
	gPods
	gRuntime
	gNetwork
	gResources
	gServer
	gProcess
)

var groupTitles = map[group]string{
	gFiles:     "Files",
	gNode:      "The node",
	gPods:      "Pods",
	gRuntime:   "Container runtime and images",
	gNetwork:   "Pod network",
	gResources: "Cgroups and resources",
	gServer:    "Servers",
	gProcess:   "The process",
}

const (
	acts     = true  // nodelet acts on it
	noEffect = false // accepted, with a warning if the value differs from the default
)

// knobs is the whole list: every field of KubeletConfiguration and every flag of the kubelet v1.36, each once.
var knobs = []knob{
	// Files.
	{"", "config", kFile, acts, gFiles, "KubeletConfiguration to read; flags override it", ""},
	{"", "config-dir", kDir, acts, gFiles, "*.conf files below it are merged over --config in lexical order", ""},
	{"", "kubeconfig", kFile, acts, gFiles, "how to reach the API server; without it nodelet runs static pods only", ""},
	{"", "bootstrap-kubeconfig", kFile, acts, gFiles, "how to request the first certificate if --kubeconfig has none", ""},
	{"", "root-dir", kDir, acts, gFiles, "volumes, plugins and state of the node", "/var/lib/kubelet"},
	{"", "cert-dir", kDir, acts, gFiles, "the node's certificates", "/var/lib/kubelet/pki"},
	{"podLogsDir", "", nil, acts, gHidden, "", ""},
	{"volumePluginDir", "volume-plugin-dir", kDir, noEffect, gHidden, "FlexVolume is not supported; use a CSI driver", ""},

	// The node.
	{"", "hostname-override", kString, acts, gNode, "name of the node instead of the machine's host name", ""},
	{"", "node-ip", kString, acts, gNode,
		"address of the node, or an IPv4,IPv6 pair; 0.0.0.0 or :: choose the family", ""},
	{"", "node-labels", kLabels, acts, gNode, "labels to register the node with", ""},
	{"registerNode", "register-node", kBool, acts, gNode, "create the Node object", ""},
	{"registerWithTaints", "register-with-taints", kTaints, acts, gNode, "taints to register the node with", ""},
	{"providerID", "provider-id", kString, acts, gNode, "ID of the machine at its cloud provider", ""},
	{"", "cloud-provider", kString, acts, gNode, `"external" leaves addresses to a cloud controller manager`, ""},
	{"nodeStatusUpdateFrequency", "node-status-update-frequency", kDuration, acts, gNode,
		"how often the node's status is computed", ""},
	{"nodeStatusReportFrequency", "", nil, acts, gHidden, "", ""},
	{"nodeStatusMaxImages", "node-status-max-images", kInt32, acts, gNode,
		"images to list in the node's status; -1 lists all", ""},
	{"nodeLeaseDurationSeconds", "", nil, acts, gHidden, "", ""},
	{"enableControllerAttachDetach", "enable-controller-attach-detach", kBool, acts, gHidden, "", ""},
	{"kubeAPIQPS", "kube-api-qps", kInt32, acts, gNode, "requests a second to the API server", ""},
	{"kubeAPIBurst", "kube-api-burst", kInt32, acts, gNode, "requests at once to the API server", ""},
	{"contentType", "kube-api-content-type", kString, noEffect, gHidden,
		"nodelet always uses protobuf with the API server", ""},
	{"eventRecordQPS", "event-qps", kInt32, acts, gHidden, "", ""},
	{"eventBurst", "event-burst", kInt32, acts, gHidden, "", ""},
	{"rotateCertificates", "rotate-certificates", kBool, acts, gHidden, "", ""},

	// Pods.
	{"staticPodPath", "pod-manifest-path", kDir, acts, gPods, "static pods: a directory of manifests, or one file", ""},
	{"staticPodURL", "manifest-url", kString, acts, gPods, "static pods: a URL to ask for manifests", ""},
	{"staticPodURLHeader", "manifest-url-header", kHeaders, acts, gHidden, "", ""},
	{"fileCheckFrequency", "file-check-frequency", kDuration, acts, gHidden, "", ""},
	{"httpCheckFrequency", "http-check-frequency", kDuration, acts, gHidden, "", ""},
	{"maxPods", "max-pods", kInt32, acts, gPods, "maximum number of pods on this node", ""},
	{"podsPerCore", "pods-per-core", kInt32, acts, gPods,
		"pods for each CPU, at most --max-pods; 0 means no such limit", ""},
	{"clusterDNS", "cluster-dns", kList, acts, gPods, "DNS servers of pods with dnsPolicy ClusterFirst", ""},
	{"clusterDomain", "cluster-domain", kString, acts, gPods, "domain of the cluster, such as cluster.local", ""},
	{"resolvConf", "resolv-conf", kFile, acts, gPods, "resolver settings that pods inherit; empty for none", ""},
	{"podPidsLimit", "pod-max-pids", kInt64, acts, gPods, "maximum number of processes in a pod; -1 means no limit", ""},
	{"seccompDefault", "seccomp-default", kBool, acts, gPods,
		"use the seccomp profile RuntimeDefault for pods without one", ""},
	{"allowedUnsafeSysctls", "allowed-unsafe-sysctls", kList, acts, gHidden, "", ""},
	{"crashLoopBackOff.maxContainerRestartPeriod", "", nil, acts, gHidden, "", ""},
	{"userNamespaces.idsPerPod", "", nil, acts, gHidden, "", ""},
	{"syncFrequency", "sync-frequency", kDuration, noEffect, gHidden, "pods are synced when something changes", ""},
	{"configMapAndSecretChangeDetectionStrategy", "", nil, noEffect, gHidden, "", ""},
	{"hairpinMode", "hairpin-mode", kString, noEffect, gHidden, "the network plugin decides that", ""},
	{"makeIPTablesUtilChains", "make-iptables-util-chains", kBool, noEffect, gHidden, "", ""},
	{"iptablesMasqueradeBit", "", nil, noEffect, gHidden, "", ""},
	{"iptablesDropBit", "", nil, noEffect, gHidden, "", ""},
	{"runOnce", "runonce", kBool, noEffect, gHidden, "", ""},

	// Container runtime and images.
	{"containerRuntimeEndpoint", "container-runtime-endpoint", kSocket, acts, gRuntime, "CRI runtime", ""},
	{"imageServiceEndpoint", "image-service-endpoint", kSocket, acts, gRuntime,
		"CRI image service, if it has another socket", ""},
	{"runtimeRequestTimeout", "runtime-request-timeout", kDuration, acts, gRuntime,
		"time limit of a request to the runtime", ""},
	{"serializeImagePulls", "serialize-image-pulls", kBool, noEffect, gHidden,
		"different images are always pulled in parallel", ""},
	{"maxParallelImagePulls", "", nil, acts, gHidden, "", ""},
	{"registryPullQPS", "registry-qps", kInt32, noEffect, gHidden, "", ""},
	{"registryBurst", "registry-burst", kInt32, noEffect, gHidden, "", ""},
	{"imagePullCredentialsVerificationPolicy", "", nil, acts, gHidden, "", ""},
	{"preloadedImagesVerificationAllowlist", "", nil, acts, gHidden, "", ""},
	{"", "image-credential-provider-config", kFile, acts, gRuntime,
		"credential providers: a CredentialProviderConfig, or a directory of them", ""},
	{"", "image-credential-provider-bin-dir", kDir, acts, gRuntime, "directory of credential provider programs", ""},
	{"imageGCHighThresholdPercent", "image-gc-high-threshold", kInt32, acts, gHidden, "", ""},
	{"imageGCLowThresholdPercent", "image-gc-low-threshold", kInt32, acts, gHidden, "", ""},
	{"imageMinimumGCAge", "minimum-image-ttl-duration", kDuration, acts, gHidden, "", ""},
	{"imageMaximumGCAge", "", nil, acts, gHidden, "", ""},
	{"containerLogMaxSize", "container-log-max-size", kString, acts, gHidden, "", ""},
	{"containerLogMaxFiles", "container-log-max-files", kInt32, acts, gHidden, "", ""},
	{"containerLogMaxWorkers", "", nil, acts, gHidden, "", ""},
	{"containerLogMonitorInterval", "", nil, acts, gHidden, "", ""},

	// Pod network; all but the pod range are nodelet's own.
	{"", "network", kString, acts, gNetwork,
		"which component sets up the pod network: runtime, agent (nodelet), or auto", "auto"},
	{"", "cni-conf", kFile, acts, gNetwork,
		"with agent: network configuration, a file or directory; empty generates one from the pod CIDR", ""},
	{"", "cni-conf-dir", kDir, acts, gNetwork,
		"the runtime's directory of network configurations; empty asks the runtime", ""},
	{"", "cni-bin-dir", kList, acts, gNetwork,
		"directories of network plugins; nodelet's own goes to the first; empty asks the runtime", ""},
	{"", "cni-networks-dir", kDir, acts, gNetwork,
		"with agent: directory with NAME.conflist of additional networks", "/etc/cni/networks.d"},
	{"", "cni-call-timeout", kDuration, acts, gNetwork, "with agent: time limit of a plugin call", "1m0s"},
	{"", "cni-check-period", kDuration, acts, gNetwork,
		"with agent: how often plugins check each pod's network; 0s means never", "10m0s"},
	{"", "non-masquerade-cidr", kList, acts, gNetwork,
		"with agent: destinations to which pods keep their address; empty: private ranges", ""},
	{"podCIDR", "pod-cidr", kString, acts, gNetwork, "pod CIDR of a node without an API server; two for dual stack", ""},

	// Cgroups and resources.
	{"cgroupDriver", "cgroup-driver", kString, acts, gResources, "cgroupfs or systemd; the same as the runtime's", ""},
	{"cgroupRoot", "cgroup-root", kString, acts, gResources, "cgroup below which pods live", ""},
	{"cgroupsPerQOS", "cgroups-per-qos", kBool, acts, gHidden, "", ""},
	{"failCgroupV1", "fail-cgroupv1", kBool, noEffect, gHidden, "nodelet also starts on cgroup v1", ""},
	{"failSwapOn", "fail-swap-on", kBool, noEffect, gHidden, "nodelet also starts if swap is on", ""},
	{"memorySwap.swapBehavior", "", nil, acts, gHidden, "", ""},
	{"kubeReserved", "kube-reserved", kPairs, acts, gResources, "resources reserved for the node's agents", ""},
	{"systemReserved", "system-reserved", kPairs, acts, gResources, "resources reserved for the rest of the system", ""},
	{"kubeReservedCgroup", "kube-reserved-cgroup", kString, acts, gHidden, "", ""},
	{"systemReservedCgroup", "system-reserved-cgroup", kString, acts, gHidden, "", ""},
	{"reservedSystemCPUs", "reserved-cpus", kString, noEffect, gHidden, "", ""},
	{"reservedMemory", "reserved-memory", kNUMA, noEffect, gHidden, "", ""},
	{"enforceNodeAllocatable", "enforce-node-allocatable", kList, acts, gHidden, "", ""},
	{"evictionHard", "eviction-hard", kThresholds, acts, gHidden, "", ""},
	{"evictionSoft", "eviction-soft", kThresholds, acts, gHidden, "", ""},
	{"evictionSoftGracePeriod", "eviction-soft-grace-period", kPairs, acts, gHidden, "", ""},
	{"evictionMinimumReclaim", "eviction-minimum-reclaim", kPairs, acts, gHidden, "", ""},
	{"evictionPressureTransitionPeriod", "eviction-pressure-transition-period", kDuration, acts, gHidden, "", ""},
	{"evictionMaxPodGracePeriod", "eviction-max-pod-grace-period", kInt32, acts, gHidden, "", ""},
	{"mergeDefaultEvictionSettings", "", nil, noEffect, gHidden, "", ""},
	{"localStorageCapacityIsolation", "local-storage-capacity-isolation", kBool, acts, gHidden, "", ""},
	{"cpuCFSQuota", "cpu-cfs-quota", kBool, acts, gResources, "enforce CPU limits", ""},
	{"cpuCFSQuotaPeriod", "cpu-cfs-quota-period", kDuration, acts, gHidden, "", ""},
	{"cpuManagerPolicy", "cpu-manager-policy", kString, noEffect, gHidden, "", ""},
	{"cpuManagerPolicyOptions", "cpu-manager-policy-options", kPairs, noEffect, gHidden, "", ""},
	{"cpuManagerReconcilePeriod", "cpu-manager-reconcile-period", kDuration, noEffect, gHidden, "", ""},
	{"memoryManagerPolicy", "memory-manager-policy", kString, noEffect, gHidden, "", ""},
	{"topologyManagerPolicy", "topology-manager-policy", kString, noEffect, gHidden, "", ""},
	{"topologyManagerPolicyOptions", "topology-manager-policy-options", kPairs, noEffect, gHidden, "", ""},
	{"topologyManagerScope", "topology-manager-scope", kString, noEffect, gHidden, "", ""},
	{"qosReserved", "qos-reserved", kPairs, noEffect, gHidden, "", ""},
	{"singleProcessOOMKill", "", nil, acts, gHidden, "", ""},
	{"memoryThrottlingFactor", "", nil, acts, gHidden, "", ""},
	{"memoryReservationPolicy", "", nil, acts, gHidden, "", ""},
	{"kernelMemcgNotification", "kernel-memcg-notification", kBool, noEffect, gHidden, "", ""},
	{"kubeletCgroups", "kubelet-cgroups", kString, noEffect, gHidden, "let systemd place the agent", ""},
	{"systemCgroups", "system-cgroups", kString, noEffect, gHidden, "", ""},
	{"", "runtime-cgroups", kString, acts, gHidden, "", ""},
	{"protectKernelDefaults", "protect-kernel-defaults", kBool, noEffect, gHidden, "", ""},
	{"shutdownGracePeriod", "", nil, acts, gHidden, "", ""},
	{"shutdownGracePeriodCriticalPods", "", nil, acts, gHidden, "", ""},
	{"shutdownGracePeriodByPodPriority", "", nil, acts, gHidden, "", ""},

	// Servers.
	{"enableServer", "enable-server", kBool, acts, gHidden, "", ""},
	{"address", "address", kIP, acts, gServer, "address of the node's API (logs, exec, metrics)", ""},
	{"port", "port", kInt32, acts, gServer, "port of the node's API", ""},
	{"healthzBindAddress", "healthz-bind-address", kIP, acts, gServer, "address of /healthz", ""},
	{"healthzPort", "healthz-port", kInt32, acts, gServer, "port of /healthz; 0 turns it off", ""},
	{"readOnlyPort", "read-only-port", kInt32, acts, gHidden, "", ""},
	{"tlsCertFile", "tls-cert-file", kFile, acts, gServer,
		"serving certificate (PEM); without one nodelet signs its own", ""},
	{"tlsPrivateKeyFile", "tls-private-key-file", kFile, acts, gServer, "key of the serving certificate (PEM)", ""},
	{"tlsCipherSuites", "tls-cipher-suites", kList, acts, gHidden, "", ""},
	{"tlsCurvePreferences", "", nil, noEffect, gHidden, "", ""},
	{"tlsMinVersion", "tls-min-version", kString, acts, gHidden, "", ""},
	{"serverTLSBootstrap", "rotate-server-certificates", kBool, acts, gHidden, "", ""},
	{"authentication.x509.clientCAFile", "client-ca-file", kFile, acts, gServer,
		"CA bundle for client certificates (PEM)", ""},
	{"authentication.webhook.enabled", "authentication-token-webhook", kBool, acts, gHidden, "", ""},
	{"authentication.webhook.cacheTTL", "authentication-token-webhook-cache-ttl", kDuration, acts, gHidden, "", ""},
	{"authentication.anonymous.enabled", "anonymous-auth", kBool, acts, gHidden, "", ""},
	{"authorization.mode", "authorization-mode", kString, acts, gHidden, "", ""},
	{"authorization.webhook.cacheAuthorizedTTL", "authorization-webhook-cache-authorized-ttl", kDuration, acts, gHidden,
		"", ""},
	{"authorization.webhook.cacheUnauthorizedTTL", "authorization-webhook-cache-unauthorized-ttl",
		kDuration, acts, gHidden, "", ""},
	{"streamingConnectionIdleTimeout", "streaming-connection-idle-timeout", kDuration, acts, gHidden, "", ""},
	{"enableDebuggingHandlers", "enable-debugging-handlers", kBool, acts, gHidden, "", ""},
	{"enableContentionProfiling", "contention-profiling", kBool, noEffect, gHidden, "", ""},
	{"enableProfilingHandler", "", nil, acts, gHidden, "", ""},
	{"enableDebugFlagsHandler", "", nil, acts, gHidden, "", ""},
	{"enableSystemLogHandler", "", nil, acts, gHidden, "", ""},
	{"enableSystemLogQuery", "", nil, acts, gHidden, "", ""},
	{"showHiddenMetricsForVersion", "", nil, noEffect, gHidden, "", ""},
	{"volumeStatsAggPeriod", "volume-stats-agg-period", kDuration, noEffect, gHidden, "", ""},

	// The process.
	{"logging.format", "logging-format", kString, acts, gProcess, "text or json (also --log-format)", ""},
	{"logging.verbosity", "v", kLevel, acts, gProcess, "log verbosity; 4 or more logs each step", ""},
	{"logging.vmodule", "vmodule", kVModule, noEffect, gHidden, "", ""},
	{"logging.flushFrequency", "log-flush-frequency", kDuration, noEffect, gHidden, "nothing is buffered", ""},
	{"logging.options.text.splitStream", "log-text-split-stream", kBool, noEffect, gHidden, "", ""},
	{"logging.options.text.infoBufferSize", "log-text-info-buffer-size", kQuantity, noEffect, gHidden, "", ""},
	{"logging.options.json.splitStream", "log-json-split-stream", kBool, noEffect, gHidden, "", ""},
	{"logging.options.json.infoBufferSize", "log-json-info-buffer-size", kQuantity, noEffect, gHidden, "", ""},
	{"featureGates", "feature-gates", kGates, acts, gProcess, "feature gates of Kubernetes", ""},
	{"oomScoreAdj", "oom-score-adj", kInt32, noEffect, gHidden, "", ""},
	{"maxOpenFiles", "max-open-files", kInt64, noEffect, gHidden, "", ""},
	{"tracing.endpoint", "", nil, noEffect, gHidden, "", ""},
	{"tracing.samplingRatePerMillion", "", nil, noEffect, gHidden, "", ""},
	{"", "version", kVersion, acts, gProcess, "print the version and exit", "false"},
	{"", "lock-file", kFile, noEffect, gHidden, "", ""},
	{"", "exit-on-lock-contention", kBool, noEffect, gHidden, "", "false"},

	// Obsolete flags of the kubelet, many of them from cAdvisor.
	{"", "minimum-container-ttl-duration", kDuration, noEffect, gHidden, "", "0s"},
	{"", "maximum-dead-containers-per-container", kInt32, noEffect, gHidden, "", "1"},
	{"", "maximum-dead-containers", kInt32, noEffect, gHidden, "", "-1"},
	{"", "experimental-mounter-path", kFile, noEffect, gHidden, "", ""},
	{"", "experimental-allocatable-ignore-eviction", kBool, noEffect, gHidden, "", "false"},
	{"", "housekeeping-interval", kDuration, noEffect, gHidden, "", "1s"},
	{"", "global-housekeeping-interval", kDuration, noEffect, gHidden, "", "1m0s"},
	{"", "application-metrics-count-limit", kInt, noEffect, gHidden, "", "100"},
	{"", "boot-id-file", kFile, noEffect, gHidden, "", "/proc/sys/kernel/random/boot_id"},
	{"", "machine-id-file", kString, noEffect, gHidden, "", "/etc/machine-id,/var/lib/dbus/machine-id"},
	{"", "container-hints", kFile, noEffect, gHidden, "", "/etc/cadvisor/container_hints.json"},
	{"", "containerd", kSocket, noEffect, gHidden, "", "/run/containerd/containerd.sock"},
	{"", "containerd-namespace", kString, noEffect, gHidden, "", "k8s.io"},
	{"", "enable-load-reader", kBool, noEffect, gHidden, "", "false"},
	{"", "event-storage-age-limit", kString, noEffect, gHidden, "", "default=24h"},
	{"", "event-storage-event-limit", kString, noEffect, gHidden, "", "default=100000"},
	{"", "log-cadvisor-usage", kBool, noEffect, gHidden, "", "false"},
	{"", "storage-driver-buffer-duration", kDuration, noEffect, gHidden, "", "1m0s"},
	{"", "storage-driver-db", kString, noEffect, gHidden, "", "cadvisor"},
	{"", "storage-driver-host", kString, noEffect, gHidden, "", "localhost:8086"},
	{"", "storage-driver-password", kString, noEffect, gHidden, "", "root"},
	{"", "storage-driver-secure", kBool, noEffect, gHidden, "", "false"},
	{"", "storage-driver-table", kString, noEffect, gHidden, "", "stats"},
	{"", "storage-driver-user", kString, noEffect, gHidden, "", "root"},
	{"", "pod-infra-container-image", kString, noEffect, gHidden,
		"the runtime chooses the pause image; older kubeadm still writes this flag", ""},
}

// aliases are other names of flags: nodelet's shorter ones.
var aliases = map[string]string{
	"log-format": "logging-format",
	"manifests":  "pod-manifest-path",
}
