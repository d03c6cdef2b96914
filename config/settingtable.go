package config

import "slices"

// A setting is one thing a user may set: a field of KubeletConfiguration, a flag, or both.
type setting struct {
	field string // path of the field, such as "authentication.x509.clientCAFile"; empty if there is only a flag
	flag  string // name of the flag without dashes; empty if there is only a field
	kind  *kind  // how the flag's text is read
	acts  bool   // whether nodelet acts on it: flip it in the change that makes nodelet act on it
	group group  // where --help shows the flag; only --help-all shows a flag without a group
	help  string // what --help says; for a setting without effect, what to do instead
	def   string // the kubelet's default on Linux: text, or JSON; see setDefaults
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
	noEffect = false // accepted, with a warning; see Support
)

// settingTable is the whole list: every field of KubeletConfiguration and every flag of the kubelet, each once.
var settingTable = slices.Concat([]setting{
	// Files.
	{"", "config", kFile, acts, gFiles, "KubeletConfiguration to read; flags override it", ""},
	{"", "config-dir", kDir, acts, gFiles, "*.conf files below it are merged over --config in lexical order", ""},
	{"", "kubeconfig", kFile, acts, gFiles, "how to reach the API server; without it nodelet runs static pods only", ""},
	{"", "bootstrap-kubeconfig", kFile, acts, gFiles, "how to request the first certificate if --kubeconfig has none", ""},
	{"", "root-dir", kDir, acts, gFiles, "volumes, plugins and state of the node", DefaultRoot},
	{"", "cert-dir", kDir, acts, gFiles, "the node's certificates; --root-dir does not move them", DefaultCertificates},
	{"podLogsDir", "", nil, acts, gHidden, "directory of the containers' logs", "/var/log/pods"},
	{"volumePluginDir", "volume-plugin-dir", kDir, noEffect, gHidden,
		"FlexVolume is not supported; use a CSI driver", "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/"},

	// The node.
	{"", "hostname-override", kString, acts, gNode, "name of the node instead of the machine's host name", ""},
	{"", "node-ip", kIPs, acts, gNode,
		"address of the node, or an IPv4,IPv6 pair; 0.0.0.0 or :: choose the family", ""},
	{"", "node-labels", kLabels, acts, gNode, "labels to register the node with", ""},
	{"registerNode", "register-node", kBool, acts, gNode, "create the Node object", "true"},
	{"registerWithTaints", "register-with-taints", kTaints, acts, gNode, "taints to register the node with", ""},
	{"providerID", "provider-id", kString, acts, gNode, "ID of the machine at its cloud provider", ""},
	{"", "cloud-provider", kString, acts, gNode, `"external" leaves addresses to a cloud controller manager`, ""},
	{"nodeStatusUpdateFrequency", "node-status-update-frequency", kDuration, acts, gNode,
		"how often the node's status is computed", "10s"},
	{"nodeStatusReportFrequency", "", nil, acts, gHidden, "how often the node's status is sent without a change", "5m0s"},
	{"nodeStatusMaxImages", "node-status-max-images", kInt32, acts, gNode,
		"images to list in the node's status; -1 lists all", "50"},
	{"nodeLeaseDurationSeconds", "", nil, acts, gHidden,
		"duration of the node's lease; it is renewed each quarter of it", "40"},
	{"enableControllerAttachDetach", "enable-controller-attach-detach", kBool, acts, gHidden,
		"the controller manager attaches volumes, not the node", "true"},
	{"kubeAPIQPS", "kube-api-qps", kInt32, acts, gNode, "requests a second to the API server", "50"},
	{"kubeAPIBurst", "kube-api-burst", kInt32, acts, gNode, "requests at once to the API server", "100"},
	{"contentType", "kube-api-content-type", kString, noEffect, gHidden,
		"nodelet always uses protobuf with the API server", "application/vnd.kubernetes.protobuf"},
	{"eventRecordQPS", "event-qps", kInt32, acts, gHidden, "events a second; 0 means no limit", "50"},
	{"eventBurst", "event-burst", kInt32, acts, gHidden, "events at once", "100"},
	{"rotateCertificates", "rotate-certificates", kBool, acts, gHidden,
		"renew the client certificate before it expires", ""},

	// Pods.
	{"staticPodPath", "pod-manifest-path", kDir, acts, gPods, "static pods: a directory or a file (also --manifests)", ""},
	{"staticPodURL", "manifest-url", kURL, acts, gPods, "static pods: a URL to ask for manifests", ""},
	{"staticPodURLHeader", "manifest-url-header", kHeaders, acts, gHidden,
		"headers of the requests to --manifest-url", ""},
	{"fileCheckFrequency", "file-check-frequency", kDuration, acts, gHidden,
		"how often the manifest directory is read, besides on each change", "20s"},
	{"httpCheckFrequency", "http-check-frequency", kDuration, acts, gHidden, "how often --manifest-url is asked", "20s"},
	{"maxPods", "max-pods", kInt32, acts, gPods, "maximum number of pods on this node", "110"},
	{"podsPerCore", "pods-per-core", kInt32, acts, gPods,
		"pods for each CPU, at most --max-pods; 0 means no such limit", ""},
	{"clusterDNS", "cluster-dns", kList, acts, gPods, "DNS servers of pods with dnsPolicy ClusterFirst", ""},
	{"clusterDomain", "cluster-domain", kString, acts, gPods, "domain of the cluster, such as cluster.local", ""},
	{"resolvConf", "resolv-conf", kFile, acts, gPods,
		"resolver settings that pods inherit; empty for none", "/etc/resolv.conf"},
	{"podPidsLimit", "pod-max-pids", kInt64, acts, gPods,
		"maximum number of processes in a pod; -1 means no limit", "-1"},
	{"seccompDefault", "seccomp-default", kBool, acts, gPods,
		"use the seccomp profile RuntimeDefault for pods without one", "false"},
	{"defaultPodSysctls", "", nil, acts, gHidden, "sysctls of all pods that do not set them themselves", ""},
	{"allowedUnsafeSysctls", "allowed-unsafe-sysctls", kList, acts, gHidden,
		"unsafe sysctls, or patterns such as net.core.*, that pods may set", ""},
	{"crashLoopBackOff.maxContainerRestartPeriod", "", nil, acts, gHidden,
		"longest delay before a crashed container starts again", ""},
	{"userNamespaces.idsPerPod", "", nil, acts, gHidden, "user IDs of a pod with a user namespace", ""},
	{"syncFrequency", "sync-frequency", kDuration, noEffect, gHidden, "pods are synced when something changes", "1m0s"},
	{"configMapAndSecretChangeDetectionStrategy", "", nil, noEffect, gHidden, "nodelet always watches", "Watch"},
	{"hairpinMode", "hairpin-mode", kString, noEffect, gHidden, "the network plugin decides that", "promiscuous-bridge"},
	{"makeIPTablesUtilChains", "make-iptables-util-chains", kBool, acts, gHidden,
		"make the chain KUBE-IPTABLES-HINT and the rule that drops packets from elsewhere to 127.0.0.0/8", "true"},
	{"iptablesMasqueradeBit", "", nil, noEffect, gHidden,
		"Kubernetes has deprecated it; use the settings of kube-proxy", "14"},
	{"iptablesDropBit", "", nil, noEffect, gHidden, "Kubernetes has deprecated it; use the settings of kube-proxy", "15"},
	{"runOnce", "runonce", kBool, noEffect, gHidden,
		"it was removed from Kubernetes; use a static pod with restartPolicy: Never", ""},

	// Container runtime and images.
	{"containerRuntimeEndpoint", "container-runtime-endpoint", kSocket, acts, gRuntime,
		"CRI runtime", "unix:///run/containerd/containerd.sock"},
	{"imageServiceEndpoint", "image-service-endpoint", kSocket, acts, gRuntime,
		"CRI image service, if it has another socket", ""},
	{"runtimeRequestTimeout", "runtime-request-timeout", kDuration, acts, gRuntime,
		"time limit of a request to the runtime", "2m0s"},
	{"serializeImagePulls", "serialize-image-pulls", kBool, acts, gHidden,
		"pull one image at a time", ""},
	{"maxParallelImagePulls", "", nil, acts, gHidden, "images pulled at the same time", ""},
	{"registryPullQPS", "registry-qps", kInt32, acts, gHidden,
		"pulls that start in a second; others wait; 0 means no limit", "5"},
	{"registryBurst", "registry-burst", kInt32, acts, gHidden,
		"pulls that start at once although registryPullQPS is lower", "10"},
	{"imagePullCredentialsVerificationPolicy", "", nil, acts, gHidden,
		"which pods may use an image that another pod has pulled with credentials", ""},
	{"preloadedImagesVerificationAllowlist", "", nil, acts, gHidden,
		"images that any pod may use, with the policy NeverVerifyAllowlistedImages", ""},
	{"", "image-credential-provider-config", kFile, acts, gRuntime,
		"credential providers: a CredentialProviderConfig, or a directory of them", ""},
	{"", "image-credential-provider-bin-dir", kDir, acts, gRuntime, "directory of credential provider programs", ""},
	{"imageGCHighThresholdPercent", "image-gc-high-threshold", kInt32, acts, gHidden,
		"disk usage at which unused images are removed; 100 without imageMaximumGCAge turns it off", "85"},
	{"imageGCLowThresholdPercent", "image-gc-low-threshold", kInt32, acts, gHidden,
		"disk usage down to which unused images are removed", "80"},
	{"imageMinimumGCAge", "minimum-image-ttl-duration", kDuration, acts, gHidden,
		"age below which an unused image is never removed", "2m0s"},
	{"imageMaximumGCAge", "", nil, acts, gHidden, "age at which an unused image is removed; 0 means never", ""},
	{"containerLogMaxSize", "container-log-max-size", kString, acts, gHidden,
		"size at which a container's log is rotated; -1: never", "10Mi"},
	{"containerLogMaxFiles", "container-log-max-files", kInt32, acts, gHidden, "log files to keep of a container", "5"},
	{"containerLogMaxWorkers", "", nil, acts, gHidden, "logs that are rotated at the same time", "1"},
	{"containerLogMonitorInterval", "", nil, acts, gHidden, "how often the size of logs is checked", "10s"},

	// Pod network; all but the pod CIDR are nodelet's own.
	{"", "network", kNetwork, acts, gNetwork, "which component sets up the pod network; agent is nodelet", "auto"},
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
	{"podCIDR", "pod-cidr", kString, acts, gNetwork,
		"pod CIDR of a node without an API server; two for dual stack (nodelet's own network: 10.86.0.0/24 if not set)", ""},

	// Cgroups and resources.
	{"cgroupDriver", "cgroup-driver", kDriver, acts, gResources, "the same as the runtime's", "cgroupfs"},
	{"cgroupRoot", "cgroup-root", kString, acts, gResources, "cgroup below which pods live", ""},
	{"cgroupsPerQOS", "cgroups-per-qos", kBool, acts, gHidden, "one cgroup for each QoS class and pod", "true"},
	{"failCgroupV1", "fail-cgroupv1", kBool, acts, gHidden, "if you set it, do not start on cgroup v1", "true"},
	{"failSwapOn", "fail-swap-on", kBool, acts, gHidden, "if you set it, do not start while swap is on", "true"},
	{"memorySwap.swapBehavior", "", nil, acts, gHidden, "NoSwap or LimitedSwap", ""},
	{"kubeReserved", "kube-reserved", kPairs, acts, gResources, "resources reserved for the node's agents", ""},
	{"systemReserved", "system-reserved", kPairs, acts, gResources, "resources reserved for the rest of the system", ""},
	{"kubeReservedCgroup", "kube-reserved-cgroup", kString, acts, gHidden,
		"cgroup that gets the limits of --kube-reserved", ""},
	{"systemReservedCgroup", "system-reserved-cgroup", kString, acts, gHidden,
		"cgroup that gets the limits of --system-reserved", ""},
	{"reservedSystemCPUs", "reserved-cpus", kString, acts, gHidden,
		"CPUs that no container gets exclusively; they replace the CPU of the other reservations", ""},
	{"reservedMemory", "reserved-memory", kNUMA, acts, gHidden,
		"with memoryManagerPolicy Static: memory that is reserved on each NUMA node", ""},
	{"enforceNodeAllocatable", "enforce-node-allocatable", kList, acts, gHidden,
		"which cgroups get limits: pods, system-reserved, kube-reserved, or none", `["pods"]`},
	{"evictionHard", "eviction-hard", kThresholds, acts, gHidden, "thresholds at which pods are evicted at once", ""},
	{"evictionSoft", "eviction-soft", kThresholds, acts, gHidden,
		"thresholds at which pods are evicted after a grace period", ""},
	{"evictionSoftGracePeriod", "eviction-soft-grace-period", kPairs, acts, gHidden,
		"grace period of each soft threshold", ""},
	{"evictionMinimumReclaim", "eviction-minimum-reclaim", kPairs, acts, gHidden,
		"what an eviction must free beyond the threshold", ""},
	{"evictionPressureTransitionPeriod", "eviction-pressure-transition-period", kDuration, acts, gHidden,
		"how long a pressure condition stays after its cause has ended", "5m0s"},
	{"evictionMaxPodGracePeriod", "eviction-max-pod-grace-period", kInt32, acts, gHidden,
		"longest grace period of a pod at a soft threshold, in seconds; negative: the pod's own", ""},
	{"mergeDefaultEvictionSettings", "", nil, acts, gHidden,
		"in the file of --config: thresholds that evictionHard does not name have their defaults", "false"},
	{"localStorageCapacityIsolation", "local-storage-capacity-isolation", kBool, acts, gHidden,
		"ephemeral-storage is a resource of the node", "true"},
	{"cpuCFSQuota", "cpu-cfs-quota", kBool, acts, gResources, "enforce CPU limits", "true"},
	{"cpuCFSQuotaPeriod", "cpu-cfs-quota-period", kDuration, acts, gHidden, "period of CPU limits", "100ms"},
	{"cpuManagerPolicy", "cpu-manager-policy", kString, acts, gHidden,
		"static gives exclusive CPUs to containers of Guaranteed pods that request whole CPUs", "none"},
	{"cpuManagerPolicyOptions", "cpu-manager-policy-options", kPairs, acts, gHidden,
		"options of the policy static, such as full-pcpus-only=true", ""},
	{"cpuManagerReconcilePeriod", "cpu-manager-reconcile-period", kDuration, acts, gHidden,
		"how often CPUs of ended pods are given back", "10s"},
	{"memoryManagerPolicy", "memory-manager-policy", kString, acts, gHidden,
		"Static gives Guaranteed pods memory of certain NUMA nodes", "None"},
	{"topologyManagerPolicy", "topology-manager-policy", kString, acts, gHidden,
		"takes CPUs, memory and devices from the same NUMA nodes: none, best-effort, restricted, single-numa-node", "none"},
	{"topologyManagerPolicyOptions", "topology-manager-policy-options", kPairs, acts, gHidden,
		"such as prefer-closest-numa-nodes=true", ""},
	{"topologyManagerScope", "topology-manager-scope", kString, acts, gHidden,
		"container, or pod to align all containers together", "container"},
	{"qosReserved", "qos-reserved", kPairs, noEffect, gHidden,
		"reserve memory with requests, see memoryReservationPolicy", ""},
	{"singleProcessOOMKill", "", nil, acts, gHidden,
		"on cgroup v2 kill only the process that ran out of memory, not the container", ""},
	{"memoryThrottlingFactor", "", nil, acts, gHidden,
		"on cgroup v2: throttle a container at this part of its memory limit (memory.high)", ""},
	{"memoryReservationPolicy", "", nil, acts, gHidden,
		"on cgroup v2, TieredReservation protects requested memory (memory.min, memory.low)", "None"},
	{"kernelMemcgNotification", "kernel-memcg-notification", kBool, noEffect, gHidden,
		"nodelet always uses the kernel's notifications", ""},
	{"kubeletCgroups", "kubelet-cgroups", kString, noEffect, gHidden, "set Slice= in the systemd unit", ""},
	{"systemCgroups", "system-cgroups", kString, acts, gHidden,
		"cgroup of the system's processes, to measure it as misc", ""},
	{"", "runtime-cgroups", kString, acts, gHidden, "cgroup of the container runtime, to measure it", ""},
	{"protectKernelDefaults", "protect-kernel-defaults", kBool, acts, gHidden,
		"refuse to start with other kernel settings than pods need, instead of changing them", ""},
	{"shutdownGracePeriod", "", nil, acts, gHidden,
		"how long a shutdown of the machine waits for pods; 0 turns it off", ""},
	{"shutdownGracePeriodCriticalPods", "", nil, acts, gHidden,
		"the part of shutdownGracePeriod for critical pods, at its end", ""},
	{"shutdownGracePeriodByPodPriority", "", nil, acts, gHidden,
		"how long a shutdown of the machine waits for pods, by their priority", ""},

	// Servers.
	{"enableServer", "enable-server", kBool, acts, gHidden, "serve the kubelet API (port 10250)", "true"},
	{"address", "address", kIP, acts, gServer, "address of the kubelet API (logs, exec, metrics)", "0.0.0.0"},
	{"port", "port", kInt32, acts, gServer, "port of the kubelet API", "10250"},
	{"healthzBindAddress", "healthz-bind-address", kIP, acts, gServer, "address of /healthz", "127.0.0.1"},
	{"healthzPort", "healthz-port", kInt32, acts, gServer, "port of /healthz; 0 turns it off", "10248"},
	{"readOnlyPort", "read-only-port", kInt32, acts, gHidden,
		"port that serves statistics without authentication; 0 turns it off", ""},
	{"tlsCertFile", "tls-cert-file", kFile, acts, gServer,
		"serving certificate (PEM); without one nodelet signs its own", ""},
	{"tlsPrivateKeyFile", "tls-private-key-file", kFile, acts, gServer, "key of the serving certificate (PEM)", ""},
	{"tlsCipherSuites", "tls-cipher-suites", kList, acts, gHidden,
		"cipher suites of the kubelet API; empty: Go's choice", ""},
	{"tlsCurvePreferences", "", nil, acts, gHidden,
		"key exchanges that the kubelet API allows, as numbers of Go's tls.CurveID; empty: Go's choice", ""},
	{"tlsMinVersion", "tls-min-version", kString, acts, gHidden, "lowest TLS version: VersionTLS12 or VersionTLS13", ""},
	{"serverTLSBootstrap", "rotate-server-certificates", kBool, acts, gHidden,
		"request the serving certificate from the API server; tlsCertFile serves until it is issued", ""},
	{"authentication.x509.clientCAFile", "client-ca-file", kFile, acts, gServer,
		"CA bundle for client certificates (PEM)", ""},
	{"authentication.webhook.enabled", "authentication-token-webhook", kBool, acts, gHidden,
		"let the API server check bearer tokens", "true"},
	{"authentication.webhook.cacheTTL", "authentication-token-webhook-cache-ttl", kDuration, acts, gHidden,
		"how long a checked token stays valid", "2m0s"},
	{"authentication.anonymous.enabled", "anonymous-auth", kBool, acts, gHidden,
		"accept requests without credentials, as user system:anonymous", "false"},
	{"authorization.mode", "authorization-mode", kString, acts, gHidden,
		"Webhook asks the API server, AlwaysAllow accepts all authenticated clients", "Webhook"},
	{"authorization.webhook.cacheAuthorizedTTL", "authorization-webhook-cache-authorized-ttl", kDuration, acts, gHidden,
		"how long a permission stays valid", "5m0s"},
	{"authorization.webhook.cacheUnauthorizedTTL", "authorization-webhook-cache-unauthorized-ttl",
		kDuration, acts, gHidden, "how long a refusal stays valid", "30s"},
	{"streamingConnectionIdleTimeout", "streaming-connection-idle-timeout", kDuration, acts, gHidden,
		"how long an exec, attach or port-forward may be idle before it is closed", "4h0m0s"},
	{"enableDebuggingHandlers", "enable-debugging-handlers", kBool, acts, gHidden,
		"serve logs, exec, attach and port-forward", "true"},
	{"enableContentionProfiling", "contention-profiling", kBool, noEffect, gHidden,
		"use the other profiles at /debug/pprof", ""},
	{"enableProfilingHandler", "", nil, acts, gHidden, "serve profiles at /debug/pprof", "true"},
	{"enableDebugFlagsHandler", "", nil, acts, gHidden, "let clients change the log verbosity at /debug/flags/v", "true"},
	{"enableSystemLogHandler", "", nil, acts, gHidden, "serve the files of /var/log at /logs", "true"},
	{"enableSystemLogQuery", "", nil, acts, gHidden, "serve queries for the journal at /logs", ""},
	{"showHiddenMetricsForVersion", "", nil, noEffect, gHidden, "nodelet has no hidden metrics", ""},
	{"volumeStatsAggPeriod", "volume-stats-agg-period", kDuration, noEffect, gHidden,
		"a volume is measured again on demand, at most once a minute", "1m0s"},

	// The process.
	{"logging.format", "logging-format", kFormat, acts, gProcess, "format of the log (also --log-format)", "text"},
	{"logging.verbosity", "v", kLevel, acts, gProcess, "log verbosity; 4 or more logs each step", ""},
	{"logging.vmodule", "vmodule", kVModule, noEffect, gHidden, "use --v", ""},
	{"logging.flushFrequency", "log-flush-frequency", kDuration, noEffect, gHidden, "nothing is buffered", "5s"},
	{"logging.options.text.splitStream", "log-text-split-stream", kBool, noEffect, gHidden,
		"all messages go to standard error", ""},
	{"logging.options.text.infoBufferSize", "log-text-info-buffer-size", kQuantity, noEffect, gHidden,
		"nothing is buffered", "0"},
	{"logging.options.json.splitStream", "log-json-split-stream", kBool, noEffect, gHidden,
		"all messages go to standard error", ""},
	{"logging.options.json.infoBufferSize", "log-json-info-buffer-size", kQuantity, noEffect, gHidden,
		"nothing is buffered", "0"},
	{"featureGates", "feature-gates", kGates, acts, gProcess, "feature gates of Kubernetes", ""},
	{"oomScoreAdj", "oom-score-adj", kInt32, acts, gProcess, "oom_score_adj of nodelet", "-999"},
	{"maxOpenFiles", "max-open-files", kInt64, noEffect, gHidden, "set LimitNOFILE= in the systemd unit", "1000000"},
	{"tracing.endpoint", "", nil, acts, gHidden,
		"host:port of the collector to which spans are sent (OTLP over gRPC); empty: localhost:4317", ""},
	{"tracing.samplingRatePerMillion", "", nil, acts, gHidden,
		"how many of a million traces are sampled; not set: none", ""},
	{"", "accept-missing", kList, acts, gHidden,
		"fields without effect with which nodelet starts, although pods may rely on them", ""},
	{"", "version", kVersion, acts, gProcess, "print the version and exit", "false"},
	{"", "lock-file", kFile, noEffect, gHidden, "nodelet locks its root directory", ""},
	{"", "exit-on-lock-contention", kBool, noEffect, gHidden, "nodelet locks its root directory", "false"},

	// Obsolete flags of the kubelet, many of them from cAdvisor.
	{"", "minimum-container-ttl-duration", kDuration, noEffect, gHidden, "ended containers are removed by count", "0s"},
	{"", "maximum-dead-containers-per-container", kInt32, noEffect, gHidden,
		"nodelet keeps the last ended container", "1"},
	{"", "maximum-dead-containers", kInt32, noEffect, gHidden, "nodelet keeps the last ended container", "-1"},
	{"", "experimental-mounter-path", kFile, noEffect, gHidden,
		"Kubernetes has deprecated it; nodelet calls mount itself", ""},
	{"", "experimental-allocatable-ignore-eviction", kBool, noEffect, gHidden,
		"Kubernetes has deprecated it; hard thresholds are always reserved", "false"},
	{"", "housekeeping-interval", kDuration, noEffect, gHidden, cAdvisorHelp, "10s"},
	{"", "pod-infra-container-image", kString, noEffect, gHidden,
		"the runtime chooses the pause image; older kubeadm still writes this flag", ""},
}, lostFlags)

// cAdvisorHelp is for flags that a kubelet has or had only because cAdvisor is linked into it.
const cAdvisorHelp = "a setting of cAdvisor, which nodelet does not contain"

// lostFlags are flags of cAdvisor that the kubelet lost in 1.37; older files still have them.
var lostFlags = slices.Concat(
	ofCAdvisor(kString, "", "global-housekeeping-interval", "application-metrics-count-limit", "boot-id-file",
		"machine-id-file", "container-hints", "containerd", "containerd-namespace", "event-storage-age-limit",
		"event-storage-event-limit", "storage-driver-buffer-duration", "storage-driver-db", "storage-driver-host",
		"storage-driver-table", "storage-driver-user"),
	ofCAdvisor(kBool, "false", "enable-load-reader", "log-cadvisor-usage", "storage-driver-secure"),
	ofCAdvisor(kPassword, "", "storage-driver-password"),
)

// aliases are other names of flags: nodelet's shorter ones.
var aliases = map[string]string{
	"log-format": "logging-format",
	"manifests":  "pod-manifest-path",
}

// ofCAdvisor returns the settings of flags of cAdvisor.
func ofCAdvisor(kind *kind, def string, flags ...string) []setting {
	all := make([]setting, 0, len(flags))
	for _, flag := range flags {
		all = append(all, setting{"", flag, kind, noEffect, gHidden, cAdvisorHelp, def})
	}
	return all
}
