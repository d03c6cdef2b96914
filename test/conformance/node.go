package main

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/test/testbed"
)

// shims stand in for systemd, by which the suite starts, kills and restarts the agent, and for sudo.
//
//go:embed shims
var shims embed.FS

// podLogs is the directory in which the specs look for logs. It is the node's own, as its mounts are.
const podLogs = "/var/log/pods"

// nodeTest is the suite's program, and runtimePID the file that tells it the container runtime's process.
const (
	nodeTest   = "e2e_node.test"
	runtimePID = "runtime.pid"
)

// The environment variables with the directory in which the shims keep the units, and with the directories of the
// cgroup in which they start them.
const (
	unitsEnv   = "NODE_SUITE_UNITS"
	cgroupsEnv = "NODE_SUITE_CGROUPS"
)

// runtimeCgroup is the cgroup of the node's container runtime, which a spec wants measured.
func runtimeCgroup(n *testbed.Node) string { return path.Join(n.CgroupRoot, "runtime") }

// confine moves the container runtime to a cgroup of its own. What it has allocated before is not counted there.
func confine(n *testbed.Node) error {
	dirs, err := testbed.MakeCgroup(runtimeCgroup(n))
	for _, dir := range dirs {
		pid := fmt.Appendln(nil, n.Runtime.PID())
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, "cgroup.procs"), pid, 0))
	}
	return err
}

// forNode adapts the options to the suite for a single node: its specs run one at a time, and it starts an API server
// and the agent itself, on the node of a testbed without an agent.
func (o *options) forNode() {
	o.testbed.Agent = testbed.NoAgent
	o.testbed.KubeProxy, o.testbed.DNS = false, false
	o.testbed.AgentArgs = nil
	o.testbed.AgentConfig = map[string]any{
		"cgroupRoot": "/", "podLogsDir": podLogs, // where specs look for both
		"evictionHard": map[string]string{"memory.available": "250Mi"}, // specs reserve memory for this threshold
	}
	o.procs = 1
	if o.knownFile == knownFile {
		o.knownFile = knownNodeFile
	}
}

// nodeRun is one run of the suite on the node of a testbed.
type nodeRun struct {
	options
	node *testbed.Node
	// work is the directory in which the suite runs; the suite looks for the program "kubelet" there.
	work string
	env  []string
}

// runOnNode runs the suite for a single node in the namespaces of the testbed's node.
func runOnNode(ctx context.Context, o options, suite string, tb *testbed.Testbed) (*report, error) {
	r := nodeRun{options: o, node: tb.Nodes[0], work: filepath.Join(o.reports, "work")}
	if err := r.prepare(ctx, suite, tb); err != nil {
		return nil, err
	}
	defer r.stopAgent(ctx)
	stop, err := r.serveSystemd(ctx)
	if err != nil {
		return nil, err
	}
	defer stop()
	args := append([]string{filepath.Join(suite, "ginkgo")}, o.runnerArgs()...)
	if o.listOnly {
		args = append(args, "--dry-run", "-v")
	}
	args = append(args, filepath.Join(r.work, nodeTest), "--", "--node-name="+r.node.Name,
		"--kubelet-flags=--runtime-cgroups="+runtimeCgroup(r.node),
		"--kubelet-flags=--node-ip="+r.node.IP, // it would ask a DNS server, which the node cannot reach
		"--container-runtime-pid-file="+filepath.Join(r.work, runtimePID),
		"--container-runtime-endpoint="+r.node.Runtime.Endpoint,
		"--kubelet-config-file="+r.node.ConfigFile, "--dns-domain="+testbed.ClusterDomain,
		"--prepull-images=false", "--report-dir="+o.reports)
	if strings.Contains(o.focus, proxySpecs) {
		args = append(args, "--cri-proxy-enabled")
	}
	if strings.Contains(o.focus, standaloneSpecs) {
		args = append(args, "--standalone-mode")
	}
	return results(o, r.command(ctx, args...))
}

// serveSystemd stands in for systemd on a bus, if the machine has dbus-daemon.
func (r *nodeRun) serveSystemd(ctx context.Context) (stop func(), err error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // an interrupted suite starts the runtime again
	address, wait, err := startBus(ctx)
	if errors.Is(err, exec.ErrNotFound) {
		fmt.Fprintln(os.Stderr, "conformance: no dbus-daemon: specs that stop the container runtime will fail")
		err = nil
	}
	if wait == nil {
		cancel()
		return func() {}, err
	}
	stop = func() { cancel(); wait() }
	runtime := r.node.Runtime
	m := &manager{
		start: func() error {
			if runtime.PID() != 0 {
				return nil
			}
			return errors.Join(runtime.Start(ctx), confine(r.node))
		},
		stop: func() error { return runtime.Stop(unix.SIGTERM) },
	}
	if err == nil {
		err = m.serve(ctx, address)
	}
	if err != nil {
		stop()
		return nil, err
	}
	r.env = append(r.env, busEnv+"="+address)
	return stop, nil
}

// command returns a command on the node, with the shims before the programs of the machine.
func (r *nodeRun) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := r.node.Command(ctx, r.work, args...)
	cmd.Env = r.env
	return cmd
}

// inUse is a shell script that gives the node what specs about statistics expect of one in use: systemd's directory,
// more than 1 MB from the network, and counts of what cgroups read and write. On cgroup v1, newer kernels begin to
// count those of a disk when someone sets a limit of it or, as here, removes one.
const inUse = `
if ! [ -e /run/systemd/system ]; then
	mkdir -p /run/systemd
	mount -t tmpfs tmpfs /run/systemd
	mkdir /run/systemd/system
fi
for n in 1 2 3 4 5 6 7 8; do
	kubectl --kubeconfig "$6" get --raw /openapi/v2 >/dev/null
done
limits=/sys/fs/cgroup/blkio/blkio.throttle.read_bps_device
if [ -e $limits ]; then
	for disk in /sys/block/*/dev; do
		echo "$(cat $disk) 0" >$limits || true # some devices have no medium
	done
fi
`

// prepare makes the suite's directories and shims, and mounts the node's directory where the suite expects the agent's.
func (r *nodeRun) prepare(ctx context.Context, suite string, tb *testbed.Testbed) error {
	if err := os.RemoveAll(r.work); err != nil {
		return err
	}
	programs, units := filepath.Join(r.work, "shims"), filepath.Join(r.work, "units")
	if err := os.MkdirAll(units, 0o755); err != nil {
		return err
	}
	if err := writeShims(programs); err != nil {
		return err
	}
	cgroups, err := testbed.MakeCgroup(path.Join(r.node.CgroupRoot, "units"))
	if err != nil {
		return err
	}
	r.env = append(os.Environ(), "PATH="+programs+":"+tb.Path(), unitsEnv+"="+units, // the last of a name counts
		cgroupsEnv+"="+strings.Join(cgroups, " "))
	program := filepath.Join(r.reports, "kubelet") // see asKubelet
	if r.agent == testbed.Kubelet {
		if program, err = tb.Kubelet(ctx); err != nil {
			return err
		}
	}
	pid := strconv.Itoa(r.node.Runtime.PID())
	err = errors.Join(os.WriteFile(filepath.Join(r.work, runtimePID), []byte(pid), 0o644),
		os.Symlink(program, filepath.Join(r.work, "kubelet")),
		os.Symlink(filepath.Join(suite, nodeTest), filepath.Join(r.work, nodeTest)))
	if err != nil {
		return err
	}
	const agentDir = "/var/lib/kubelet" // the suite accepts no other
	// The suite's API server finds its address by the default route. No machine has the address of the gateway.
	gateway := tb.HostIP()[:strings.LastIndexByte(tb.HostIP(), '.')] + ".254"
	const script = "set -e\nmkdir -p $2 $4 /var/log/containers\nmount --bind $0 $2\nmount --bind $5 $4\n" +
		"mount -t tmpfs tmpfs /var/log/containers\nip route add default via $3\n" + testbed.CadvisorMount + inUse
	cmd := r.command(ctx, "sh", "-c", script, r.node.RootDir, strings.TrimPrefix(r.node.Runtime.Endpoint, "unix://"),
		agentDir, gateway, podLogs, r.node.PodLogsDir, tb.Kubeconfig)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("prepare the node for the suite: %w: %s", err, out)
	}
	return nil
}

func writeShims(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	all, err := shims.ReadDir("shims")
	if err != nil {
		return err
	}
	for _, entry := range all {
		text, err := shims.ReadFile("shims/" + entry.Name())
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, entry.Name()), text, 0o755))
		if err != nil {
			return err
		}
	}
	return nil
}

// stopAgent stops what an interrupted suite has left running, and removes the cgroup that it gave the kubelet.
func (r *nodeRun) stopAgent(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	_ = r.command(ctx, "systemctl", "stop", "*").Run()
	_ = testbed.RemoveCgroup("/kubelet.slice", 10*time.Second)
}
