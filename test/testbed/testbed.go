// Package testbed runs a small Kubernetes cluster on one machine, for tests and benchmarks: etcd, the API server, the
// controller-manager and the scheduler in a network namespace, and nodes with a container runtime and an agent
// (nodelet or the real kubelet) in namespaces of their own.
//
// It owns all processes, namespaces, links, mounts, cgroups and files that it creates. Their names derive from the
// testbed's name, so that Down finds them after any crash. It never touches a process that it cannot prove to be its
// own, a runtime or network that it did not create, or the cgroup mounts. It builds programs and images once, into a
// cache.
//
// Root tests, the benchmarks and the command in cmd/testbed call it. A crash leaves the testbed running; Down with
// the same name removes it, and Own in a test does so for the tests of all clones.
package testbed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// AgentKind is the kind of agent on a node.
type AgentKind string

// The kinds of agent.
const (
	NoAgent AgentKind = "none"
	Nodelet AgentKind = "nodelet"
	Kubelet AgentKind = "kubelet"
)

// Shape is how much of a cluster a testbed is.
type Shape string

// The shapes of a testbed.
const (
	// FullShape has a control plane, and builds all programs and images that tests need.
	FullShape Shape = ""
	// LeanShape builds no program of the nodes: containerd, runc and the CNI plugins are those of the cache, of the
	// mirror or of Debian's packages. The nodes have the images pause and busybox only.
	LeanShape Shape = "lean"
	// StandaloneShape is a node without an API server, with programs as in LeanShape.
	StandaloneShape Shape = "standalone"
	// DebianShape is the same as StandaloneShape, with the container runtime of Debian's packages.
	DebianShape Shape = "debian"
)

func (s Shape) standalone() bool { return s == StandaloneShape || s == DebianShape }

// Options describe a testbed. The zero value is one node without an agent, named "default".
type Options struct {
	// Name identifies the testbed: 1 to 20 of a-z, 0-9 and '-'. Empty means DefaultName.
	Name string `json:"name"`
	// Agent is started on every node. Empty means NoAgent.
	Agent AgentKind `json:"agent"`
	// NodeletBin is the path of the nodelet binary, which the caller has built. Empty means "bin/nodelet".
	NodeletBin string `json:"nodeletBin"`
	// Nodes is the number of nodes; 0 means 1.
	Nodes int `json:"nodes"`
	// AgentConfig replaces top-level fields of the KubeletConfiguration of both kinds of agent.
	AgentConfig map[string]any `json:"agentConfig,omitempty"`
	// AgentArgs are added to the command line of both kinds of agent, for example "-v=4".
	AgentArgs []string `json:"agentArgs,omitempty"`
	// APIServerArgs are added to the kube-apiserver's command line.
	APIServerArgs []string `json:"apiServerArgs,omitempty"`
	// ControllerArgs are added to the kube-controller-manager's command line.
	ControllerArgs []string `json:"controllerArgs,omitempty"`
	// Kubernetes is the minor version of the control plane and the kubelet, for example "1.36". Empty means the value
	// of the environment variable KubernetesEnv, or else the version that nodelet follows.
	Kubernetes string `json:"kubernetes,omitempty"`
	// Runtime is the nodes' container runtime: "" or "containerd", or "crio". With "+crun" after it, as in
	// "containerd+crun", it creates containers with Debian's crun instead of runc.
	Runtime string `json:"runtime,omitempty"`
	// Network is what sets up the pod network: "" or "runtime" is the runtime with a configuration of the testbed,
	// "agent" is nodelet, and with "none" the test installs a network add-on.
	Network string `json:"network,omitempty"`
	// KubeProxy starts a kube-proxy on every node, so that services work. ProxyMode is its mode; empty means iptables.
	KubeProxy bool   `json:"kubeProxy,omitempty"`
	ProxyMode string `json:"proxyMode,omitempty"`
	// DNS starts a CoreDNS next to the control plane, as the cluster DNS of pods. It needs KubeProxy.
	DNS bool `json:"dns,omitempty"`
	// CgroupDriver is DriverCgroupfs or DriverSystemd, which needs a machine with systemd as PID 1. Empty means the
	// value of the environment variable DriverEnv, or else DriverCgroupfs.
	CgroupDriver string `json:"cgroupDriver,omitempty"`
	// DualStack gives nodes, pods and services an IPv6 address in addition to that of IPv4.
	DualStack bool `json:"dualStack,omitempty"`
	// OwnMounts gives each node a mount namespace of its own with shared mounts, as on a machine with systemd.
	// Without it the nodes use the mount namespace of the machine.
	OwnMounts bool `json:"ownMounts,omitempty"`
	// Shape is how much of a cluster is started, and what is built for it. Empty means FullShape.
	Shape Shape `json:"shape,omitempty"`
	// BeforeAgent is called for each node before its agent is started for the first time. It may be nil.
	BeforeAgent func(*Node) error `json:"-"`
	// Progress receives progress messages as lines of text. It may be nil.
	Progress io.Writer `json:"-"`
}

func (o Options) withDefaults() (Options, error) {
	if o.Name == "" {
		o.Name = DefaultName
	}
	if o.Agent == "" {
		o.Agent = NoAgent
	}
	if o.NodeletBin == "" {
		o.NodeletBin = "bin/nodelet"
	}
	o.CgroupDriver = cmp.Or(o.CgroupDriver, os.Getenv(DriverEnv), DriverCgroupfs)
	o.Nodes = max(o.Nodes, 1)
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	var err error
	if o.NodeletBin, err = filepath.Abs(o.NodeletBin); err != nil {
		return o, err
	}
	switch o.Agent {
	case NoAgent, Kubelet:
	case Nodelet:
		if _, err := os.Stat(o.NodeletBin); err != nil {
			return o, fmt.Errorf("find the nodelet binary (run `make build` first, or set another path): %w", err)
		}
	default:
		return o, fmt.Errorf("agent %q: use %s, %s or %s", o.Agent, Nodelet, Kubelet, NoAgent)
	}
	if !slices.Contains([]string{"", "runtime", "agent", "none"}, o.Network) ||
		o.Network == "agent" && o.Agent == Kubelet {
		return o, fmt.Errorf("network %q with agent %q: use runtime, none, or agent with nodelet", o.Network, o.Agent)
	}
	if !validRuntime(o.Runtime) || o.crio() && o.OwnMounts {
		return o, fmt.Errorf(
			"runtime %q: use %s, or %s without OwnMounts, and +%s for another OCI runtime than %s",
			o.Runtime,
			roleContainerd,
			roleCRIO,
			ociCrun,
			ociRunc,
		)
	}
	if !slices.Contains([]string{DriverCgroupfs, DriverSystemd}, o.CgroupDriver) {
		return o, fmt.Errorf("cgroup driver %q: use %s or %s", o.CgroupDriver, DriverCgroupfs, DriverSystemd)
	}
	if o.Nodes > maxNodes {
		return o, fmt.Errorf("%d nodes: a testbed has at most %d", o.Nodes, maxNodes)
	}
	return o, nil
}

// kubernetesModule returns the name of the module below modules/ that has the chosen version of Kubernetes.
func (o Options) kubernetesModule() string {
	if o.Kubernetes == "" {
		return "kubernetes"
	}
	return "kubernetes-" + o.Kubernetes
}

func (o Options) crio() bool { return runtimeRole(o.Runtime) == roleCRIO }

// Testbed is a cluster that was up when it was started or opened. Its methods may be called concurrently, except two
// that start or stop the same process.
type Testbed struct {
	names
	// Kubeconfig is the path of the cluster administrator's kubeconfig. It works on the host.
	Kubeconfig string
	// Nodes are the cluster's nodes in the order of their indexes.
	Nodes []*Node

	opts  Options
	x     int // third octet of the subnet 10.77.x.0/24
	cache *Cache
	bins  programs
	// debianRuntime says that containerd is the old one of Debian's package.
	debianRuntime bool

	serving  sync.Mutex // locked while images are served at registryAddress
	mu       sync.Mutex
	children map[string]*child // by role; only those that this process has started
}

// programs has the paths of the programs that the testbed runs.
type programs struct {
	kubernetes, containerd, crio, runc, cni, cri, coredns string // directories
	etcd, conmon, crun                                    string // files
}

// Up builds what is missing, starts a testbed, and waits until the API server answers, the runtimes have the images,
// and the nodes with an agent are Ready. On an error it takes everything down again.
func Up(ctx context.Context, o Options) (*Testbed, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("start testbed: not root; run it as root, because it creates namespaces, mounts and cgroups")
	}
	o, err := o.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("start testbed: %w", err)
	}
	tb, err := newTestbed(o)
	if err != nil {
		return nil, err
	}
	images, err := tb.prepare(ctx)
	if err != nil {
		return nil, err
	}
	if err := tb.claim(); err != nil {
		return nil, err
	}
	if err := tb.startAll(ctx, images); err != nil {
		err = fmt.Errorf("start testbed %q: %w", o.Name, err)
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		return nil, errors.Join(err, tb.KeepLogs(o.Progress), tb.Down(clean))
	}
	return tb, nil
}

func newTestbed(o Options) (*Testbed, error) {
	n, err := newNames(o.Name)
	if err != nil {
		return nil, err
	}
	cache, err := OpenCache(o.Progress)
	if err != nil {
		return nil, err
	}
	o.Kubernetes = cmp.Or(o.Kubernetes, os.Getenv(KubernetesEnv))
	if _, ok := goModules()[o.kubernetesModule()]; !ok {
		return nil, fmt.Errorf("Kubernetes %q: there is no test/testbed/modules/%s", o.Kubernetes, o.kubernetesModule())
	}
	tb := &Testbed{names: n, Kubeconfig: n.kubeconfig("admin"), opts: o, cache: cache, children: map[string]*child{}}
	for i := range o.Nodes {
		tb.Nodes = append(tb.Nodes, newNode(tb, i))
	}
	return tb, nil
}

// Build only builds what Up would build for these options.
func Build(ctx context.Context, o Options) error {
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	tb, err := newTestbed(o)
	if err != nil {
		return err
	}
	_, err = tb.prepare(ctx)
	return err
}

// Open returns a testbed that another process has started, from its state file. progress may be nil.
func Open(ctx context.Context, name string, progress io.Writer) (*Testbed, error) {
	n, err := newNames(name)
	if err != nil {
		return nil, err
	}
	s, err := readState(n.stateFile())
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("open testbed %q: it is not up: %w", n.name, err)
	}
	if err != nil {
		return nil, err
	}
	s.Options.Progress = progress
	if progress == nil {
		s.Options.Progress = io.Discard
	}
	tb, err := newTestbed(s.Options)
	if err != nil {
		return nil, err
	}
	tb.setSubnet(s.Subnet)
	_, err = tb.prepare(ctx)
	return tb, err
}

func (tb *Testbed) setSubnet(x int) {
	tb.x = x
	for _, n := range tb.Nodes {
		n.IP = address(x, 10+n.index).String()
	}
}

// prepare builds what the options need. All slow work is done in it, before any process is started.
func (tb *Testbed) prepare(ctx context.Context) (images []string, err error) {
	if !tb.cache.lookOnly {
		needs := runNeeds()
		if tb.opts.ProxyMode == "nftables" {
			needs = append(needs, need{pkg: "nftables", command: "nft"})
		}
		if err := installDebian(ctx, tb.opts.Progress, needs); err != nil {
			return nil, err
		}
	}
	if tb.opts.Shape.standalone() {
		return nil, findNodePrograms(ctx, tb)
	}
	kubernetes := []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"}
	if tb.opts.Agent == Kubelet {
		kubernetes = append(kubernetes, "kubelet")
	}
	if tb.opts.KubeProxy {
		kubernetes = append(kubernetes, "kube-proxy")
	}
	if tb.bins.kubernetes, err = tb.cache.Programs(ctx, tb.opts.kubernetesModule(), kubernetes...); err != nil {
		return nil, err
	}
	if tb.bins.etcd, err = findEtcd(ctx, tb); err != nil {
		return nil, err
	}
	if tb.opts.DNS {
		if tb.bins.coredns, err = tb.cache.Programs(ctx, "coredns", "coredns"); err != nil {
			return nil, err
		}
	}
	if tb.opts.Shape == LeanShape {
		if err := findNodePrograms(ctx, tb); err != nil {
			return nil, err
		}
		return leanImages(ctx, tb.cache)
	}
	for _, m := range []struct {
		dir      *string
		module   string
		programs []string
	}{
		{&tb.bins.runc, "runc", nil},
		{&tb.bins.cni, "cni", nil},
		{&tb.bins.cri, "cri-tools", []string{"crictl"}},
	} {
		if *m.dir, err = tb.cache.Programs(ctx, m.module, m.programs...); err != nil {
			return nil, err
		}
	}
	if err := tb.prepareRuntime(ctx); err != nil {
		return nil, err
	}
	return tb.cache.Images(ctx)
}

// claim creates the state directory. It returns an error if a testbed with the same name exists.
func (tb *Testbed) claim() error {
	if err := os.MkdirAll(tb.root, 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(tb.dir(), 0o755); errors.Is(err, os.ErrExist) {
		return fmt.Errorf(
			"start testbed %q: it is up already, or a previous run has left it: take it down first (testbed down --name %s)",
			tb.name,
			tb.name,
		)
	} else if err != nil {
		return err
	}
	if err := disown(tb.name); err != nil {
		return err
	}
	return writeState(tb.stateFile(), state{Options: tb.opts, BootID: bootID()})
}

// startAll starts all processes. Control plane and runtimes start in parallel.
func (tb *Testbed) startAll(ctx context.Context, images []string) error {
	x, err := tb.setupNetwork(ctx)
	if err != nil {
		return err
	}
	tb.setSubnet(x)
	if err := tb.updateState(func(s *state) { s.Subnet = x }); err != nil {
		return err
	}
	if err := tb.writePKI(); err != nil {
		return fmt.Errorf("write certificates: %w", err)
	}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return tb.startControlPlane(gctx) })
	for _, n := range tb.Nodes {
		if err := n.setup(ctx); err != nil {
			return errors.Join(err, g.Wait())
		}
		g.Go(func() error {
			if err := n.Runtime.Start(gctx); err != nil {
				return err
			}
			return n.Runtime.importImages(gctx, images)
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if tb.opts.DNS {
		if err := tb.startDNS(ctx); err != nil {
			return err
		}
	}
	return tb.startAgents(ctx)
}

// startAgents starts the agents one after the other, so that node i gets the i-th pod CIDR from the
// controller-manager. The CNI configuration of the node already has this range.
func (tb *Testbed) startAgents(ctx context.Context) error {
	for _, n := range tb.Nodes {
		if tb.opts.KubeProxy {
			if err := n.startKubeProxy(); err != nil {
				return err
			}
		}
		if tb.opts.Agent == NoAgent {
			continue
		}
		if tb.opts.BeforeAgent != nil {
			if err := tb.opts.BeforeAgent(n); err != nil {
				return err
			}
		}
		if err := n.StartAgent(ctx, tb.opts.Agent); err != nil {
			return err
		}
		for _, what := range []string{"create", "jsonpath={.spec.podCIDR}"} {
			if err := n.waitFor(ctx, startLimit, what); err != nil {
				return err
			}
		}
	}
	if tb.opts.Agent == NoAgent || tb.opts.Network == "none" {
		return nil
	}
	for _, n := range tb.Nodes {
		if err := n.WaitReady(ctx, startLimit); err != nil {
			return err
		}
	}
	return nil
}
