package config

import (
	"crypto/tls"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/nodelet/nodelet/host/topology"
)

// build converts a valid configuration and the flags without a field to plain Go types.
func build(k *KubeletConfiguration, flags flagValues) (*Config, error) {
	node, err := buildNode(k, flags)
	if err != nil {
		return nil, err
	}
	network, err := buildNetwork(k, flags)
	if err != nil {
		return nil, err
	}
	lines, err := thresholds(k)
	if err != nil {
		return nil, err
	}
	return &Config{
		Kubelet: *k,
		Paths: Paths{
			Kubeconfig:          flags.text("kubeconfig"),
			BootstrapKubeconfig: flags.text("bootstrap-kubeconfig"),
			Root:                flags.text("root-dir"),
			Certificates:        flags.text("cert-dir"),
			PodLogs:             k.PodLogsDir,
			StaticPods:          k.StaticPodPath,
			ResolvConf:          *k.ResolverConfig,
		},
		Node: node,
		API: API{
			QPS: float32(*k.KubeAPIQPS), Burst: int(k.KubeAPIBurst),
			EventQPS: eventQPS(*k.EventRecordQPS), EventBurst: int(k.EventBurst),
			RotateCerts: k.RotateCertificates,
		},
		Runtime:   buildRuntime(k),
		Network:   network,
		Images:    buildImages(k, flags),
		Logs:      buildLogs(k),
		Pods:      buildPods(k),
		CrashLoop: buildCrashLoop(k),
		Cgroups: Cgroups{
			Driver: k.CgroupDriver, Root: k.CgroupRoot, PerQOS: *k.CgroupsPerQOS, FailV1: *k.FailCgroupV1,
			FailSwapOn: *k.FailSwapOn, SwapBehavior: k.MemorySwap.SwapBehavior,
			CPUQuota: *k.CPUCFSQuota, CPUPeriod: k.CPUCFSQuotaPeriod.Duration, Enforce: k.EnforceNodeAllocatable,
			Runtime: flags.text("runtime-cgroups"),
		},
		Reserved: buildReserved(k),
		Eviction: Eviction{
			Thresholds:       lines,
			TransitionPeriod: k.EvictionPressureTransitionPeriod.Duration,
			MaxPodGrace:      time.Duration(k.EvictionMaxPodGracePeriod) * time.Second,
		},
		Shutdown: buildShutdown(k),
		Server:   buildServer(k),
		Healthz:  endpoint(k.HealthzBindAddress, *k.HealthzPort),
	}, nil
}

// eventQPS returns the limit of events a second for client-go, where a negative number means no limit.
func eventQPS(configured int32) float32 {
	if configured == 0 {
		return -1
	}
	return float32(configured)
}

func buildNode(k *KubeletConfiguration, flags flagValues) (Node, error) {
	name, err := nodeName(flags.text("hostname-override"))
	if err != nil {
		return Node{}, err
	}
	ips, err := nodeIPs(flags.text("node-ip"))
	if err != nil {
		return Node{}, err
	}
	labels, _ := flags["node-labels"].(map[string]string)
	if err := checkLabels(labels); err != nil {
		return Node{}, err
	}
	cloud := flags.text("cloud-provider")
	if cloud != "" && cloud != "external" {
		return Node{}, fmt.Errorf(`--cloud-provider: %q has been removed from Kubernetes; want "external" or nothing`, cloud)
	}
	return Node{
		Name: name, IPs: ips, Labels: labels, ExternalCloud: cloud == "external",
		Register: *k.RegisterNode, Taints: k.RegisterWithTaints, ProviderID: k.ProviderID,
		StatusInterval: k.NodeStatusUpdateFrequency.Duration, ReportInterval: k.NodeStatusReportFrequency.Duration,
		LeaseDuration: time.Duration(k.NodeLeaseDurationSeconds) * time.Second,
		MaxImages:     int(*k.NodeStatusMaxImages), MaxPods: int(k.MaxPods), PodsPerCore: int(k.PodsPerCore),
		ControllerAttachDetach: *k.EnableControllerAttachDetach,
		LocalStorageIsolation:  *k.LocalStorageCapacityIsolation,
	}, nil
}

func buildRuntime(k *KubeletConfiguration) Runtime {
	r := Runtime{
		Endpoint:       k.ContainerRuntimeEndpoint,
		ImageEndpoint:  k.ImageServiceEndpoint,
		RequestTimeout: k.RuntimeRequestTimeout.Duration,
	}
	if r.ImageEndpoint == "" {
		r.ImageEndpoint = r.Endpoint
	}
	return r
}

func buildImages(k *KubeletConfiguration, flags flagValues) Images {
	return Images{
		CredentialPolicy: k.ImagePullCredentialsVerificationPolicy, PreloadedAllowed: k.PreloadedImagesVerificationAllowlist,
		ProviderConfig:   flags.text("image-credential-provider-config"),
		ProviderBinaries: flags.text("image-credential-provider-bin-dir"),
		GCHighPercent:    int(*k.ImageGCHighThresholdPercent), GCLowPercent: int(*k.ImageGCLowThresholdPercent),
		MinimumAge: k.ImageMinimumGCAge.Duration, MaximumAge: k.ImageMaximumGCAge.Duration,
	}
}

func buildLogs(k *KubeletConfiguration) ContainerLogs {
	size := resource.MustParse(k.ContainerLogMaxSize) // checked by validate
	return ContainerLogs{
		MaxBytes: size.Value(), MaxFiles: int(*k.ContainerLogMaxFiles), Workers: int(*k.ContainerLogMaxWorkers),
		Interval: k.ContainerLogMonitorInterval.Duration,
	}
}

func buildPods(k *KubeletConfiguration) Pods {
	p := Pods{
		Domain: strings.TrimSuffix(k.ClusterDomain, "."), PidsLimit: *k.PodPidsLimit, SeccompDefault: *k.SeccompDefault,
		UnsafeSysctls: k.AllowedUnsafeSysctls, UserNamespaceSize: 65536,
		StaticURL: k.StaticPodURL, StaticURLHeader: k.StaticPodURLHeader,
		FileInterval: k.FileCheckFrequency.Duration, HTTPInterval: k.HTTPCheckFrequency.Duration,
	}
	for _, server := range k.ClusterDNS {
		p.DNS = append(p.DNS, netip.MustParseAddr(server)) // checked by validate
	}
	if k.UserNamespaces != nil && k.UserNamespaces.IDsPerPod != nil {
		p.UserNamespaceSize = *k.UserNamespaces.IDsPerPod
	}
	return p
}

// buildCrashLoop follows KEP-4603: the gate ReduceDefaultCrashLoopBackOffDecay starts the back-off at 1 s, and a
// configured maximum also limits the first delay.
func buildCrashLoop(k *KubeletConfiguration) BackOff {
	b := BackOff{Initial: 10 * time.Second, Max: 5 * time.Minute}
	if gateEnabled(k.FeatureGates, "ReduceDefaultCrashLoopBackOffDecay") {
		b = BackOff{Initial: time.Second, Max: time.Minute}
	}
	if limit := k.CrashLoopBackOff.MaxContainerRestartPeriod; limit != nil {
		b.Max = limit.Duration
	}
	b.Initial = min(b.Initial, b.Max)
	return b
}

// buildShutdown converts the older pair of fields to priorities: critical pods have 2,000,000,000 or more.
func buildShutdown(k *KubeletConfiguration) Shutdown {
	const critical = 2000000000
	var s Shutdown
	if total := k.ShutdownGracePeriod.Duration; total > 0 {
		last := k.ShutdownGracePeriodCriticalPods.Duration
		s.ByPriority = []PriorityGrace{{0, total - last}, {critical, last}}
	}
	for _, p := range k.ShutdownGracePeriodByPodPriority {
		s.ByPriority = append(s.ByPriority, PriorityGrace{p.Priority,
			time.Duration(p.ShutdownGracePeriodSeconds) * time.Second})
	}
	slices.SortFunc(s.ByPriority, func(a, b PriorityGrace) int { return int(int64(a.Priority) - int64(b.Priority)) })
	return s
}

func buildServer(k *KubeletConfiguration) Server {
	s := Server{
		CertFile:      k.TLSCertFile,
		KeyFile:       k.TLSPrivateKeyFile,
		MinTLSVersion: tls.VersionTLS12,
		TLSBootstrap:  k.ServerTLSBootstrap,
		ClientCAFile:  k.Authentication.X509.ClientCAFile, Anonymous: *k.Authentication.Anonymous.Enabled,
		Webhook: *k.Authentication.Webhook.Enabled, TokenTTL: k.Authentication.Webhook.CacheTTL.Duration,
		AlwaysAllow: k.Authorization.Mode == "AlwaysAllow",
		AllowedTTL:  k.Authorization.Webhook.CacheAuthorizedTTL.Duration,
		DeniedTTL:   k.Authorization.Webhook.CacheUnauthorizedTTL.Duration,
		StreamIdle:  k.StreamingConnectionIdleTimeout.Duration, DebugHandlers: *k.EnableDebuggingHandlers,
		Profiling:       *k.EnableProfilingHandler,
		DebugFlags:      *k.EnableDebugFlagsHandler,
		SystemLogs:      *k.EnableSystemLogHandler,
		SystemLogsQuery: ptr.Deref(k.EnableSystemLogQuery, false),
	}
	if *k.EnableServer {
		s.Endpoint = endpoint(k.Address, k.Port)
	}
	if v, ok := tlsVersions[k.TLSMinVersion]; ok {
		s.MinTLSVersion = v
	}
	for _, id := range k.TLSCurvePreferences {
		s.Curves = append(s.Curves, tls.CurveID(id)) // checked by validate
	}
	for _, name := range k.TLSCipherSuites {
		if id, ok := cipherSuite(name); ok {
			s.CipherSuites = append(s.CipherSuites, id)
		}
	}
	return s
}

// localhost is what healthzBindAddress may be instead of an address.
const localhost = "localhost"

// endpoint converts fields that validate has checked.
func endpoint(address string, port int32) Endpoint {
	if address == localhost {
		address = "127.0.0.1"
	}
	return Endpoint{netip.MustParseAddr(address), uint16(port)}
}

// buildReserved returns what pods must not use. The CPUs of reservedSystemCPUs count instead of the CPU in kubeReserved
// and systemReserved.
func buildReserved(k *KubeletConfiguration) Reserved {
	r := Reserved{
		Kube:         mustReserved(k.KubeReserved),
		System:       mustReserved(k.SystemReserved),
		KubeCgroup:   k.KubeReservedCgroup,
		SystemCgroup: k.SystemReservedCgroup,
	}
	if k.ReservedSystemCPUs != "" {
		cpus, err := topology.ParseCPUs(k.ReservedSystemCPUs)
		if err != nil {
			panic("config: reserved CPUs were not checked: " + err.Error())
		}
		r.CPUs = cpus
		delete(r.Kube, corev1.ResourceCPU)
		r.System[corev1.ResourceCPU] = *resource.NewQuantity(int64(cpus.Size()), resource.DecimalSI)
	}
	return r
}

// mustReserved converts a field that validate has checked.
func mustReserved(m map[string]string) corev1.ResourceList {
	list, err := reservedList(m)
	if err != nil {
		panic("config: reserved resources were not checked: " + err.Error())
	}
	return list
}

// buildKernel returns what the machine's kernel has to be like. written reports whether a setting was written, in a
// file or as a flag: defaults refuse no machine.
func buildKernel(k *KubeletConfiguration, written func(field, flag string) bool) Kernel {
	return Kernel{
		Protect:      k.ProtectKernelDefaults,
		IPTables:     *k.MakeIPTablesUtilChains,
		RefuseV1:     *k.FailCgroupV1 && written("failCgroupV1", "fail-cgroupv1"),
		RefuseSwapOn: *k.FailSwapOn && written("failSwapOn", "fail-swap-on"),
	}
}

// limitPulls sets the limits of pulls that the user has written. The kubelet's defaults, one pull at a time and five in
// a second, do not count.
func limitPulls(i *Images, k *KubeletConfiguration, written func(field, flag string) bool) {
	switch {
	case *k.SerializeImagePulls && written("serializeImagePulls", "serialize-image-pulls"):
		i.MaxParallelPulls = 1
	case k.MaxParallelImagePulls != nil:
		i.MaxParallelPulls = int(*k.MaxParallelImagePulls)
	}
	if written("registryPullQPS", "registry-qps") || written("registryBurst", "registry-burst") {
		i.PullQPS, i.PullBurst = float32(*k.RegistryPullQPS), int(k.RegistryBurst)
	}
}
