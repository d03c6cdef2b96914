package config

import (
	"crypto/tls"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/cpuset"
)

// Config is the valid configuration with the kubelet's defaults, in plain Go types. Load returns it; it is never
// changed. Other packages get the values that they need, never the whole.
type Config struct {
	Paths     Paths
	Node      Node
	API       API
	Runtime   Runtime
	Network   Network
	Images    Images
	Logs      ContainerLogs
	Pods      Pods
	CrashLoop BackOff
	Cgroups   Cgroups
	Reserved  Reserved
	Eviction  Eviction
	Shutdown  Shutdown
	Server    Server
	Healthz   Endpoint

	// Flags are all flags and their values, without secrets, as /flagz shows them.
	Flags map[string]string
	// Kubelet is the whole configuration with defaults and flags, as /configz shows it.
	Kubelet KubeletConfiguration
	// Warnings are the written settings without effect, in the order of the table of fields.
	Warnings []Warning
	// AcceptMissing are the fields without effect that the user accepts although pods may rely on them: see Missing.
	AcceptMissing []string
}

// Gate reports whether a feature gate of Kubernetes is on.
func (c *Config) Gate(name string) bool { return gateEnabled(c.Kubelet.FeatureGates, name) }

// Paths are files and directories. Empty means none.
type Paths struct {
	Kubeconfig          string // without it nodelet runs only static pods
	BootstrapKubeconfig string
	Root                string // volumes, plugins, state: /var/lib/kubelet
	Certificates        string // /var/lib/kubelet/pki
	PodLogs             string // /var/log/pods
	StaticPods          string // a directory of manifests, or one file
	ResolvConf          string // what pods inherit; empty for nothing
}

// Node is what the Node object, its status and its lease depend on.
type Node struct {
	Kernel   Kernel
	Name     string            // lower case
	Register bool              // create the Node object
	IPs      []netip.Addr      // none, one, or an IPv4 and an IPv6 one; a single unspecified address chooses the family
	Labels   map[string]string // added at registration
	Taints   []corev1.Taint    // added at registration

	ProviderID string
	// a cloud controller manager sets addresses and removes the uninitialized taint
	ExternalCloud          bool
	StatusInterval         time.Duration // how often the status is computed
	ReportInterval         time.Duration // how often it is sent without a change
	LeaseDuration          time.Duration // renewed each quarter of it
	MaxImages              int           // in the status; -1 for all
	MaxPods, PodsPerCore   int           // PodsPerCore 0: no limit by CPU
	ControllerAttachDetach bool          // the controller manager attaches volumes
	LocalStorageIsolation  bool          // ephemeral-storage is a resource
}

// API limits the requests to the API server. A negative EventQPS means no limit.
type API struct {
	QPS         float32
	Burst       int
	EventQPS    float32
	EventBurst  int
	RotateCerts bool // renew the client certificate
}

// Runtime is how to reach the CRI runtime.
type Runtime struct {
	Endpoint       string // unix:///run/containerd/containerd.sock
	ImageEndpoint  string // the same as Endpoint, unless set
	RequestTimeout time.Duration
}

// Network says which component sets up the pod network, and how.
type Network struct {
	Mode          string   // runtime, agent or auto
	Conf          string   // the network configuration with agent: a file or directory; empty: made from the pod range
	ConfDir       string   // where the runtime looks for its own; empty: ask it
	BinDirs       []string // where plugins are; empty: ask the runtime
	NetworksDir   string   // additional networks
	CallTimeout   time.Duration
	CheckPeriod   time.Duration  // 0: never
	NonMasquerade []netip.Prefix // empty: the private ranges
	PodCIDRs      []netip.Prefix // of a node without API server
}

// Images says how images are pulled and when they are removed.
type Images struct {
	MaxParallelPulls int     // 1: one after the other; 0: no limit
	PullQPS          float32 // pulls that start in a second, after a burst; 0: no limit
	PullBurst        int
	CredentialPolicy string   // imagePullCredentialsVerificationPolicy; empty if its gate is off
	PreloadedAllowed []string // image patterns, for NeverVerifyAllowlistedImages
	ProviderConfig   string   // credential provider plugins: configuration and binaries
	ProviderBinaries string
	GCHighPercent    int // 100 turns the collection off
	GCLowPercent     int
	MinimumAge       time.Duration
	MaximumAge       time.Duration // 0: no limit
}

// ContainerLogs limits the log files of containers.
type ContainerLogs struct {
	MaxBytes int64
	MaxFiles int
	Workers  int
	Interval time.Duration
}

// Pods are settings for all pods.
type Pods struct {
	DNS               []netip.Addr
	Domain            string // of the cluster, without a trailing dot
	PidsLimit         int64  // -1: no limit of its own
	SeccompDefault    bool   // RuntimeDefault for pods without a profile
	UnsafeSysctls     []string
	UserNamespaceSize int64 // IDs of a pod with a user namespace
	StaticURL         string
	StaticURLHeader   map[string][]string // may hold secrets: never log it
	FileInterval      time.Duration
	HTTPInterval      time.Duration
}

// BackOff is a delay that doubles with each failure, from Initial to Max.
type BackOff struct{ Initial, Max time.Duration }

// Kernel says what the machine's kernel has to be like.
type Kernel struct {
	// Protect: the kernel's settings are not changed; wrong ones are an error.
	Protect bool
	// RefuseV1 and RefuseSwapOn: the agent does not start on cgroup v1, or while swap is on.
	RefuseV1, RefuseSwapOn bool
	// IPTables: keep the chains that other programs expect of a node agent (makeIPTablesUtilChains).
	IPTables bool
}

// Cgroups says where the cgroups of pods are and how they are limited.
type Cgroups struct {
	Driver       string // cgroupfs or systemd
	Root         string // below which pods live; empty for the root
	PerQOS       bool   // kubepods, burstable and besteffort exist
	FailV1       bool   // refuse cgroup v1
	FailSwapOn   bool   // refuse a machine with swap
	SwapBehavior string // NoSwap (also when empty) or LimitedSwap
	CPUQuota     bool   // enforce CPU limits
	CPUPeriod    time.Duration
	Enforce      []string // enforceNodeAllocatable
	Runtime      string   // where the container runtime runs, to measure it; empty: not known
}

// Reserved are the resources that pods must not use.
type Reserved struct {
	Kube, System             corev1.ResourceList // of cpu, memory, ephemeral-storage, pid
	KubeCgroup, SystemCgroup string
	CPUs                     cpuset.CPUSet // reservedSystemCPUs: never given to a container alone
}

// Eviction says when pods are evicted, and with which grace periods.
type Eviction struct {
	Thresholds       []Threshold
	TransitionPeriod time.Duration // how long a condition stays after its cause has ended
	MaxPodGrace      time.Duration // cap of a pod's grace at a soft threshold; negative: the pod decides
}

// Shutdown is the time that pods get before the node shuts down. ByPriority is sorted, lowest first; empty: no graceful
// shutdown.
type Shutdown struct{ ByPriority []PriorityGrace }

// PriorityGrace is the time for pods with at least this priority, up to that of the next entry.
type PriorityGrace struct {
	Priority int32
	Grace    time.Duration
}

// Endpoint is an address to listen on. Port 0 means not to listen.
type Endpoint struct {
	Addr netip.Addr
	Port uint16
}

// Server is the server of the node's API, at port 10250.
type Server struct {
	Endpoint        // port 0 if enableServer is false
	CertFile        string
	KeyFile         string
	CipherSuites    []uint16      // of crypto/tls; empty for Go's choice
	Curves          []tls.CurveID // key exchanges that are allowed; empty for Go's choice
	MinTLSVersion   uint16        // of crypto/tls; TLS 1.2 by default
	TLSBootstrap    bool          // ask the API server for a serving certificate
	ClientCAFile    string
	Anonymous       bool
	Webhook         bool // TokenReview
	TokenTTL        time.Duration
	AlwaysAllow     bool // no SubjectAccessReview
	AllowedTTL      time.Duration
	DeniedTTL       time.Duration
	StreamIdle      time.Duration // 0: no limit
	DebugHandlers   bool          // exec, attach, port-forward, logs
	Profiling       bool
	DebugFlags      bool // the log's verbosity may be set
	SystemLogs      bool
	SystemLogsQuery bool
}

// Warning is a setting without effect.
type Warning struct {
	Field string // path of the field; empty for a flag of its own
	Flag  string // without dashes; empty for a field that stood in a file
	Text  string
	// Breaks says what pods lose; empty if they do not rely on the setting.
	Breaks string
}

// Setting returns the flag with its dashes, or the path of the field.
func (w Warning) Setting() string {
	if w.Flag != "" {
		return "--" + w.Flag
	}
	return w.Field
}

const noEffectText = "is accepted but has no effect in nodelet"

// String returns, for example, "--lock-file is accepted but has no effect in nodelet".
func (w Warning) String() string { return w.Setting() + " " + w.Text }

// TextRequest is the error of Load if the user asks for --help, --help-all or --version: print Text, or with Help the
// usage of the program and FlagHelp, and exit with 0.
type TextRequest struct {
	Text string
	Help bool
}

func (*TextRequest) Error() string { return "the user asked for text" }
