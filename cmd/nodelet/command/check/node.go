package check

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/agent/placement"
	"github.com/nodelet/nodelet/agent/spec"
	"github.com/nodelet/nodelet/cni"
	"github.com/nodelet/nodelet/cni/manager"
	"github.com/nodelet/nodelet/config"
	"github.com/nodelet/nodelet/cri"
	"github.com/nodelet/nodelet/cri/images/provider"
	"github.com/nodelet/nodelet/host/machine"
	"github.com/nodelet/nodelet/kube/certs"
	"github.com/nodelet/nodelet/kube/node"
	"github.com/nodelet/nodelet/kube/pods"
	"github.com/nodelet/nodelet/systemd"
)

// runtimeLimit bounds a call to the container runtime.
const runtimeLimit = 5 * time.Second

// runtimeLog is the advice for a container runtime that answers, but does not work.
const runtimeLog = "see its log: journalctl -u containerd, or -u crio for CRI-O"

func (m *Machine) runtime(ctx context.Context) []Result {
	endpoint := m.Config.Kubelet.ContainerRuntimeEndpoint
	client, err := m.dial()
	if err != nil {
		return result("runtime", Problem, err.Error(), "correct containerRuntimeEndpoint")
	}
	defer client.Close()
	v, err := client.Version(ctx)
	if err != nil {
		advice := cri.Remedy(err)
		if others := cri.Sockets(m.Root, endpoint); len(others) > 0 {
			advice += "; or set containerRuntimeEndpoint: there is " + strings.Join(others, ", ")
		}
		text := fmt.Sprintf("no container runtime answers at %s: %s", endpoint, cri.Message(err))
		return result("runtime", Problem, text, advice)
	}
	all := result("runtime", OK, fmt.Sprintf("%s %s at %s", v.RuntimeName, v.RuntimeVersion, endpoint), "")
	for _, warning := range cri.VersionWarnings(v.RuntimeName, v.RuntimeVersion) {
		all = append(all, result("runtime", Warning, warning, "upgrade the container runtime")...)
	}
	if lacks := cri.NoImageSubPath(v.RuntimeName, v.RuntimeVersion); lacks != "" {
		advice := "containers with one are not created: upgrade the container runtime, or mount such volumes as a whole"
		all = append(all, result("runtime", Warning, lacks, advice)...)
	}
	all = append(all, m.driver(ctx, client)...)
	s, err := client.Status(ctx)
	if err != nil {
		return append(all, result("runtime", Problem, "it does not report its status: "+err.Error(), runtimeLog)...)
	}
	for _, c := range s.GetStatus().GetConditions() {
		switch {
		case c.Status:
		case c.Type == runtimeapi.RuntimeReady:
			all = append(all, result("runtime", Problem, "it is not ready: "+c.Message, runtimeLog)...)
		case c.Type == runtimeapi.NetworkReady && !m.ownNetwork(m.dirs(ctx, client)):
			level := Warning // a network add-on may come with the cluster
			if m.Config.Network.Mode == manager.ModeRuntime {
				level = Problem
			}
			all = append(all, result("network", level, "the runtime's network is not ready: "+c.Message,
				"install a network add-on, or let nodelet set up the network with --network=agent")...)
		}
	}
	return all
}

// dial returns a client of the container runtime.
func (m *Machine) dial() (*cri.Client, error) {
	return cri.Dial(m.Config.Kubelet.ContainerRuntimeEndpoint,
		cri.Options{Log: slog.New(slog.DiscardHandler), Timeout: runtimeLimit})
}

// dirs returns where the runtime looks for its network. A runtime that does not answer uses its defaults.
func (m *Machine) dirs(ctx context.Context, client *cri.Client) cni.Dirs {
	info, _ := client.Info(ctx)
	d := manager.Settings(m.Config).Dirs(info)
	if len(d.Bins) == 0 {
		d.Bins = []string{"/opt/cni/bin", "/usr/lib/cni"}
	}
	return d
}

// ownNetwork reports whether nodelet sets up the pod network.
func (m *Machine) ownNetwork(dirs cni.Dirs) bool {
	c := m.Config
	return manager.Resolve(c.Network.Mode, c.Paths.Kubeconfig != "", m.path(dirs.Conf)) == manager.ModeAgent
}

// driver compares the cgroup drivers. nodelet uses that of the runtime if it tells it.
func (m *Machine) driver(ctx context.Context, client *cri.Client) []Result {
	answer, err := client.RuntimeConfig(ctx)
	if err != nil || answer.GetLinux() == nil {
		return nil // an old runtime does not tell it
	}
	theirs, ours := cri.CgroupDriver(answer.Linux), m.Config.Kubelet.CgroupDriver
	if theirs != ours {
		return result("cgroups", OK, fmt.Sprintf("driver %s, as the runtime says (cgroupDriver is %s)", theirs, ours), "")
	}
	return result("cgroups", OK, "driver "+ours, "")
}

// network looks at the files of the runtime's pod network.
func (m *Machine) network(ctx context.Context) []Result {
	client, err := m.dial()
	if err != nil {
		return nil // a problem of the runtime
	}
	defer client.Close()
	dirs := m.dirs(ctx, client)
	if m.ownNetwork(dirs) {
		return m.agentNetwork(dirs.Bins)
	}
	n := cni.First(m.path(dirs.Conf))
	if n == nil {
		return result("network", Warning, "no network configuration in "+dirs.Conf,
			"a network add-on writes one when it runs; until then the node is not Ready")
	}
	var missing []string
	for _, p := range n.Plugins {
		if t := p.Network.Type; !m.isIn(dirs.Bins, t) {
			missing = append(missing, t)
		}
	}
	if len(missing) > 0 {
		return result("network", Problem, fmt.Sprintf("network %s needs the plugins %s, which are in none of %s",
			n.Name, strings.Join(missing, ", "), strings.Join(dirs.Bins, ", ")), "install the CNI plugins")
	}
	return result("network", OK, "network "+n.Name+" in "+dirs.Conf, "")
}

// agentNetwork looks at what nodelet needs to set up the pod network with the plugins of these directories.
func (m *Machine) agentNetwork(bins []string) []Result {
	c, dirs := manager.Settings(m.Config), []string{}
	if c.Conf != "" {
		c.Conf = m.path(c.Conf)
	}
	for _, dir := range bins {
		dirs = append(dirs, m.path(dir))
	}
	if err := c.Check(dirs); err != nil {
		return result("network", Problem, err.Error(), "correct it: until then only pods with hostNetwork start; "+
			"the plugins are in the package containernetworking-plugins")
	}
	all := result("network", OK, "nodelet sets it up (--network="+c.Mode+")", "")
	if !m.installed("iptables") {
		all = append(all, result("network", Warning, "iptables is missing: without it pods do not reach other networks",
			"install iptables")...)
	}
	return all
}

// isIn reports whether one of the directories has a file of this name.
func (m *Machine) isIn(dirs []string, name string) bool {
	for _, dir := range dirs {
		if _, err := os.Stat(m.path(filepath.Join(dir, name))); err == nil {
			return true
		}
	}
	return false
}

// minimumFree is the part of a disk that must be free; the default eviction threshold of nodefs.
const minimumFree = 10

func (m *Machine) disk(context.Context) []Result {
	var all []Result
	for _, dir := range []string{m.Config.Paths.Root, m.Config.Kubelet.PodLogsDir} {
		s, err := machine.ReadFileSystem(m.existing(dir))
		if err != nil || s.Size == 0 {
			continue
		}
		free := s.Available * 100 / s.Size
		inodes := uint64(100)
		if s.Inodes > 0 {
			inodes = s.InodesFree * 100 / s.Inodes
		}
		if free < minimumFree || inodes < minimumFree/2 {
			all = append(all, result("disk", Warning, fmt.Sprintf("%s: %d %% of the disk and %d %% of the inodes are free",
				dir, free, inodes), "free space, or pods are evicted (evictionHard)")...)
		}
	}
	all = append(all, m.links()...)
	if all == nil {
		return result("disk", OK, "enough space for volumes and logs", "")
	}
	return all
}

// existing returns the path of a directory of the machine, or of the nearest one above it that exists.
func (m *Machine) existing(dir string) string {
	path := m.path(dir)
	for path != "/" && path != "." {
		if _, err := os.Stat(path); err == nil {
			break
		}
		path = filepath.Dir(path)
	}
	return path
}

// links finds the directories of volumes that are symbolic links out of the root directory. The agent reaches the files
// of CSI volumes beneath that directory only.
func (m *Machine) links() (all []Result) {
	root, err := filepath.EvalSymlinks(m.path(m.Config.Paths.Root))
	if err != nil {
		return nil // there are no volumes yet
	}
	for _, name := range []string{"pods", "plugins"} {
		dir := filepath.Join(m.Config.Paths.Root, name)
		target, err := filepath.EvalSymlinks(filepath.Join(root, name))
		if err == nil && target != root && !strings.HasPrefix(target, root+"/") {
			all = append(all, result("disk", Problem, dir+" is a symbolic link: volumes of CSI drivers cannot be mounted there",
				"remove the link, make a directory, and mount the other one on it (mount --bind, and a line in /etc/fstab)")...)
		}
	}
	return all
}

// certificateDays is how long a certificate should still be valid.
const certificateDays = 7

// identity reads the files with which the node reaches the API server, as the agent does when it starts.
func (m *Machine) identity(context.Context) []Result {
	p, c := m.Config.Paths, certs.ClientSettings(m.Config)
	if err := m.Config.CheckSources(); err != nil && m.defaults {
		return result("identity", Warning, err.Error(), "name the flags of the agent: nodelet check --config=FILE …")
	} else if err != nil {
		return result("identity", Problem, err.Error(), "correct it: nodelet does not start without one")
	}
	if p.Kubeconfig == "" {
		return result("identity", OK, "no --kubeconfig: static pods only", "")
	}
	c.Kubeconfig, c.Dir = m.path(p.Kubeconfig), m.path(p.Certificates)
	c.Bootstrap = ""
	leaf, err := certs.Present(c, m.Now)
	expired := leaf != nil && m.Now.After(leaf.NotAfter)
	if p.BootstrapKubeconfig != "" && (err != nil || leaf == nil || expired) {
		if _, err := os.Stat(m.path(p.BootstrapKubeconfig)); err == nil {
			return result("identity", OK, "the node requests its certificate with "+p.BootstrapKubeconfig, "")
		}
	}
	if _, missing := os.Stat(c.Kubeconfig); missing != nil {
		return result("identity", Problem, "there is no "+p.Kubeconfig, "join the cluster first, such as with kubeadm join")
	}
	switch {
	case errors.Is(err, fs.ErrPermission): // for that, user gives advice
		return nil
	case err != nil:
		return result("identity", Problem, err.Error(),
			"correct it, or "+certs.NewKubeconfig(m.Config.Node.Name, nil, p.Kubeconfig))
	case leaf == nil:
		return result("identity", OK, "kubeconfig "+p.Kubeconfig, "")
	}
	if node := certs.OtherNode(m.Config, leaf); node != "" {
		return result("identity", Problem, "the client certificate is that of node "+node+", not of "+m.Config.Node.Name,
			certs.JoinAgain(node))
	}
	if expired {
		return result("identity", Problem, "the client certificate expired at "+leaf.NotAfter.Format(time.RFC3339),
			certs.NewKubeconfig(m.Config.Node.Name, leaf, p.Kubeconfig))
	}
	left := leaf.NotAfter.Sub(m.Now)
	if left < certificateDays*24*time.Hour && !m.Config.Kubelet.RotateCertificates {
		return result("identity", Warning, "the client certificate expires at "+leaf.NotAfter.Format(time.RFC3339),
			"set rotateCertificates: true")
	}
	return result("identity", OK, fmt.Sprintf("client certificate valid for %d days", int(left.Hours()/24)), "")
}

// cluster looks for the settings that a node needs only in a cluster.
func (m *Machine) cluster(context.Context) []Result {
	k := &m.Config.Kubelet
	if m.Config.Paths.Kubeconfig == "" {
		return nil
	}
	var all []Result
	open := *k.Authentication.Anonymous.Enabled && k.Authorization.Mode == "AlwaysAllow"
	if *k.EnableServer && !open && k.Authentication.X509.ClientCAFile == "" {
		all = append(all, result("cluster", Warning, "authentication.x509.clientCAFile is not set: the node refuses the API "+
			"server, so kubectl logs and exec fail", "set it to the CA of the cluster, such as /etc/kubernetes/pki/ca.crt")...)
	}
	if len(k.ClusterDNS) == 0 {
		all = append(all, result("cluster", Warning, "clusterDNS is not set: pods cannot resolve the names of services",
			"set it to the address of the cluster's DNS service, such as 10.96.0.10")...)
	}
	return all
}

// files reads the files that settings name, as the agent does when it starts.
func (m *Machine) files(context.Context) []Result {
	var all []Result
	check := func(setting string, err error) {
		if err != nil && !errors.Is(err, fs.ErrPermission) { // for that, user gives advice
			all = append(all, result("files", Problem, setting+": "+err.Error(),
				"correct it, or remove the setting: without it no pod starts")...)
		}
	}
	k := &m.Config.Kubelet
	if k.TLSCertFile != "" {
		_, err := tls.LoadX509KeyPair(m.path(k.TLSCertFile), m.path(k.TLSPrivateKeyFile))
		check("tlsCertFile, tlsPrivateKeyFile", err)
	}
	if file := k.Authentication.X509.ClientCAFile; file != "" {
		text, err := os.ReadFile(m.path(file))
		if err == nil && !x509.NewCertPool().AppendCertsFromPEM(text) {
			err = fmt.Errorf("%s has no certificate", file)
		}
		check("authentication.x509.clientCAFile", err)
	}
	if file := *k.ResolverConfig; file != "" {
		text, err := os.ReadFile(m.path(file))
		conf, wrong := spec.ParseResolvConf(text)
		check("resolvConf", cmp.Or(err, wrong))
		all = append(all, m.nameservers(file, conf.Nameservers)...)
	}
	if c := provider.Settings(m.Config); c.Config != "" {
		c.Config, c.BinDir = m.path(c.Config), m.path(c.BinDir)
		_, err := provider.New(c)
		check("credential providers", err)
	}
	return all
}

// systemdResolv is the file in which systemd-resolved names the nameservers of the network.
const systemdResolv = "/run/systemd/resolve/resolv.conf"

// nameservers looks for servers that pods with a network of their own can reach.
func (m *Machine) nameservers(file string, servers []string) []Result {
	ofMachine := func(server string) bool {
		addr, err := netip.ParseAddr(server)
		return err == nil && addr.IsLoopback()
	}
	if len(servers) == 0 || slices.ContainsFunc(servers, func(server string) bool { return !ofMachine(server) }) {
		return nil
	}
	advice := "set resolvConf to a file with other nameservers"
	if m.isIn([]string{filepath.Dir(systemdResolv)}, filepath.Base(systemdResolv)) {
		advice = "set resolvConf: " + systemdResolv
	}
	return result("files", Warning, file+" names only this machine as a nameserver ("+strings.Join(servers, ", ")+
		"): pods with dnsPolicy Default, such as CoreDNS, cannot resolve names", advice)
}

// resources computes what pods can have of the machine, as the agent does when it starts: with what is reserved, the
// policies for CPUs and memory, and what an earlier agent has given to containers.
func (m *Machine) resources(context.Context) []Result {
	root := cmp.Or(m.Root, "/")
	c := node.Settings(m.Config)
	c.MachineRoot, c.RootDir = root, m.existing(c.RootDir)
	n, err := node.New(c, nil, nil, nil)
	if err == nil {
		_, err = placement.Open(os.DirFS(root), placement.Config{
			Root:        m.path(m.Config.Paths.Root),
			Settings:    placement.SettingsOf(m.Config),
			Reservation: n.Reservation(),
			Metrics:     unmeasured{},
		})
	}
	if err == nil || errors.Is(err, fs.ErrPermission) { // for that, user gives advice
		return nil
	}
	return result("resources", Problem, err.Error(), "correct it: until then the agent does not start")
}

// unmeasured are metrics that are not exported.
type unmeasured struct{ placement.Metrics }

func (unmeasured) CPUs(int, int, map[int]int) {}

func (m *Machine) manifests(context.Context) []Result {
	dir := m.Config.Kubelet.StaticPodPath
	if dir == "" {
		return nil
	}
	if _, err := os.Stat(m.path(dir)); err != nil {
		return result("manifests", Warning, dir+" does not exist", "create it: static pods start when a manifest appears")
	}
	c := pods.Settings(m.Config)
	c.Manifests, c.API = m.path(dir), m.Config.Paths.Kubeconfig != ""
	var all []Result
	for _, p := range pods.Check(c) {
		all = append(all, result("manifests", Warning, p.String(),
			"correct it: until then nodelet may leave out pods of the file, even if the kubelet starts them")...)
	}
	if len(all) > 0 {
		return all
	}
	return result("manifests", OK, dir, "")
}

// version compares the version of the running kubelet with that which nodelet follows.
func version(ctx context.Context, a systemd.Agent) []Result {
	ctx, cancel := context.WithTimeout(ctx, runtimeLimit)
	defer cancel()
	out, err := exec.CommandContext(ctx, filepath.Join("/proc", a.PID, "exe"), "--version").Output()
	text := strings.TrimSpace(string(out))
	_, theirs, ok := strings.Cut(text, " ")
	if err != nil || !ok {
		return nil
	}
	if minor(theirs) != minor(config.KubernetesVersion) {
		return result("version", Warning, fmt.Sprintf("the kubelet is %s, nodelet follows %s: static pods that nodelet has "+
			"started restart when the kubelet comes back", theirs, config.KubernetesVersion),
			"install a nodelet that follows the minor version of the cluster: a node must not be newer than its API server")
	}
	return result("version", OK, "kubelet "+theirs+", nodelet follows "+config.KubernetesVersion, "")
}

// minor returns "v1.36" of "v1.36.3+x".
func minor(version string) string {
	parts := strings.SplitN(version, ".", 3)
	if len(parts) < 2 {
		return version
	}
	return parts[0] + "." + parts[1]
}
