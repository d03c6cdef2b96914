package testbed

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"text/template"

	"sigs.k8s.io/yaml"
)

// Node is a node of a testbed: a network namespace with a container runtime and possibly an agent. It has its own
// cgroups, files and sockets.
type Node struct {
	// Name is the Node object's name; IP its InternalIP.
	Name, IP string
	// Netns is the name of the node's network namespace below /run/netns.
	Netns string
	// Runtime is the node's container runtime.
	Runtime *Runtime
	// RootDir is the agent's --root-dir.
	RootDir string
	// CgroupRoot is the agent's cgroupRoot: a path relative to each cgroup mount, in the form of the cgroupfs driver.
	CgroupRoot string
	// PodLogsDir is the agent's podLogsDir, ManifestDir its staticPodPath.
	PodLogsDir, ManifestDir string
	// ConfigFile is the agent's --config. Tests may change it while no agent runs; StartAgent does not overwrite it.
	ConfigFile string
	// CNIConfDir and CNIBinDir are the runtime's directories of CNI configurations and plugins.
	CNIConfDir, CNIBinDir string
	// Kubeconfig is the agent's --kubeconfig, for the user system:node:NAME.
	Kubeconfig string

	tb    *Testbed
	index int
	dir   string
}

func newNode(tb *Testbed, i int) *Node {
	dir := tb.nodeDir(i)
	n := &Node{
		Name:        tb.nodeName(i),
		Netns:       tb.nodeNetns(i),
		RootDir:     filepath.Join(dir, "kubelet"),
		CgroupRoot:  tb.nodeCgroup(i),
		PodLogsDir:  filepath.Join(dir, "pod-logs"),
		ManifestDir: filepath.Join(dir, "manifests"),
		ConfigFile:  filepath.Join(dir, "kubelet.yaml"),
		CNIConfDir:  filepath.Join(dir, "cni/net.d"),
		CNIBinDir:   filepath.Join(dir, "cni/bin"),
		Kubeconfig:  tb.kubeconfig(tb.nodeName(i)),
		tb:          tb,
		index:       i,
		dir:         dir,
	}
	n.Runtime = &Runtime{
		Endpoint: "unix://" + tb.runtimeSocket(i, tb.opts.Runtime),
		Name:     runtimeName(tb.opts.Runtime),
		node:     n,
	}
	return n
}

func (n *Node) role(r string) string { return "n" + strconv.Itoa(n.index) + "." + r }

//go:embed templates
var templates embed.FS

// render executes a template of a configuration file.
func render(name string, data any) ([]byte, error) {
	t, err := template.New(name).Option("missingkey=error").ParseFS(templates, "templates/"+name)
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	if err := t.Execute(&b, data); err != nil {
		return nil, fmt.Errorf("render %s: %w", name, err)
	}
	return []byte(b.String()), nil
}

// values returns the variables of the templates.
func (n *Node) values() map[string]string {
	return map[string]string{
		"Dir":         n.dir,
		"Conmon":      n.tb.bins.conmon,
		"CRIO":        n.tb.bins.crio,
		"Registry":    n.tb.registryAddress(),
		"Socket":      n.Runtime.socket(),
		"ShimSockets": n.tb.shimSockets(n.index),
		"OCIRuntime":  n.tb.bins.ociRuntime(),
		"BinaryName":  binaryName(n),
		"Crun":        strconv.FormatBool(n.tb.bins.crun != ""),
		"RestrictOOM": strconv.FormatBool(!hasSysResource()),
		"CNIBin":      n.CNIBinDir,
		"CNINetwork":  n.tb.cniNetwork(n.index),
		"Ranges":      n.ranges(),
		"ClientCA":    n.tb.pki("ca.crt"),
		"Cgroup":      n.CgroupRoot,
		"Driver":      n.tb.opts.CgroupDriver,
		"Systemd":     strconv.FormatBool(n.tb.opts.CgroupDriver == DriverSystemd),
		"DNS":         serviceDNS,
		"Domain":      ClusterDomain,
		"PodLogs":     n.PodLogsDir,
	}
}

// ranges returns the range sets of host-local, one for each address family.
func (n *Node) ranges() string {
	sets := fmt.Sprintf(`[{"subnet": %q}]`, nodePodCIDR(n.index))
	if n.tb.opts.DualStack {
		sets += fmt.Sprintf(`, [{"subnet": %q}]`, nodePodCIDR6(n.index))
	}
	return sets
}

// setup creates the node's network, cgroups and configuration files.
func (n *Node) setup(ctx context.Context) error {
	if err := n.tb.setupNodeNetwork(ctx, n.tb.x, n.index, n.tb.opts); err != nil {
		return err
	}
	if err := n.makeNodeCgroup(ctx); err != nil {
		return err
	}
	for _, d := range []string{
		n.RootDir,
		n.PodLogsDir,
		n.ManifestDir,
		n.CNIConfDir,
		n.CNIBinDir,
		n.tb.shimSockets(n.index),
	} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	if err := errors.Join(n.linkPlugins(), n.setupMounts(ctx), takeUnpacked(n)); err != nil {
		return err
	}
	files := n.Runtime.files()
	files["kubelet.yaml"] = "kubelet.yaml"
	if n.tb.opts.Network != "agent" && n.tb.opts.Network != "none" {
		files["cni.conflist"] = "cni/net.d/10-testbed.conflist"
	}
	for name, file := range files {
		b, err := render(name, n.values())
		if err == nil && name == "kubelet.yaml" {
			b, err = override(b, n.tb.opts.AgentConfig)
		}
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(n.dir, file), b, mode(file)); err != nil {
			return err
		}
	}
	// Pods with dnsPolicy Default get this file. No name server has this address.
	resolv := "search testbed.example\nnameserver 192.0.2.53\n"
	return os.WriteFile(filepath.Join(n.dir, "resolv.conf"), []byte(resolv), 0o644)
}

// mode returns the mode of a file by its name: scripts are executable.
func mode(file string) os.FileMode {
	if filepath.Ext(file) == ".sh" {
		return 0o755
	}
	return 0o644
}

// linkPlugins creates the node's own directory of CNI plugins, in which a test may remove, replace and add plugins.
func (n *Node) linkPlugins() error {
	all, err := os.ReadDir(n.tb.bins.cni)
	for _, e := range all {
		if err := os.Symlink(filepath.Join(n.tb.bins.cni, e.Name()), filepath.Join(n.CNIBinDir, e.Name())); err != nil {
			return err
		}
	}
	return err
}

// override replaces top-level fields of a YAML document.
func override(doc []byte, fields map[string]any) ([]byte, error) {
	if len(fields) == 0 {
		return doc, nil
	}
	var all map[string]any
	if err := yaml.Unmarshal(doc, &all); err != nil {
		return nil, err
	}
	for k, v := range fields {
		all[k] = v
	}
	return yaml.Marshal(all)
}

// Exec runs a command in the node's network namespace and returns its standard output.
func (n *Node) Exec(ctx context.Context, args ...string) (string, error) {
	return run(ctx, "nsenter", append([]string{"--net=" + filepath.Join(netnsDir, n.Netns), "--"}, args...)...)
}

// Command returns a command that runs in the node's network and mount namespaces, in a directory.
func (n *Node) Command(ctx context.Context, dir string, args ...string) *exec.Cmd {
	enter := []string{"--net=" + filepath.Join(netnsDir, n.Netns)}
	if file := n.mountNS(); file != "" {
		enter = append(enter, "--mount="+file)
	}
	enter = append(enter, "--", "sh", "-c", `cd "$0" && exec "$@"`, dir)
	return exec.CommandContext(ctx, "nsenter", append(enter, args...)...)
}

// CutLink disconnects the node from the network, like a pulled cable. Agent and pods keep running. RestoreLink
// reverts it.
func (n *Node) CutLink(ctx context.Context) error { return n.link(ctx, "down") }

// RestoreLink connects the node to the network again.
func (n *Node) RestoreLink(ctx context.Context) error { return n.link(ctx, "up") }

func (n *Node) link(ctx context.Context, state string) error {
	return ip(ctx, fmt.Sprintf("-n %s link set n%d %s", n.tb.netns(), n.index, state))
}
