package config

import (
	"crypto/tls"
	"errors"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/cpuset"
	"k8s.io/utils/ptr"

	"github.com/nodelet/nodelet/agent/eviction/policy"
	"github.com/nodelet/nodelet/host/topology"
)

// Gate reports whether a feature gate of Kubernetes is on.
func (c *Config) Gate(name string) bool { return gateEnabled(c.Kubelet.FeatureGates, name) }

// Written reports whether a file or a flag sets a field, even to its default.
func (c *Config) Written(field string) bool { return c.written[field] }

// CheckSources returns an error if there is no source of pods: an agent without one leaves all pods as they are.
func (c *Config) CheckSources() error {
	if c.Paths.Kubeconfig != "" || c.Kubelet.StaticPodPath != "" || c.Kubelet.StaticPodURL != "" {
		return nil
	}
	return errors.New("no source of pods: set --kubeconfig, staticPodPath (--manifests) or staticPodURL (--manifest-url)")
}

// RefusesCgroupV1 reports whether the agent must not start on cgroup v1. The default of failCgroupV1 refuses no
// machine.
func (c *Config) RefusesCgroupV1() bool { return *c.Kubelet.FailCgroupV1 && c.Written("failCgroupV1") }

// RefusesSwap reports whether the agent must not start while swap is on. The default of failSwapOn refuses no machine.
func (c *Config) RefusesSwap() bool { return *c.Kubelet.FailSwapOn && c.Written("failSwapOn") }

// Server returns the address of the kubelet API, port 10250 by default; port 0 if there is no server (enableServer).
func (c *Config) Server() netip.AddrPort {
	if !*c.Kubelet.EnableServer {
		return netip.AddrPort{}
	}
	return addrPort(c.Kubelet.Address, c.Kubelet.Port)
}

// Healthz returns the address of the health checks; port 0 if there are none.
func (c *Config) Healthz() netip.AddrPort {
	return addrPort(c.Kubelet.HealthzBindAddress, *c.Kubelet.HealthzPort)
}

// localhost is what healthzBindAddress may be instead of an address.
const localhost = "localhost"

func addrPort(address string, port int32) netip.AddrPort {
	if address == localhost {
		address = "127.0.0.1"
	}
	return netip.AddrPortFrom(netip.MustParseAddr(address), uint16(port)) // checked by validate
}

// TLS returns what clients and the kubelet API may agree on, TLS 1.2 at least. Empty lists leave the choice to Go.
func (c *Config) TLS() *tls.Config {
	t := &tls.Config{MinVersion: tls.VersionTLS12}
	if v, ok := tlsVersions[c.Kubelet.TLSMinVersion]; ok {
		t.MinVersion = v
	}
	for _, id := range c.Kubelet.TLSCurvePreferences {
		t.CurvePreferences = append(t.CurvePreferences, tls.CurveID(id))
	}
	for _, name := range c.Kubelet.TLSCipherSuites {
		if id, ok := cipherSuite(name); ok {
			t.CipherSuites = append(t.CipherSuites, id)
		}
	}
	return t
}

// CrashLoop returns the delay after the first failure of a container, which doubles with each failure, and the longest
// one. It follows KEP-4603: the gate ReduceDefaultCrashLoopBackOffDecay starts the back-off at 1 s, and a configured
// maximum also limits the first delay.
func (c *Config) CrashLoop() (first, longest time.Duration) {
	first, longest = 10*time.Second, 5*time.Minute
	if c.Gate("ReduceDefaultCrashLoopBackOffDecay") {
		first, longest = time.Second, time.Minute
	}
	if limit := c.Kubelet.CrashLoopBackOff.MaxContainerRestartPeriod; limit != nil {
		longest = limit.Duration
	}
	return min(first, longest), longest
}

// EventQPS returns the limit of events a second for client-go, where a negative number means no limit.
func (c *Config) EventQPS() float32 {
	if *c.Kubelet.EventRecordQPS == 0 {
		return -1
	}
	return float32(*c.Kubelet.EventRecordQPS)
}

// IDsPerPod returns how many user IDs a pod with a user namespace has.
func (c *Config) IDsPerPod() uint32 {
	if u := c.Kubelet.UserNamespaces; u != nil {
		return uint32(ptr.Deref(u.IDsPerPod, defaultIDs))
	}
	return defaultIDs
}

// defaultIDs is the kubelet's default of userNamespaces.idsPerPod.
const defaultIDs = 65536

// Tracing returns where spans are sent, and how many of a million traces are sampled; none without an endpoint.
func (c *Config) Tracing() (endpoint string, perMillion int32) {
	t := c.Kubelet.Tracing
	if t == nil {
		return "", 0
	}
	return ptr.Deref(t.Endpoint, "localhost:4317"), ptr.Deref(t.SamplingRatePerMillion, 0)
}

// Thresholds returns when pods are evicted, sorted by signal, hard thresholds first. Those of 0% and 100%, which turn a
// signal off, are left out.
func (c *Config) Thresholds() []policy.Threshold { return checked(thresholds(&c.Kubelet)) }

// HardThresholds returns those of evictionHard, which alone reduce Allocatable.
func (c *Config) HardThresholds() []policy.Threshold { return checked(hardThresholds(&c.Kubelet)) }

// Reserved are the resources that pods must not use.
type Reserved struct {
	Kube, System corev1.ResourceList // of cpu, memory, ephemeral-storage, pid
	CPUs         cpuset.CPUSet       // reservedSystemCPUs: never given to a container alone
}

// Reserved returns what pods must not use. The CPUs of reservedSystemCPUs count instead of the CPU in kubeReserved and
// systemReserved.
func (c *Config) Reserved() Reserved {
	k := &c.Kubelet
	r := Reserved{Kube: checked(reservedList(k.KubeReserved)), System: checked(reservedList(k.SystemReserved))}
	if k.ReservedSystemCPUs != "" {
		r.CPUs = checked(topology.ParseCPUs(k.ReservedSystemCPUs))
		delete(r.Kube, corev1.ResourceCPU)
		r.System[corev1.ResourceCPU] = *resource.NewQuantity(int64(r.CPUs.Size()), resource.DecimalSI)
	}
	return r
}

// checked returns a value that validate has accepted.
func checked[T any](value T, err error) T {
	if err != nil {
		panic("config: a value was not checked: " + err.Error())
	}
	return value
}
