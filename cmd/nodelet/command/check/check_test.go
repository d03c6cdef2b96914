package check

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/cmd/nodelet/command"
	"github.com/nodelet/nodelet/config"
	"github.com/nodelet/nodelet/test/cri/fake"
)

// newMachine is a Machine whose files are these.
func newMachine(t *testing.T, files map[string]string, args ...string) *Machine {
	t.Helper()
	cfg, err := config.Load(append([]string{"--hostname-override=n"}, args...))
	if err != nil {
		t.Fatal(err)
	}
	m := &Machine{Root: t.TempDir(), Config: cfg, Now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	for name, text := range files {
		path := m.path(name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

// want compares results with "LEVEL TEXT" lines; a text is a part of that of the result.
func want(t *testing.T, what string, got []Result, lines ...string) {
	t.Helper()
	if len(got) != len(lines) {
		t.Errorf("%s: got %v, want %q", what, got, lines)
		return
	}
	for i, line := range lines {
		level, text, _ := strings.Cut(line, " ")
		if string(got[i].Level) != level || !strings.Contains(got[i].Text, text) {
			t.Errorf("%s: got %v, want %q", what, got[i], line)
		}
		if got[i].Level == Problem && got[i].Advice == "" {
			t.Errorf("%s: got problem %q without advice, want some", what, got[i].Text)
		}
	}
}

// TestManifests checks that manifests which nodelet refuses are named, although the kubelet may run them.
func TestManifests(t *testing.T) {
	const pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: web, image: 'w:1'%s}]}\n"
	m := newMachine(t, map[string]string{
		"/m/bad.yaml":  fmt.Sprintf(pod, ", imagePolicy: Never"),
		"/m/good.yaml": fmt.Sprintf(pod, ""),
		"/m/old.bak":   "",
	}, "--manifests=/m")
	want(t, "manifests", m.manifests(t.Context()),
		`warning /m/bad.yaml: Pod "web": spec.containers[0].imagePolicy: unknown field`, "warning /m/old.bak: ignored")
	m = newMachine(t, map[string]string{"/m/good.yaml": fmt.Sprintf(pod, "")}, "--manifests=/m")
	want(t, "good manifests", m.manifests(t.Context()), "ok /m")
}

// TestFiles checks that files are named without which the agent does not start, or starts no pod.
func TestFiles(t *testing.T) {
	args := []string{
		"--tls-cert-file=/tls.crt", "--tls-private-key-file=/tls.key", "--client-ca-file=/ca.crt",
		"--image-credential-provider-config=/providers.yaml", "--image-credential-provider-bin-dir=/bin",
	}
	want(t, "missing", newMachine(t, nil, args...).files(t.Context()), "problem tlsCertFile, tlsPrivateKeyFile: open ",
		"problem authentication.x509.clientCAFile: open ", "problem resolvConf: open ",
		"problem credential providers: --image-credential-provider-config: ")
	there := newMachine(t, map[string]string{"/etc/resolv.conf": "", "/ca.crt": "?"}, "--client-ca-file=/ca.crt")
	want(t, "no CA", there.files(t.Context()), "problem authentication.x509.clientCAFile: /ca.crt has no certificate")
	want(t, "none", newMachine(t, map[string]string{"/etc/resolv.conf": ""}).files(t.Context()))
}

// TestNameservers checks that the stub of systemd-resolved, which answers only on the machine itself, is named.
func TestNameservers(t *testing.T) {
	const file = "/etc/resolv.conf"
	for text, lines := range map[string][]string{
		"nameserver 127.0.0.53\nnameserver ::1\n":       {"warning /etc/resolv.conf names only this machine"},
		"nameserver 127.0.0.53\nnameserver 192.0.2.1\n": nil,
		"nameserver\n": {"problem resolvConf: "},
	} {
		want(t, text, newMachine(t, map[string]string{file: text}).files(t.Context()), lines...)
	}
	files := map[string]string{file: "nameserver 127.0.0.53\n", systemdResolv: "nameserver 192.0.2.1\n"}
	if got := newMachine(t, files).files(t.Context()); len(got) != 1 || got[0].Advice != "set resolvConf: "+systemdResolv {
		t.Errorf("got %v, want the advice to set %s", got, systemdResolv)
	}
	want(t, "other file", newMachine(t, files, "--resolv-conf="+systemdResolv).files(t.Context()))
}

// TestTakeoverRefused checks that a takeover names what the installation would refuse.
func TestTakeoverRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: the program must belong to it")
	}
	systemctl := fmt.Sprintf("#!/bin/sh\ncase $1 in\nshow) echo LoadState=loaded; echo MainPID=%d;;\n"+
		"cat) echo ExecStart=/usr/bin/kubelet;;\nesac\n", os.Getpid())
	m := newMachine(t, map[string]string{
		"/bin/systemctl": systemctl, "/usr/bin/nodelet": "", "/run/systemd/system/x": "",
	})
	t.Setenv("PATH", m.path("/bin")+":"+os.Getenv("PATH"))
	for program, lines := range map[string][]string{
		"/usr/bin/nodelet": {"ok kubelet.service runs"},
		"/tmp/nodelet":     {"ok kubelet.service runs", "problem /tmp/nodelet is not installed"},
	} {
		_, got, err := m.arguments(command.Call{Context: t.Context(), Program: program, Root: m.Root}, true)
		if err != nil {
			t.Fatal(err)
		}
		want(t, program, got, lines...)
	}
}

// TestOtherUnitStartsAtBoot checks that a nodelet.service is named that takes the place of kubelet.service at the next
// boot, such as of the package nodelet-kubelet.
func TestOtherUnitStartsAtBoot(t *testing.T) {
	for state, lines := range map[string][]string{
		"enabled":  {"ok kubelet.service runs", "problem nodelet.service starts at boot"},
		"disabled": {"ok kubelet.service runs"},
	} {
		systemctl := fmt.Sprintf("#!/bin/sh\necho LoadState=loaded\ncase $2 in\nkubelet.service) echo MainPID=%d;;\n"+
			"nodelet.service) echo UnitFileState=%s;;\nesac\n", os.Getpid(), state)
		m := newMachine(t, map[string]string{"/bin/systemctl": systemctl, "/run/systemd/system/x": ""})
		t.Setenv("PATH", m.path("/bin")+":"+os.Getenv("PATH"))
		_, got, err := m.arguments(command.Call{Context: t.Context(), Root: m.Root}, false)
		if err != nil {
			t.Fatal(err)
		}
		want(t, state, got, lines...)
	}
}

// TestPortsOfRunningAgent checks that the agent which runs now does not count as another program at its ports, also if
// flags are given, so that nobody is advised to stop it.
func TestPortsOfRunningAgent(t *testing.T) {
	m := newMachine(t, map[string]string{
		"/bin/systemctl":        fmt.Sprintf("#!/bin/sh\necho LoadState=loaded; echo MainPID=%d\n", os.Getpid()),
		"/run/systemd/system/x": "",
	})
	t.Setenv("PATH", m.path("/bin")+":"+os.Getenv("PATH"))
	call := command.Call{Context: t.Context(), Root: m.Root, Args: []string{"--config=/c"}}
	if _, _, err := m.arguments(call, false); err != nil || !m.Serving || m.dir != "" {
		t.Errorf("got that an agent runs: %v, in %q, %v, want that it does", m.Serving, m.dir, err)
	}
	// Relative paths in the configuration of that agent refer to its working directory.
	if _, _, err := m.arguments(command.Call{Context: t.Context(), Root: m.Root}, false); err != nil {
		t.Fatal(err)
	}
	if dir, err := os.Getwd(); err != nil || m.dir != dir {
		t.Errorf("got directory %q, %v, want %q", m.dir, err, dir)
	}
}

func TestKernel(t *testing.T) {
	for release, line := range map[string]string{
		"4.18.0-553.el8": "problem 4.18.0-553.el8 is too old",
		"5.7.19":         "problem is too old",
		"5.8.0-63":       "ok 5.8.0-63",
		"6.18.2+deb13":   "ok 6.18",
		"7.0-rc1":        "ok 7.0",
		"":               "warning is not understood",
	} {
		m := newMachine(t, map[string]string{"/proc/sys/kernel/osrelease": release + "\n"})
		want(t, release, m.kernel(t.Context()), line)
	}
}

// TestProtectedKernel checks that wrong settings of the kernel are a problem where the agent may not change them.
func TestProtectedKernel(t *testing.T) {
	files := map[string]string{"/proc/sys/kernel/osrelease": "6.1.0", "/proc/sys/vm/overcommit_memory": "0",
		"/proc/sys/vm/panic_on_oom": "0", "/proc/sys/kernel/panic": "10", "/proc/sys/kernel/panic_on_oops": "1",
		"/proc/sys/kernel/keys/root_maxkeys": "1000000", "/proc/sys/kernel/keys/root_maxbytes": "25000000"}
	want(t, "changed by the agent", newMachine(t, files).kernel(t.Context()), "ok 6.1.0")
	protected := newMachine(t, files, "--protect-kernel-defaults")
	want(t, "wrong", protected.kernel(t.Context()), "ok 6.1.0", "problem kernel setting vm.overcommit_memory is 0, want 1")
	files["/proc/sys/vm/overcommit_memory"] = "1"
	want(t, "right", newMachine(t, files, "--protect-kernel-defaults").kernel(t.Context()), "ok 6.1.0")
}

// TestResources checks that what does not fit the machine, or the state of an earlier agent, is a problem before the
// agent refuses to start.
func TestResources(t *testing.T) {
	files := map[string]string{
		"/proc/meminfo":                          "MemTotal: 8388608 kB\n",
		"/sys/devices/system/cpu/online":         "0-1\n",
		"/sys/devices/system/node/node0/meminfo": "Node 0 MemTotal: 8388608 kB\n",
		"/state/cpu_manager_state":               `{"policyName":"static","defaultCpuSet":"0-1","checksum":1}`,
	}
	for cpu := range 2 {
		dir := fmt.Sprintf("/sys/devices/system/cpu/cpu%d/topology/", cpu)
		files[dir+"core_id"], files[dir+"physical_package_id"] = strconv.Itoa(cpu), "0"
		files[fmt.Sprintf("/sys/devices/system/node/node0/cpu%d/topology/core_id", cpu)] = strconv.Itoa(cpu)
	}
	const static = "--cpu-manager-policy=static --kube-reserved=cpu=1"
	for flags, lines := range map[string][]string{
		"":                           nil,
		static:                       nil,
		"--kube-reserved=memory=9Gi": {"problem kubeReserved, systemReserved and evictionHard keep "},
		"--reserved-cpus=0,7":        {"problem reservedSystemCPUs: CPUs 7 are not online"},
		static + " --cpu-manager-policy-options=fast=true": {"problem cpuManagerPolicyOptions: "},
		"--topology-manager-policy=restricted --topology-manager-policy-options=fast=true": {
			"problem topologyManagerPolicyOptions: unknown "},
		"--memory-manager-policy=Static --kube-reserved=memory=1Gi --reserved-memory=0:memory=1Gi": {
			"problem reservedMemory: the total amount "},
		"--memory-manager-policy=Static --kube-reserved=memory=1Gi --reserved-memory=0:memory=1124Mi": nil,
		"--root-dir=/state": {"problem could not restore state from checkpoint: "},
	} {
		m := newMachine(t, files, strings.Fields(flags)...)
		want(t, flags, m.resources(t.Context()), lines...)
		if _, err := os.Stat(m.path(config.DefaultRoot)); err == nil {
			t.Errorf("%s: the root directory was created, want nothing changed", flags)
		}
	}
}

func TestCgroupsAndSwap(t *testing.T) {
	v2 := map[string]string{
		"/sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory pids\n",
		"/proc/swaps":                       "Filename Type\n",
	}
	m := newMachine(t, v2)
	want(t, "v2", m.cgroups(t.Context()), "ok v2")
	want(t, "no swap", m.swap(t.Context()), "ok off")
	m = newMachine(t, map[string]string{
		"/sys/fs/cgroup/cgroup.controllers": "cpu io\n",
		"/proc/swaps":                       "Filename Type\n/dev/sda2 partition\n",
	})
	want(t, "controllers", m.cgroups(t.Context()), "problem without the controllers cpuset, memory, pids")
	want(t, "swap", m.swap(t.Context()), "warning the kubelet would not start there (failSwapOn)")
	swapped := map[string]string{"/proc/swaps": "Filename Type\n/dev/sda2 partition\n"}
	m = newMachine(t, swapped, "--fail-cgroupv1=false", "--fail-swap-on=false")
	want(t, "v1", m.cgroups(t.Context()), "warning cgroup v1")
	want(t, "swap is allowed", m.swap(t.Context()), "warning on")
	m = newMachine(t, swapped, "--fail-cgroupv1=true", "--fail-swap-on=true")
	want(t, "v1 is refused", m.cgroups(t.Context()), "problem cgroup v1: nodelet does not start there (failCgroupV1)")
	want(t, "swap is refused", m.swap(t.Context()), "problem on: nodelet does not start there (failSwapOn)")
	const v1 = "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpuset\t3\t4\t1\ncpu\t1\t4\t1\ncpuacct\t1\t4\t1\n"
	m = newMachine(t, map[string]string{"/proc/cgroups": v1 + "memory\t2\t4\t1\n"}, "--fail-cgroupv1=false")
	want(t, "v1 with all controllers", m.cgroups(t.Context()), "warning cgroup v1")
	m = newMachine(t, map[string]string{"/proc/cgroups": v1 + "memory\t0\t1\t0\n"}, "--fail-cgroupv1=false")
	want(t, "v1 without memory", m.cgroups(t.Context()), "problem cgroup v1 without the controllers memory")
}

// TestLogAtStart checks that the log names what is wrong with the manifests, before the container runtime answers.
func TestLogAtStart(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.yaml")
	if err := os.WriteFile(bad, []byte("apiVersion: v1\nkind: Pod\nmetadata: {nam: web}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for manifests, wanted := range map[string]string{
		"/nonexistent/manifests": "/nonexistent/manifests does not exist",
		dir:                      bad + `: Pod \"\": metadata.nam: unknown field`,
	} {
		var out bytes.Buffer
		m := newMachine(t, nil, "--manifests="+manifests, "--fail-cgroupv1=false", "--fail-swap-on=false")
		LogAtStart(m.Config, slog.New(slog.NewTextHandler(&out, nil)))
		if got := out.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, wanted) {
			t.Errorf("got %s, want a line with %q", got, wanted)
		}
	}
}

func TestToolsAndLimits(t *testing.T) {
	m := newMachine(t, map[string]string{"/proc/sys/fs/inotify/max_user_instances": "128\n", "/sbin/mount": ""})
	want(t, "limits", m.limits(t.Context()), "warning fs.inotify.max_user_instances is 128")
	results := m.tools(t.Context())
	if results[0].Level != Problem || !strings.HasPrefix(results[0].Text, "umount is missing") || len(results) != 7 {
		t.Errorf("tools: got %v, want umount and six others", results)
	}
	const nfs = "install nfs-common (nfs-utils) if pods use them" // as Debian and distributions with RPM name it
	if last := results[len(results)-1]; last.Advice != nfs {
		t.Errorf("got advice %q, want %q", last.Advice, nfs)
	}
}

// TestAdviceForLimits follows the advice for two limits, and checks that the machine has both after its next boot.
func TestAdviceForLimits(t *testing.T) {
	m := newMachine(t, map[string]string{
		"/proc/sys/fs/inotify/max_user_instances": "128",
		"/proc/sys/fs/inotify/max_user_watches":   "8192",
		"/bin/sysctl":                             "#!/bin/sh\n",
		"/etc/sysctl.d/90-node.conf":              "vm.swappiness = 1\n",
	})
	t.Setenv("PATH", m.path("/bin")+":"+os.Getenv("PATH"))
	for _, r := range m.limits(t.Context()) {
		text := strings.ReplaceAll(r.Advice, "/etc/", m.path("/etc/")+"/")
		if out, err := exec.Command("sh", "-c", text).CombinedOutput(); err != nil {
			t.Errorf("%s: got %v: %s", r.Advice, err, out)
		}
	}
	const all = "vm.swappiness = 1\nfs.inotify.max_user_instances = 256\nfs.inotify.max_user_watches = 65536"
	if got := m.read("/etc/sysctl.d/90-node.conf"); got != all {
		t.Errorf("got %q, want %q", got, all)
	}
}

func TestNetwork(t *testing.T) {
	conf := `{"cniVersion":"1.0.0","name":"pods","plugins":[{"type":"bridge"},{"type":"portmap"}]}`
	files := map[string]string{"/etc/cni/net.d/10-pods.conflist": conf, "/opt/cni/bin/bridge": ""}
	const away = "--container-runtime-endpoint=unix:///nonexistent/containerd.sock"
	want(t, "plugin", newMachine(t, files, away).network(t.Context()), "problem network pods needs the plugins portmap")
	nothing := newMachine(t, nil, away, "--kubeconfig=/k")
	want(t, "nothing", nothing.network(t.Context()), "warning no network configuration in /etc/cni/net.d")
}

// TestOwnNetwork checks that what nodelet's own network needs is missed before the agent runs: each plugin, a pod CIDR
// that can be used, the configuration of the user, and iptables, whatever the flag says about the mode.
func TestOwnNetwork(t *testing.T) {
	const away = "--container-runtime-endpoint=unix:///nonexistent/containerd.sock"
	all := []string{"bridge", "host-local", "portmap", "bandwidth"}
	files := map[string]string{"/usr/sbin/iptables": ""}
	for _, plugin := range all {
		files["/opt/cni/bin/"+plugin] = ""
	}
	for _, flags := range []string{
		"--network=auto", "--network=agent", "--network=agent --kubeconfig=/k", "--pod-cidr=10.1.0.0/24",
	} {
		m := newMachine(t, files, append(strings.Fields(flags), away)...)
		want(t, flags, m.network(t.Context()), "ok nodelet sets it up (--network="+m.Config.Network.Mode+")")
	}
	for _, plugin := range all {
		m := newMachine(t, files, away)
		if err := os.Remove(m.path("/opt/cni/bin/" + plugin)); err != nil {
			t.Fatal(err)
		}
		want(t, plugin, m.network(t.Context()), "problem needs the plugin \""+plugin+`"`)
	}
	small := newMachine(t, files, away, "--pod-cidr=10.1.0.0/31")
	want(t, "small", small.network(t.Context()), "problem pod CIDR 10.1.0.0/31 is not usable")
	user := newMachine(t, files, away, "--cni-conf=/my.conflist")
	want(t, "no file", user.network(t.Context()), "problem network configuration "+user.path("/my.conflist")+": ")
	delete(files, "/usr/sbin/iptables")
	want(t, "iptables", newMachine(t, files, away).network(t.Context()), "ok nodelet", "warning iptables is missing")
}

// listen lets a runtime answer, and returns the flag with which nodelet finds it.
func listen(t *testing.T, rt *fake.Runtime) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "cri.sock")
	if err := rt.Listen(socket); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(rt.Close)
	return "--container-runtime-endpoint=unix://" + socket
}

// TestNetworkOfRuntime checks that the directories of the runtime count, and that nodelet sets up the network by itself
// only if there is neither another one nor a cluster.
func TestNetworkOfRuntime(t *testing.T) {
	rt := fake.New()
	rt.CgroupDriver = runtimeapi.CgroupDriver_SYSTEMD
	rt.Info = map[string]string{"config": `{"cni":{"confDir":"/of/runtime","binDirs":["/of/runtime/bin"]}}`}
	rt.SetCondition(runtimeapi.NetworkReady, false, "", "no network")
	endpoint := listen(t, rt)
	files := map[string]string{"/of/runtime/10-pods.conflist": `{"name":"pods","plugins":[{"type":"bridge"}]}`,
		"/of/runtime/bin/bridge": ""}
	want(t, "its directories", newMachine(t, files, endpoint).network(t.Context()), "ok network pods in /of/runtime")
	alone := newMachine(t, map[string]string{"/of/runtime/bin/bridge": "", "/of/runtime/bin/host-local": "",
		"/of/runtime/bin/portmap": "", "/of/runtime/bin/bandwidth": "", "/sbin/iptables": ""}, endpoint)
	want(t, "no cluster", alone.network(t.Context()), "ok nodelet sets it up (--network=auto)")
	want(t, "no cluster, runtime", alone.runtime(t.Context()), "ok containerd", "ok driver")
	joined := newMachine(t, nil, endpoint, "--kubeconfig=/k")
	want(t, "cluster", joined.network(t.Context()), "warning no network configuration in /of/runtime")
	got := joined.runtime(t.Context())
	want(t, "cluster, runtime", got, "ok containerd", "ok driver", "warning the runtime's network is not ready")
	if last := got[len(got)-1]; !strings.Contains(last.Advice, "install a network add-on") {
		t.Errorf("got advice %q, want that nodelet does not set up the network of this node", last.Advice)
	}
}

func TestPorts(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	m := newMachine(t, nil, "--address=127.0.0.1", "--port="+port, "--healthz-port=0")
	want(t, "in use", m.ports(t.Context()), "problem is in use by another program")
	m.Serving = true
	want(t, "an agent runs", m.ports(t.Context()), "ok by the running agent")
}

func TestRuntimeIsAway(t *testing.T) {
	m := newMachine(t, nil, "--container-runtime-endpoint=unix:///nonexistent/containerd.sock")
	path := m.path("/run/crio/crio.sock")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Chdir(filepath.Dir(path)) // the path of a socket must be short
	l, err := net.Listen("unix", "crio.sock")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	got := m.runtime(t.Context())
	want(t, "away", got, "problem at unix:///nonexistent/containerd.sock: connection error: ")
	if !strings.Contains(got[0].Advice, "there is unix:///run/crio/crio.sock") {
		t.Errorf("got advice %q, want the socket that exists", got[0].Advice)
	}
}

// TestUnreadyRuntime checks that the advice names the command that shows the log of the runtime.
func TestUnreadyRuntime(t *testing.T) {
	rt := fake.New()
	rt.SetCondition(runtimeapi.RuntimeReady, false, "", "no snapshotter")
	m := newMachine(t, nil, listen(t, rt))
	for _, line := range []string{"problem it is not ready: no snapshotter", "problem it does not report its status"} {
		got := m.runtime(t.Context())
		want(t, "unready", got, "ok containerd", "ok driver", line)
		if advice := got[2].Advice; !strings.Contains(advice, "journalctl -u containerd") {
			t.Errorf("%s: got advice %q, want the command for the log", line, advice)
		}
		rt.Inject(&fake.Fault{Verb: "Status", Err: errors.New("broken")})
	}
}

// TestOldRuntime checks that a runtime which cannot mount a subPath of an image volume is named before a pod needs it.
func TestOldRuntime(t *testing.T) {
	rt := fake.New()
	rt.RuntimeVersion = "v2.0.12"
	got := newMachine(t, nil, listen(t, rt)).runtime(t.Context())
	want(t, "old", got, "ok containerd v2.0.12", "warning does not support a subPath of an image volume", "ok driver")
}

// TestRuntimeWithoutCRI checks that the advice for a containerd that has no CRI plugin is another than to start it.
func TestRuntimeWithoutCRI(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "cri.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	defer server.Stop()
	go func() { _ = server.Serve(l) }()
	got := newMachine(t, nil, "--container-runtime-endpoint=unix://"+socket).runtime(t.Context())
	want(t, "no CRI", got, "problem no container runtime answers at unix://"+socket+": unknown service runtime.v1")
	if !strings.Contains(got[0].Advice, "disabled_plugins") {
		t.Errorf("got advice %q, want how to load the plugin", got[0].Advice)
	}
}

// TestIdentity checks what is said of the certificate with which the agent would start.
func TestIdentity(t *testing.T) {
	args := []string{"--kubeconfig=/k"}
	const pki = "/var/lib/kubelet/pki/kubelet-client-current.pem"
	for _, source := range []string{"--manifests=/m", "--manifest-url=http://h/"} {
		want(t, source, newMachine(t, nil, source).identity(t.Context()), "ok no --kubeconfig")
	}
	idle := newMachine(t, nil)
	want(t, "no source", idle.identity(t.Context()), "problem no source of pods: set --kubeconfig, ")
	idle.defaults = true
	want(t, "no flags", idle.identity(t.Context()), "warning no source of pods")
	want(t, "missing", newMachine(t, nil, args...).identity(t.Context()), "problem there is no /k")
	damaged := newMachine(t, map[string]string{"/k": "?"}, args...)
	want(t, "damaged", damaged.identity(t.Context()), "problem read kubeconfig")
	boot := newMachine(t, map[string]string{"/b": ""}, "--kubeconfig=/k", "--bootstrap-kubeconfig=/b")
	want(t, "bootstrap", boot.identity(t.Context()), "ok requests its certificate")
	for days, line := range map[int]string{-1: "problem expired", 3: "warning expires", 90: "ok valid for 90 days"} {
		file := kubeconfig(t, days, "system:node:n")
		want(t, fmt.Sprintf("%d days", days),
			newMachine(t, map[string]string{"/k": file, pki: "not in use"}, args...).identity(t.Context()), line)
	}
	expired := newMachine(t, map[string]string{"/k": kubeconfig(t, -1, "system:node:n")}, "--kubeconfig=/k",
		"--bootstrap-kubeconfig=/none", "--hostname-override=n").identity(t.Context())
	want(t, "expired, no bootstrap kubeconfig", expired, "problem expired")
	if advice := expired[0].Advice; !strings.Contains(advice, "--client-name system:node:n") { // kubeadm join refuses it
		t.Errorf("expired: got advice %q, want how to get another kubeconfig", advice)
	}
	files := map[string]string{"/k": kubeconfig(t, -1, "system:node:old"), "/b": ""}
	renamed := newMachine(t, files, "--kubeconfig=/k", "--hostname-override=")
	want(t, "expired, of another node", renamed.identity(t.Context()),
		"problem the client certificate is that of node old, not of ")
	boot = newMachine(t, files, "--kubeconfig=/k", "--bootstrap-kubeconfig=/b")
	want(t, "expired, bootstrap", boot.identity(t.Context()), "ok requests its certificate")
	for user, line := range map[string]string{
		"system:node:old": "problem the client certificate is that of node old, not of ",
		"admin":           "ok valid for 90 days",
	} {
		files := map[string]string{"/k": kubeconfig(t, 90, user), "/b": ""}
		want(t, user+", named by a flag", newMachine(t, files, args...).identity(t.Context()), "ok valid for 90 days")
		want(t, user, newMachine(t, files, "--kubeconfig=/k", "--hostname-override=").identity(t.Context()), line)
		boot := newMachine(t, files, "--kubeconfig=/k", "--bootstrap-kubeconfig=/b", "--hostname-override=")
		want(t, user+" with a bootstrap kubeconfig", boot.identity(t.Context()), line)
	}
}

// TestPackagedConfiguration checks the configuration of the package: as it is, without a cluster, and with the settings
// for a cluster that are commented out, which must be all that a node of a cluster needs.
func TestPackagedConfiguration(t *testing.T) {
	text, err := os.ReadFile("../../../../packaging/config.yaml")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "config.yaml")
	for name, c := range map[string]struct {
		text  string
		args  []string
		lines []string
	}{
		"alone": {string(text), nil, nil},
		"joined": {string(text), []string{"--kubeconfig=/k"}, []string{
			"warning authentication.x509.clientCAFile is not set", "warning clusterDNS is not set"}},
		"joined as the comments say": {regexp.MustCompile(`(?m)^( *)#(\S)`).ReplaceAllString(string(text), "$1$2"),
			[]string{"--kubeconfig=/k"}, nil},
	} {
		if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		m := newMachine(t, nil, append(c.args, "--config="+file)...)
		want(t, name, m.cluster(t.Context()), c.lines...)
		want(t, name, settings(m.Config), "ok all settings")
	}
	for _, flags := range []string{"--anonymous-auth=true --authorization-mode=AlwaysAllow", "--enable-server=false"} {
		m := newMachine(t, nil, append(strings.Fields(flags), "--kubeconfig=/k", "--cluster-dns=10.96.0.10")...)
		want(t, flags, m.cluster(t.Context()))
	}
}

// kubeconfig returns a kubeconfig with a certificate that ends some days, and a minute, after the time of newMachine.
func kubeconfig(t *testing.T, days int, user string) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	end := newMachine(t, nil).Now.Add(time.Duration(days)*24*time.Hour + time.Minute)
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: end, Subject: pkix.Name{CommonName: user}}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	text, err := clientcmd.Write(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{"c": {Server: "https://api.example.com"}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"u": {
			ClientCertificateData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
			ClientKeyData:         pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: secret}),
		}},
		Contexts:       map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "u"}},
		CurrentContext: "x",
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestSettings checks that settings on which pods rely are problems.
func TestSettings(t *testing.T) {
	m := newMachine(t, nil, "--qos-reserved=memory=50%", "--feature-gates=QOSReserved=true", "--lock-file=/x")
	want(t, "settings", settings(m.Config), "problem --qos-reserved", "warning --lock-file",
		"warning featureGates.QOSReserved")
	want(t, "none", settings(newMachine(t, nil).Config), "ok all settings")
	if got := worst(settings(m.Config)); got != Problem {
		t.Errorf("worst: got %s, want problem", got)
	}
}

// TestUnreadableConfiguration checks that a configuration with which no agent starts is a problem, which a script sees,
// and that a wrong flag is an error of the command line.
func TestUnreadableConfiguration(t *testing.T) {
	call := command.Call{Context: t.Context(), Root: t.TempDir(), Args: []string{"--config=/nonexistent"}}
	got, err := look(call, false)
	if err != nil {
		t.Fatal(err)
	}
	want(t, "no file", got, "problem open /nonexistent: no such file or directory")
	call.Args = []string{"--config=/nonexistent", "--max-pods=many"}
	got, err = look(call, false)
	if _, ok := errors.AsType[*config.UsageError](err); !ok {
		t.Errorf("wrong flag: got %v, %v, want an error of the command line", got, err)
	}
	call.Args = nil
	if got, err = look(call, true); err != nil {
		t.Fatal(err)
	}
	want(t, "no systemd", got, "problem find the kubelet: this machine does not run systemd")
}

// TestSystemdDoesNotAnswer checks that the advice is to start the kubelet only if it is to be replaced.
func TestSystemdDoesNotAnswer(t *testing.T) {
	m := newMachine(t, map[string]string{"/run/systemd/system/x": "", "/bin/systemctl": "#!/bin/sh\nexit 1\n"})
	t.Setenv("PATH", m.path("/bin"))
	for takeover, advice := range map[bool]string{false: "see why systemctl fails", true: "start the kubelet"} {
		got, err := look(command.Call{Context: t.Context(), Root: m.Root}, takeover)
		if err != nil {
			t.Fatal(err)
		}
		want(t, "systemctl fails", got, "problem exit status 1")
		if !strings.HasPrefix(got[0].Advice, advice) {
			t.Errorf("takeover %t: got advice %q, want %q", takeover, got[0].Advice, advice)
		}
	}
}

// TestLinkedPods checks that a link out of the root directory in the place of a directory of volumes is a problem, and
// that one of the root directory itself is not.
func TestLinkedPods(t *testing.T) {
	m := newMachine(t, map[string]string{"/data/pods/u/x": "", "/disk/kubelet/plugins/x": "", "/lib/x": ""},
		"--root-dir=/lib/kubelet")
	link := func(target, path string) {
		t.Helper()
		if err := os.Symlink(m.path(target), m.path(path)); err != nil {
			t.Fatal(err)
		}
	}
	link("/disk/kubelet", "/lib/kubelet")
	link("/disk/kubelet/plugins", "/disk/kubelet/pods")
	want(t, "links", m.links())
	if err := os.Remove(m.path("/disk/kubelet/pods")); err != nil {
		t.Fatal(err)
	}
	link("/data/pods", "/disk/kubelet/pods")
	want(t, "links", m.links(), "problem /lib/kubelet/pods is a symbolic link")
}
