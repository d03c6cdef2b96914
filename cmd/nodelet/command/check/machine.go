package check

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/config"
	"github.com/nodelet/nodelet/host/kernel"
)

func (m *Machine) path(p string) string { return filepath.Join(m.Root, p) }

// read returns the trimmed text of a file of the machine; empty if it cannot be read.
func (m *Machine) read(path string) string {
	text, err := os.ReadFile(m.path(path))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

func (m *Machine) user(context.Context) []Result {
	if os.Geteuid() != 0 {
		return result("user", Warning, "not root: some checks are incomplete", "run it as root")
	}
	return nil
}

// kernel 5.8 brought statx with STATX_ATTR_MOUNT_ROOT; openat2 came in 5.6.
const kernelMajor, kernelMinor = 5, 8

func (m *Machine) kernel(context.Context) []Result {
	release := m.read("/proc/sys/kernel/osrelease")
	var a, b int
	_, err := fmt.Sscanf(release, "%d.%d", &a, &b)
	switch {
	case err != nil:
		return result("kernel", Warning, fmt.Sprintf("version %q is not understood", release), "nodelet needs 5.8 or later")
	case a < kernelMajor || a == kernelMajor && b < kernelMinor:
		return result("kernel", Problem, release+" is too old: nodelet needs 5.8 or later",
			"upgrade the distribution, or install a newer kernel package of it")
	}
	all := result("kernel", OK, release, "")
	if m.Config.Kubelet.ProtectKernelDefaults {
		if err := kernel.Check(m.path("/proc/sys")); err != nil {
			all = append(all, result("kernel", Problem, strings.ReplaceAll(err.Error(), "\n", "; "),
				"set them in /etc/sysctl.d, or set protectKernelDefaults: false")...)
		}
	}
	return all
}

// controllers are those of cgroup v2 that pods need, controllersV1 those of v1 without which nodelet does not start.
var (
	controllers   = []string{"cpu", "cpuset", "io", "memory", "pids"}
	controllersV1 = []string{"cpu", "cpuacct", "cpuset", "memory"}
)

func (m *Machine) cgroups(context.Context) []Result {
	text := m.read("/sys/fs/cgroup/cgroup.controllers")
	if text == "" {
		return m.cgroupV1()
	}
	have := strings.Fields(text)
	var missing []string
	for _, c := range controllers {
		if !slices.Contains(have, c) {
			missing = append(missing, c)
		}
	}
	if len(missing) > 0 {
		return result("cgroups", Problem, "v2 without the controllers "+strings.Join(missing, ", "),
			"boot without cgroup_disable= and systemd.legacy_systemd_cgroup_controller")
	}
	return result("cgroups", OK, "v2", "")
}

// cgroupV1 describes a machine with cgroup v1.
func (m *Machine) cgroupV1() []Result {
	const what = "/sys/fs/cgroup is cgroup v1"
	c := m.Config
	if missing := m.missingV1(); len(missing) > 0 {
		return result("cgroups", Problem, what+" without the controllers "+strings.Join(missing, ", "),
			"move the machine to cgroup v2, or boot without cgroup_disable=")
	}
	if c.RefusesCgroupV1() {
		return result("cgroups", Problem, what+": nodelet does not start there (failCgroupV1)",
			"move the machine to cgroup v2, or set failCgroupV1: false")
	}
	if *c.Kubelet.FailCgroupV1 {
		return result("cgroups", Warning, what+": the kubelet would not start there (failCgroupV1); nodelet does",
			"move the machine to cgroup v2: Kubernetes has deprecated v1")
	}
	return result("cgroups", Warning, what, "move the machine to cgroup v2: Kubernetes has deprecated v1")
}

// missingV1 returns the needed controllers that no hierarchy of cgroup v1 has.
func (m *Machine) missingV1() []string {
	text := m.read("/proc/cgroups")
	if text == "" {
		return nil
	}
	missing := slices.Clone(controllersV1)
	for line := range strings.Lines(text) { // such as "memory 4 2551 1": the second is the number of the hierarchy
		if f := strings.Fields(line); len(f) == 4 && f[1] != "0" {
			missing = slices.DeleteFunc(missing, func(c string) bool { return c == f[0] })
		}
	}
	return missing
}

// LogAtStart logs which settings have no effect, what of the machine differs from the configuration, and what is wrong
// with the manifests. The source of pods logs the latter again, but not before the container runtime answers.
func LogAtStart(c *config.Config, log *slog.Logger) {
	for _, w := range c.Warnings {
		log.Warn("setting has no effect", "setting", w.Setting(), "reason", w.Text)
	}
	for _, text := range differences(c) {
		log.Warn("the machine differs from the configuration", "reason", text)
	}
	for _, r := range (&Machine{Config: c}).manifests(context.Background()) {
		if r.Level != OK {
			log.Warn("problem with the manifests", "reason", r.Text)
		}
	}
}

// differences returns what would keep the kubelet from starting.
func differences(c *config.Config) []string {
	k, m := &c.Kubelet, &Machine{Config: c}
	var all []string
	if m.read("/sys/fs/cgroup/cgroup.controllers") == "" && *k.FailCgroupV1 && !c.RefusesCgroupV1() {
		all = append(all, "cgroup v1: the kubelet would not start (failCgroupV1 is on by default); nodelet starts")
	}
	if strings.Count(m.read("/proc/swaps"), "\n") > 0 && *k.FailSwapOn && !c.RefusesSwap() {
		all = append(all, "swap is on: the kubelet would not start (failSwapOn is on by default); nodelet starts")
	}
	return all
}

// tool is a program that nodelet calls. pkg is its package in Debian and, in parentheses, in distributions with RPM.
type tool struct{ program, pkg, use string }

var neededTools = []tool{
	{"mount", "mount (util-linux)", "volumes"},
	{"umount", "mount (util-linux)", "volumes"},
}

var otherTools = []tool{
	{"blkid", "util-linux", "block devices with a file system"},
	{"mkfs.ext4", "e2fsprogs", "block devices with ext4"},
	{"fsck", "util-linux", "block devices with a file system"},
	{"mkfs.xfs", "xfsprogs", "block devices with xfs"},
	{"iscsiadm", "open-iscsi (iscsi-initiator-utils)", "iscsi volumes"},
	{"mount.nfs", "nfs-common (nfs-utils)", "nfs volumes"},
}

func (m *Machine) tools(context.Context) []Result {
	var all []Result
	for _, t := range neededTools {
		if !m.installed(t.program) {
			all = append(all, result("tools", Problem, t.program+" is missing: "+t.use+" need it", "install "+t.pkg)...)
		}
	}
	for _, t := range otherTools {
		if !m.installed(t.program) {
			all = append(all, result("tools", Warning, t.program+" is missing: only "+t.use+" need it",
				"install "+t.pkg+" if pods use them")...)
		}
	}
	if all == nil {
		return result("tools", OK, "all programs are installed", "")
	}
	return all
}

// installed reports whether a program is in PATH, or in the directories of the system's administration.
func (m *Machine) installed(program string) bool {
	if m.Root == "" {
		if _, err := exec.LookPath(program); err == nil {
			return true
		}
	}
	dirs := []string{"/usr/sbin", "/usr/bin", "/sbin", "/bin", "/usr/local/sbin", "/usr/local/bin"}
	return m.isIn(dirs, program)
}

// ports tries to listen on the ports of the agent.
func (m *Machine) ports(ctx context.Context) []Result {
	var all []Result
	for _, e := range []struct {
		netip.AddrPort
		field, use string
	}{
		{m.Config.Server(), "port", "the kubelet API"},
		{m.Config.Healthz(), "healthzPort", "healthz"},
	} {
		if e.Port() == 0 {
			continue
		}
		addr := e.String()
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
		switch {
		case err == nil:
			_ = l.Close()
			all = append(all, result("ports", OK, addr+" ("+e.use+") is free", "")...)
		case errors.Is(err, unix.EADDRINUSE) && m.Serving:
			all = append(all, result("ports", OK, addr+" ("+e.use+") is in use by the running agent", "")...)
		case errors.Is(err, unix.EADDRINUSE):
			all = append(all, result("ports", Problem, addr+" ("+e.use+") is in use by another program",
				fmt.Sprintf("stop that program (see ss -ltnp sport = :%d), or choose another %s", e.Port(), e.field))...)
		default:
			all = append(all, result("ports", Problem, fmt.Sprintf("%s (%s) cannot be opened: %v", addr, e.use, err),
				"choose another "+e.field+" or address")...)
		}
	}
	return all
}

// limit is a limit of the kernel and the value that a full node needs.
type limit struct {
	file string
	want int64
	why  string
}

var limits = []limit{
	{"fs/inotify/max_user_instances", 256, "kubectl logs -f and programs in pods need instances"},
	{"fs/inotify/max_user_watches", 65536, "each followed log and manifest needs a watch"},
	{"kernel/pid_max", 32768, "a node with 110 pods has thousands of threads"},
	{"fs/file-max", 100000, "each connection and log is an open file"},
}

func (m *Machine) limits(context.Context) []Result {
	var all []Result
	for _, l := range limits {
		n, err := strconv.ParseInt(m.read("/proc/sys/"+l.file), 10, 64)
		if err == nil && n < l.want {
			name := strings.ReplaceAll(l.file, "/", ".")
			all = append(all, result("limits", Warning, fmt.Sprintf("%s is %d: %s", name, n, l.why),
				fmt.Sprintf("echo '%s = %d' >> /etc/sysctl.d/90-node.conf; sysctl --system", name, l.want))...)
		}
	}
	if all == nil {
		return result("limits", OK, "inotify, processes and open files are enough", "")
	}
	return all
}

func (m *Machine) swap(context.Context) []Result {
	const off = "turn it off with swapoff -a and in /etc/fstab, or set failSwapOn: false"
	switch k := &m.Config.Kubelet; {
	case strings.Count(m.read("/proc/swaps"), "\n") == 0: // the first line has the titles
		return result("swap", OK, "off", "")
	case m.Config.RefusesSwap():
		return result("swap", Problem, "on: nodelet does not start there (failSwapOn)", off)
	case *k.FailSwapOn:
		return result("swap", Warning, "on: the kubelet would not start there (failSwapOn); nodelet does", off)
	case k.MemorySwap.SwapBehavior == "LimitedSwap":
		return result("swap", OK, "on, with LimitedSwap", "")
	}
	return result("swap", Warning, "on", "pods get none of it; set memorySwap.swapBehavior: LimitedSwap to share it")
}

func (m *Machine) clock(context.Context) []Result {
	var t unix.Timex
	state, err := unix.Adjtimex(&t)
	switch {
	case m.Now.Year() < 2025:
		return result("clock", Problem, "it shows "+m.Now.Format("2006-01-02"), "set it, or certificates are not valid")
	case err != nil || state == unix.TIME_ERROR:
		return result("clock", Warning, "it is not synchronized", "run chrony or systemd-timesyncd")
	}
	return result("clock", OK, "synchronized", "")
}
