package config

import (
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/distribution/reference"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/component-helpers/node/util/sysctl"

	"github.com/nodelet/nodelet/host/topology"
)

func (v *checker) checkImages() {
	c := v.c
	high, low := int64(*c.ImageGCHighThresholdPercent), int64(*c.ImageGCLowThresholdPercent)
	v.between("imageGCHighThresholdPercent", high, 0, 100)
	v.between("imageGCLowThresholdPercent", low, 0, 100)
	if low >= high {
		v.bad("imageGCLowThresholdPercent", "%d is not below imageGCHighThresholdPercent (%d)", low, high)
	}
	v.durationNotNegative("imageMinimumGCAge", c.ImageMinimumGCAge.Duration)
	v.durationNotNegative("imageMaximumGCAge", c.ImageMaximumGCAge.Duration)
	if oldest := c.ImageMaximumGCAge.Duration; oldest > 0 && oldest <= c.ImageMinimumGCAge.Duration {
		v.bad("imageMaximumGCAge", "%v is not above imageMinimumGCAge (%v)", oldest, c.ImageMinimumGCAge.Duration)
	}
	v.notNegative("registryPullQPS", int64(*c.RegistryPullQPS))
	v.notNegative("registryBurst", int64(c.RegistryBurst))
	if n := c.MaxParallelImagePulls; n != nil && *n < 1 {
		v.bad("maxParallelImagePulls", "%d is not greater than 0", *n)
	} else if n != nil && *n > 1 && *c.SerializeImagePulls {
		v.bad("maxParallelImagePulls", "%d needs serializeImagePulls: false", *n)
	}
	if c.ContainerRuntimeEndpoint == "" {
		v.bad("containerRuntimeEndpoint", "must not be empty; "+
			"want the runtime's socket, such as unix:///run/containerd/containerd.sock")
	}
	v.checkPullCredentials()
	if _, err := resource.ParseQuantity(c.ContainerLogMaxSize); err != nil {
		v.bad("containerLogMaxSize", "%q is not a size such as 10Mi", c.ContainerLogMaxSize)
	}
	if *c.ContainerLogMaxFiles <= 1 {
		v.bad("containerLogMaxFiles", "%d is not greater than 1", *c.ContainerLogMaxFiles)
	}
	if *c.ContainerLogMaxWorkers < 1 {
		v.bad("containerLogMaxWorkers", "%d is not greater than 0", *c.ContainerLogMaxWorkers)
	}
	if d := c.ContainerLogMonitorInterval.Duration; d < 3*time.Second {
		v.bad("containerLogMonitorInterval", "%v is below 3s", d)
	}
}

func (v *checker) checkPullCredentials() {
	const policy, list = "imagePullCredentialsVerificationPolicy", "preloadedImagesVerificationAllowlist"
	c := v.c
	if !v.gate("KubeletEnsureSecretPulledImages") {
		v.needsGate(policy, "KubeletEnsureSecretPulledImages", c.ImagePullCredentialsVerificationPolicy != "")
		v.needsGate(list, "KubeletEnsureSecretPulledImages", len(c.PreloadedImagesVerificationAllowlist) > 0)
		return
	}
	v.oneOf(policy, c.ImagePullCredentialsVerificationPolicy,
		"NeverVerify", "NeverVerifyPreloadedImages", "NeverVerifyAllowlistedImages", "AlwaysVerify")
	if len(c.PreloadedImagesVerificationAllowlist) > 0 &&
		c.ImagePullCredentialsVerificationPolicy != "NeverVerifyAllowlistedImages" {
		v.bad(list, "has an effect only if %s is NeverVerifyAllowlistedImages", policy)
	}
	for _, pattern := range c.PreloadedImagesVerificationAllowlist {
		if wrong := wrongImagePattern(pattern); wrong != "" {
			v.bad(list, "%q %s", pattern, wrong)
		}
	}
}

// wrongImagePattern returns what is wrong with a pattern, which has to be the name of an image without tag and digest,
// or the beginning of such names, then "/*".
func wrongImagePattern(pattern string) string {
	prefix, wildcard := strings.CutSuffix(pattern, "*")
	switch {
	case pattern == "" || strings.TrimSpace(pattern) != pattern:
		return "is empty or has spaces at its ends"
	case wildcard && (!strings.HasSuffix(prefix, "/") || prefix == "/"), strings.Contains(prefix, "*"):
		return "has a wildcard elsewhere than in \"/*\" after at least a registry"
	case wildcard:
		return ""
	}
	parsed, err := reference.Parse(pattern)
	if err != nil {
		return "is not the name of an image: " + err.Error()
	}
	if named, ok := parsed.(reference.Named); ok && named.Name() != pattern {
		return fmt.Sprintf("has a tag or a digest; write %q", named.Name())
	}
	return ""
}

func (v *checker) checkCgroups() {
	c := v.c
	v.oneOf("cgroupDriver", c.CgroupDriver, "cgroupfs", "systemd")
	if c.SystemCgroups != "" && c.CgroupRoot == "" {
		v.bad("systemCgroups", "needs cgroupRoot (--cgroup-root)")
	}
	if c.MemorySwap.SwapBehavior != "" {
		v.oneOf("memorySwap.swapBehavior", c.MemorySwap.SwapBehavior, "NoSwap", "LimitedSwap")
	}
	period := c.CPUCFSQuotaPeriod.Duration
	v.needsGate("cpuCFSQuotaPeriod", "CustomCPUCFSQuotaPeriod", period != 100*time.Millisecond)
	if period < time.Millisecond || period > time.Second {
		v.bad("cpuCFSQuotaPeriod", "%v is not between 1ms and 1s", period)
	}
}

// oldThrottling was the default of memoryThrottlingFactor up to Kubernetes 1.36. Files may still have it, even if the
// gate is off.
const oldThrottling = 0.9

func (v *checker) checkThrottling(factor float64) {
	const field = "memoryThrottlingFactor"
	v.needsGate(field, "MemoryQoS", factor != oldThrottling)
	if factor <= 0 || factor > 1 || math.IsNaN(factor) {
		v.bad(field, "%v is not above 0 and at most 1", factor)
	}
}

func (v *checker) checkCPUAndMemory() {
	c := v.c
	v.oneOf("cpuManagerPolicy", c.CPUManagerPolicy, CPUPolicyNone, CPUPolicyStatic)
	v.oneOf("memoryManagerPolicy", c.MemoryManagerPolicy, MemoryPolicyNone, MemoryPolicyStatic)
	v.oneOf("topologyManagerPolicy", c.TopologyManagerPolicy, "none", "best-effort", "restricted", "single-numa-node")
	v.oneOf("topologyManagerScope", c.TopologyManagerScope, "container", "pod")
	v.checkSysctls()
	v.checkUnsafeSysctls()
	v.oneOf("memoryReservationPolicy", c.MemoryReservationPolicy, "None", "TieredReservation")
	v.needsGate("memoryReservationPolicy", "MemoryQoS", c.MemoryReservationPolicy == "TieredReservation")
	if c.MemoryThrottlingFactor != nil {
		v.checkThrottling(*c.MemoryThrottlingFactor)
	}
	if c.ReservedSystemCPUs != "" {
		if c.SystemReservedCgroup != "" || c.KubeReservedCgroup != "" {
			v.bad("reservedSystemCPUs", "cannot be combined with systemReservedCgroup or kubeReservedCgroup")
		}
		if _, err := topology.ParseCPUs(c.ReservedSystemCPUs); err != nil {
			v.bad("reservedSystemCPUs", "%v", err)
		}
	}
	v.checkReservedMemory()
	v.checkExclusive()
}

// checkExclusive checks what the static policies need on each machine, and what needs them.
func (v *checker) checkExclusive() {
	c := v.c
	kube, kubeErr := reservedList(c.KubeReserved)
	system, systemErr := reservedList(c.SystemReserved)
	if c.CPUManagerPolicy == CPUPolicyStatic && c.ReservedSystemCPUs == "" && kubeErr == nil && systemErr == nil &&
		kube.Cpu().IsZero() && system.Cpu().IsZero() {
		v.bad("cpuManagerPolicy", "static needs CPUs for the system: set reservedSystemCPUs, or cpu in kubeReserved or "+
			"systemReserved")
	}
	if c.CPUManagerPolicy == CPUPolicyNone && len(c.CPUManagerPolicyOptions) > 0 {
		v.bad("cpuManagerPolicyOptions", "needs cpuManagerPolicy: static")
	}
	if c.MemoryManagerPolicy == MemoryPolicyStatic && !slices.ContainsFunc(c.ReservedMemory, func(m NUMAMemory) bool {
		return !m.Limits.Memory().IsZero()
	}) {
		v.bad("memoryManagerPolicy", "Static needs memory for the system: set reservedMemory")
	}
}

// sysctlName matches the name of a sysctl, with dots or slashes.
var sysctlName = regexp.MustCompile(`^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$`)

// checkSysctls checks the names of defaultPodSysctls. A sysctl of no namespace would change the node.
func (v *checker) checkSysctls() {
	const field = "defaultPodSysctls"
	v.needsGate(field, "DefaultPodSysctls", len(v.c.DefaultPodSysctls) > 0)
	seen := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(v.c.DefaultPodSysctls)) {
		dotted := sysctl.NormalizeName(name)
		namespace, _, _ := sysctl.GetNamespace(name)
		switch {
		case len(name) > 253 || !sysctlName.MatchString(name):
			v.bad(field, "%q is not a valid sysctl name", name)
		case namespace == sysctl.UnknownNamespace:
			v.bad(field, "%q is not known to be namespaced", name)
		case seen[dotted]:
			v.bad(field, "%q is there twice, with dots and with slashes", dotted)
		}
		seen[dotted] = true
	}
}

// sysctlPattern matches the name of a sysctl, or its beginning with a star.
var sysctlPattern = regexp.MustCompile(`^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[./])*([a-z0-9][-_a-z0-9]*)?[a-z0-9*]$`)

// checkUnsafeSysctls checks the patterns of allowedUnsafeSysctls. A sysctl of no namespace would change the node.
func (v *checker) checkUnsafeSysctls() {
	const field = "allowedUnsafeSysctls"
	for _, pattern := range v.c.AllowedUnsafeSysctls {
		namespace, _, _ := sysctl.GetNamespace(pattern)
		switch {
		case len(pattern) > 253 || !sysctlPattern.MatchString(pattern):
			v.bad(field, "%q is neither the name of a sysctl nor its beginning with a star, such as net.core.*", pattern)
		case namespace == sysctl.UnknownNamespace:
			v.bad(field, "%q is not known to be namespaced", pattern)
		}
	}
}

func (v *checker) checkReservedMemory() {
	type slot struct {
		node int32
		name corev1.ResourceName
	}
	seen := map[slot]bool{}
	for _, m := range v.c.ReservedMemory {
		for name, size := range m.Limits {
			s := slot{m.NumaNode, name}
			switch {
			case name != corev1.ResourceMemory && !strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix):
				v.bad("reservedMemory", "NUMA node %d: %q is neither memory nor hugepages-SIZE", m.NumaNode, name)
			case size.IsZero():
				v.bad("reservedMemory", "NUMA node %d: %s is zero", m.NumaNode, name)
			case seen[s]:
				v.bad("reservedMemory", "NUMA node %d: %s is set twice", m.NumaNode, name)
			}
			seen[s] = true
		}
	}
}

func (v *checker) checkReserved() {
	if _, err := reservedList(v.c.KubeReserved); err != nil {
		v.bad("kubeReserved", "%v", err)
	}
	if _, err := reservedList(v.c.SystemReserved); err != nil {
		v.bad("systemReserved", "%v", err)
	}
	if _, err := thresholds(v.c); err != nil {
		v.errs = append(v.errs, err)
	}
}

func (v *checker) checkAllocatable() {
	const field = "enforceNodeAllocatable"
	c, seen := v.c, map[string]bool{}
	cgroupOf := map[string]struct{ field, value string }{
		"system-reserved":              {"systemReservedCgroup", c.SystemReservedCgroup},
		"system-reserved-compressible": {"systemReservedCgroup", c.SystemReservedCgroup},
		"kube-reserved":                {"kubeReservedCgroup", c.KubeReservedCgroup},
		"kube-reserved-compressible":   {"kubeReservedCgroup", c.KubeReservedCgroup},
	}
	for _, level := range c.EnforceNodeAllocatable {
		v.oneOf(field, level, "pods", "system-reserved", "system-reserved-compressible", "kube-reserved",
			"kube-reserved-compressible", "none")
		if seen[level] {
			v.bad(field, "duplicate %q", level)
		}
		seen[level] = true
		if needs, ok := cgroupOf[level]; ok && needs.value == "" {
			v.bad(field, "%q needs %s", level, named(needs.field))
		}
		if level == "none" && len(c.EnforceNodeAllocatable) > 1 {
			v.bad(field, `"none" cannot be combined with other values`)
		}
		if level != "none" && !*c.CgroupsPerQOS {
			v.bad(field, "%q needs cgroupsPerQOS (--cgroups-per-qos)", level)
		}
	}
	for _, who := range []string{"system-reserved", "kube-reserved"} {
		if seen[who] && seen[who+"-compressible"] {
			v.bad(field, "%q and %q exclude each other", who, who+"-compressible")
		}
	}
}

func (v *checker) checkShutdown() {
	c := v.c
	total, critical := c.ShutdownGracePeriod.Duration, c.ShutdownGracePeriodCriticalPods.Duration
	v.shutdownPeriod("shutdownGracePeriod", total)
	v.shutdownPeriod("shutdownGracePeriodCriticalPods", critical)
	if critical > total {
		v.bad("shutdownGracePeriodCriticalPods", "%v is more than shutdownGracePeriod (%v), of which it is a part", critical,
			total)
	}
	if len(c.ShutdownGracePeriodByPodPriority) == 0 {
		return
	}
	v.needsGate("shutdownGracePeriodByPodPriority", "GracefulNodeShutdownBasedOnPodPriority", true)
	if total > 0 || critical > 0 {
		v.bad("shutdownGracePeriodByPodPriority", "cannot be combined with shutdownGracePeriod")
	}
}

func (v *checker) shutdownPeriod(field string, d time.Duration) {
	v.needsGate(field, "GracefulNodeShutdown", d > 0)
	if d != 0 && d < time.Second {
		v.bad(field, "%v is neither zero nor at least 1s", d)
	}
}

func (v *checker) checkLogging() {
	l := v.c.Logging
	v.oneOf("logging.format", l.Format, "text", "json")
	if l.FlushFrequency.Duration <= 0 {
		v.bad("logging.flushFrequency", "%v is not greater than 0", l.FlushFrequency.Duration)
	}
	if l.Verbosity > math.MaxInt32 {
		v.bad("logging.verbosity", "%d is more than %d", l.Verbosity, math.MaxInt32)
	}
	if len(l.VModule) > 0 && l.Format != "text" {
		v.bad("logging.vmodule", "needs the format text")
	}
	for _, item := range l.VModule {
		if item.FilePattern == "" || strings.ContainsAny(item.FilePattern, "=,") || item.Verbosity > math.MaxInt32 {
			v.bad("logging.vmodule", "%q=%d is not a pattern (without comma or equals sign) and a small number",
				item.FilePattern, item.Verbosity)
		}
	}
	v.logRouting("logging.options.text", l.Options.Text)
	v.logRouting("logging.options.json", l.Options.JSON)
}

func (v *checker) logRouting(field string, r LogRouting) {
	v.needsGate(field+".splitStream", "LoggingAlphaOptions", r.SplitStream)
	v.needsGate(field+".infoBufferSize", "LoggingAlphaOptions", r.InfoBufferSize.Value() != 0)
}

// validTaints returns an error if the node cannot be registered with the taints.
func validTaints(taints []corev1.Taint) error {
	seen := map[string]bool{}
	for _, t := range taints {
		if problems := validation.IsQualifiedName(t.Key); len(problems) > 0 {
			return fmt.Errorf("invalid taint key %q: %s", t.Key, problems[0])
		}
		if problems := validation.IsValidLabelValue(t.Value); len(problems) > 0 {
			return fmt.Errorf("invalid taint value %q: %s", t.Value, problems[0])
		}
		if !slices.Contains(taintEffects, string(t.Effect)) {
			return fmt.Errorf("the effect of taint %s is %q; want one of %s", t.Key, t.Effect, strings.Join(taintEffects, ", "))
		}
		if t.TimeAdded != nil {
			return fmt.Errorf("taint %s must not set timeAdded", t.Key)
		}
		id := t.Key + ":" + string(t.Effect)
		if seen[id] {
			return fmt.Errorf("duplicate taint %s", id)
		}
		seen[id] = true
	}
	return nil
}
