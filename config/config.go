package config

import (
	"net/netip"
	"time"
)

// Config is the valid configuration. Load returns it; it is never changed. Each package takes the values that it needs,
// in its function Settings, or cmd/nodelet hands them on.
type Config struct {
	// Kubelet is the KubeletConfiguration with the kubelet's defaults and the flags that have a field.
	Kubelet KubeletConfiguration

	// Paths, Node, Network, Providers, RuntimeCgroup and AcceptMissing are the flags without a field.
	Paths     Paths
	Node      Node
	Network   Network
	Providers Providers
	// RuntimeCgroup is where the container runtime runs, to measure it; empty: not known.
	RuntimeCgroup string
	// AcceptMissing are the fields without effect that the user accepts although pods may rely on them: see Missing.
	AcceptMissing []string

	// Flags are all flags and their values, without secrets, as /flagz shows them.
	Flags map[string]string
	// Warnings are the written settings without effect, in the order of the table of fields.
	Warnings []Warning

	// written has the fields that a file or a flag sets.
	written map[string]bool
}

// Paths are files and directories. Empty means none.
type Paths struct {
	Kubeconfig          string // without it nodelet runs only static pods
	BootstrapKubeconfig string
	Root                string // volumes, plugins, state: /var/lib/kubelet
	Certificates        string // /var/lib/kubelet/pki
}

// Node is what flags say about the Node object.
type Node struct {
	Name string // lower case
	// IPs are none, one, or an IPv4 and an IPv6 one. A single unspecified address chooses the family.
	IPs           []netip.Addr
	Labels        map[string]string // added at registration
	ExternalCloud bool              // a cloud controller manager sets addresses and removes the uninitialized taint
}

// Network says which component sets up the pod network, and how.
type Network struct {
	Mode          string   // runtime, agent or auto
	Conf          string   // the network configuration with agent: a file or directory; empty: made from the pod CIDR
	ConfDir       string   // where the runtime looks for its own; empty: ask it
	BinDirs       []string // where plugins are; empty: ask the runtime
	NetworksDir   string   // additional networks
	CallTimeout   time.Duration
	CheckPeriod   time.Duration  // 0: never
	NonMasquerade []netip.Prefix // empty: the private ranges
	PodCIDRs      []netip.Prefix // of a node without API server
}

// Providers are the credential provider plugins: their configuration, and the directory of their programs.
type Providers struct{ Config, BinDir string }

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
