package config

import (
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// defaultEvictionHard are the kubelet's thresholds on Linux.
var defaultEvictionHard = map[string]string{
	"memory.available":   "100Mi",
	"nodefs.available":   "10%",
	"nodefs.inodesFree":  "5%",
	"imagefs.available":  "15%",
	"imagefs.inodesFree": "5%",
}

// setDefaults sets what is not set to the kubelet's defaults on Linux. It runs after the files and before the
// flags, so that a flag can set zero.
func setDefaults(c *KubeletConfiguration) {
	c.APIVersion, c.Kind = APIVersion, Kind
	setServerDefaults(c)
	setNodeDefaults(c)
	setImageDefaults(c)
	setResourceDefaults(c)
	setPodDefaults(c)
	setEvictionDefaults(c)
	setLoggingDefaults(&c.Logging)
}

func setServerDefaults(c *KubeletConfiguration) {
	pointer(&c.EnableServer, true)
	value(&c.Address, "0.0.0.0")
	value(&c.Port, 10250)
	pointer(&c.HealthzPort, 10248)
	value(&c.HealthzBindAddress, "127.0.0.1")
	pointer(&c.Authentication.Anonymous.Enabled, false)
	pointer(&c.Authentication.Webhook.Enabled, true)
	duration(&c.Authentication.Webhook.CacheTTL, 2*time.Minute)
	value(&c.Authorization.Mode, "Webhook")
	duration(&c.Authorization.Webhook.CacheAuthorizedTTL, 5*time.Minute)
	duration(&c.Authorization.Webhook.CacheUnauthorizedTTL, 30*time.Second)
	pointer(&c.EnableDebuggingHandlers, true)
	pointer(&c.EnableProfilingHandler, true)
	pointer(&c.EnableDebugFlagsHandler, true)
	pointer(&c.EnableSystemLogHandler, true)
	duration(&c.StreamingConnectionIdleTimeout, 4*time.Hour)
	duration(&c.VolumeStatsAggPeriod, time.Minute)
	pointer(&c.OOMScoreAdj, -999)
	value(&c.MaxOpenFiles, 1000000)
}

func setNodeDefaults(c *KubeletConfiguration) {
	// A shorter update frequency also shortens the report frequency, unless that is set too.
	if c.NodeStatusReportFrequency.Duration == 0 && c.NodeStatusUpdateFrequency.Duration != 0 {
		c.NodeStatusReportFrequency = c.NodeStatusUpdateFrequency
	}
	duration(&c.NodeStatusReportFrequency, 5*time.Minute)
	duration(&c.NodeStatusUpdateFrequency, 10*time.Second)
	value(&c.NodeLeaseDurationSeconds, 40)
	pointer(&c.NodeStatusMaxImages, 50)
	pointer(&c.RegisterNode, true)
	pointer(&c.EnableControllerAttachDetach, true)
	value(&c.ContentType, "application/vnd.kubernetes.protobuf")
	pointer(&c.KubeAPIQPS, 50)
	value(&c.KubeAPIBurst, 100)
	pointer(&c.EventRecordQPS, 50)
	value(&c.EventBurst, 100)
}

func setImageDefaults(c *KubeletConfiguration) {
	value(&c.ContainerRuntimeEndpoint, "unix:///run/containerd/containerd.sock")
	duration(&c.RuntimeRequestTimeout, 2*time.Minute)
	pointer(&c.RegistryPullQPS, 5)
	value(&c.RegistryBurst, 10)
	if gateEnabled(c.FeatureGates, "KubeletEnsureSecretPulledImages") {
		value(&c.ImagePullCredentialsVerificationPolicy, "NeverVerifyPreloadedImages")
	}
	parallel := c.MaxParallelImagePulls != nil && *c.MaxParallelImagePulls > 1
	pointer(&c.SerializeImagePulls, !parallel)
	duration(&c.ImageMinimumGCAge, 2*time.Minute)
	pointer(&c.ImageGCHighThresholdPercent, 85)
	pointer(&c.ImageGCLowThresholdPercent, 80)
	value(&c.ContainerLogMaxSize, "10Mi")
	pointer(&c.ContainerLogMaxFiles, 5)
	pointer(&c.ContainerLogMaxWorkers, 1)
	pointer(&c.ContainerLogMonitorInterval, metav1.Duration{Duration: 10 * time.Second})
}

func setResourceDefaults(c *KubeletConfiguration) {
	pointer(&c.CgroupsPerQOS, true)
	value(&c.CgroupDriver, "cgroupfs")
	pointer(&c.FailCgroupV1, true)
	pointer(&c.FailSwapOn, true)
	value(&c.CPUManagerPolicy, "none")
	duration(&c.CPUManagerReconcilePeriod, 10*time.Second)
	value(&c.MemoryManagerPolicy, "None")
	value(&c.TopologyManagerPolicy, "none")
	value(&c.TopologyManagerScope, "container")
	pointer(&c.CPUCFSQuota, true)
	pointer(&c.CPUCFSQuotaPeriod, metav1.Duration{Duration: 100 * time.Millisecond})
	value(&c.MemoryReservationPolicy, "None")
	pointer(&c.LocalStorageCapacityIsolation, true)
	if c.EnforceNodeAllocatable == nil {
		c.EnforceNodeAllocatable = []string{"pods"}
	}
}

func setPodDefaults(c *KubeletConfiguration) {
	value(&c.PodLogsDir, "/var/log/pods")
	value(&c.VolumePluginDir, "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/")
	duration(&c.SyncFrequency, time.Minute)
	duration(&c.FileCheckFrequency, 20*time.Second)
	duration(&c.HTTPCheckFrequency, 20*time.Second)
	value(&c.MaxPods, 110)
	pointer(&c.PodPidsLimit, -1)
	if *c.PodPidsLimit < 0 {
		*c.PodPidsLimit = -1
	}
	pointer(&c.ResolverConfig, "/etc/resolv.conf")
	pointer(&c.SeccompDefault, false)
	value(&c.HairpinMode, "promiscuous-bridge")
	pointer(&c.MakeIPTablesUtilChains, true)
	pointer(&c.IPTablesMasqueradeBit, 14)
	pointer(&c.IPTablesDropBit, 15)
	value(&c.ConfigMapAndSecretChangeDetectionStrategy, "Watch")
	if gateEnabled(c.FeatureGates, "KubeletCrashLoopBackOffMax") {
		pointer(&c.CrashLoopBackOff.MaxContainerRestartPeriod, metav1.Duration{Duration: 5 * time.Minute})
	}
}

func setEvictionDefaults(c *KubeletConfiguration) {
	duration(&c.EvictionPressureTransitionPeriod, 5*time.Minute)
	pointer(&c.MergeDefaultEvictionSettings, false)
	fill := *c.MergeDefaultEvictionSettings
	if c.EvictionHard == nil {
		c.EvictionHard, fill = map[string]string{}, true
	}
	for signal, threshold := range defaultEvictionHard {
		if _, set := c.EvictionHard[signal]; fill && !set {
			c.EvictionHard[signal] = threshold
		}
	}
}

func setLoggingDefaults(l *Logging) {
	value(&l.Format, "text")
	value(&l.FlushFrequency.Duration, 5*time.Second)
	for _, r := range []*LogRouting{&l.Options.Text.LogRouting, &l.Options.JSON.LogRouting} {
		if r.InfoBufferSize.IsZero() {
			r.InfoBufferSize = resource.QuantityValue{Quantity: resource.MustParse("0")}
		}
	}
}

// pointer, value and duration set a field that has no value.

func pointer[T any](p **T, v T) {
	if *p == nil {
		*p = &v
	}
}

func value[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

func duration(p *metav1.Duration, v time.Duration) { value(&p.Duration, v) }
