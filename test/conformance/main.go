package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/nodelet/nodelet/test/registry"
	"github.com/nodelet/nodelet/test/testbed"
)

// The specs that run where nothing else is asked for: what every node must pass, without those that need the node for
// themselves or long.
const (
	defaultLabel = "NodeConformance && !Serial && !Disruptive && !Slow && !Flaky"
	defaultFocus = `\[sig-node\]`
)

// stateRoot holds the testbed's files, unless the environment names another place. It is short, for CSI drivers have
// long names, a socket's path has 107 bytes, and the suite's longest is 73 of them below the agent's directory.
const stateRoot = "/var/lib/ntb"

type options struct {
	testbed             testbed.Options
	agent               testbed.AgentKind
	focus, skip, label  string
	procs               int
	timeout             time.Duration
	reports, knownFile  string
	keep, use, listOnly bool
	csi                 bool
	images              string
	// node: the suite for a single node runs, which starts the agent itself.
	node bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := conformance(ctx, parse()); err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

// cluster is the testbed as the suite wants it. The API server calls webhooks at their pods, for it has no kube-proxy
// of its own, and few ended pods are kept, for a spec counts on that.
func cluster() testbed.Options {
	return testbed.Options{KubeProxy: true, DNS: true, OwnMounts: true, AgentArgs: []string{"-v=4"}, Progress: os.Stderr,
		AgentConfig:    map[string]any{"enableSystemLogQuery": true},
		APIServerArgs:  []string{"--enable-aggregator-routing"},
		ControllerArgs: []string{"--terminated-pod-gc-threshold=100"}}
}

// parse reads flags whose defaults come from the environment, so that `make conformance FOCUS=…` needs no list of them.
func parse() options {
	o := options{testbed: cluster()}
	agent := flag.String("agent", env("AGENT", string(testbed.Nodelet)), "`kind` of agent: nodelet or kubelet")
	flag.StringVar(&o.testbed.Name, "name", env("NAME", "suite"), "the testbed's `name`, of 10 letters at most where CSI drivers run")
	flag.StringVar(&o.testbed.NodeletBin, "nodelet-bin", "bin/nodelet", "nodelet's program `file`")
	flag.IntVar(&o.testbed.Nodes, "nodes", 1, "`number` of nodes")
	flag.StringVar(&o.focus, "focus", env("FOCUS", defaultFocus), "run specs whose full name matches this `regexp`")
	flag.StringVar(&o.skip, "skip", env("SKIP", ""), "leave out specs whose full name matches this `regexp`")
	flag.StringVar(&o.label, "label", env("LABEL", ""), "run specs whose labels match this `filter`; without FOCUS and LABEL: "+defaultLabel)
	flag.IntVar(&o.procs, "procs", 8, "`number` of specs at a time")
	flag.DurationVar(&o.timeout, "timeout", 2*time.Hour, "`limit` for all specs")
	flag.StringVar(&o.reports, "reports", "", "`directory` of the reports (default .cache/conformance/AGENT)")
	flag.StringVar(&o.knownFile, "known", "test/conformance/known.txt", "`file` with the specs that may fail")
	flag.BoolVar(&o.keep, "keep", false, "leave the testbed up; with "+testbed.StateEnv+"="+stateRoot+" the command testbed finds it")
	flag.BoolVar(&o.use, "use", false, "use the testbed of that name, which is up, and leave it up")
	flag.BoolVar(&o.csi, "csi", false, "have the images of CSI drivers as well; with a FOCUS that says CSI they are there anyway")
	flag.StringVar(&o.images, "images", env("IMAGES", ""), "`directory` of more image archives, OCI layouts as tar; of one name they count before the suite's")
	flag.BoolVar(&o.node, "node", false, "run the suite for a single node (test/e2e_node), with Serial and Disruptive specs")
	flag.BoolVar(&o.listOnly, "dry-run", false, "only list the specs that would run")
	flag.Parse()
	o.agent = testbed.AgentKind(*agent)
	o.testbed.Agent = o.agent
	o.csi = o.csi || strings.Contains(o.focus, "CSI")
	if o.label == "" && o.focus == defaultFocus && !o.node {
		o.label = defaultLabel
	}
	if o.reports == "" {
		o.reports = filepath.Join(".cache/conformance", *agent)
	}
	if o.node {
		o.forNode()
	}
	return o
}

func env(name, otherwise string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return otherwise
}

func conformance(ctx context.Context, o options) error {
	if err := os.Setenv(testbed.StateEnv, env(testbed.StateEnv, stateRoot)); err != nil {
		return err
	}
	known, err := readKnown(o.knownFile)
	if err != nil {
		return err
	}
	cache, err := testbed.OpenCache(os.Stderr)
	if err != nil {
		return err
	}
	module := "suite"
	if o.node {
		module = "node-suite"
	}
	suite, err := cache.Programs(ctx, module)
	if err != nil {
		return err
	}
	if o.reports, err = filepath.Abs(o.reports); err != nil {
		return err
	}
	if err := os.MkdirAll(o.reports, 0o755); err != nil {
		return err
	}
	if o.listOnly && !o.node {
		_, err := run(ctx, o, suite, nil)
		return err
	}
	images, err := archives(ctx, o, cache)
	if err != nil {
		return err
	}
	tb, down, err := up(ctx, o, images)
	if err != nil {
		return err
	}
	defer down()
	stop, err := mirror(tb, images)
	if err != nil {
		return err
	}
	defer stop()
	run := run
	if o.node {
		run = runOnNode
	}
	report, err := run(ctx, o, suite, tb)
	if err != nil {
		return err
	}
	return judge(os.Stdout, report, known[string(o.agent)])
}

// archives builds what is missing of the images that the specs ask for.
func archives(ctx context.Context, o options, cache *testbed.Cache) ([]string, error) {
	images, err := cache.SuiteImages(ctx)
	if err != nil {
		return nil, err
	}
	if o.csi {
		more, err := cache.CSIImages(ctx)
		if err != nil {
			return nil, err
		}
		images = append(images, more...)
	}
	more, err := archivesIn(o.images)
	return append(images, more...), err
}

// archivesIn finds the image archives of a directory, if one is given.
func archivesIn(dir string) ([]string, error) {
	if dir == "" {
		return nil, nil
	}
	found, err := filepath.Glob(filepath.Join(dir, "*.tar"))
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("no image archives (*.tar) in %s: see IMAGES", dir)
	}
	return found, err
}

// up starts the testbed, or opens the one that is up, and gives its runtimes the images.
func up(ctx context.Context, o options, images []string) (tb *testbed.Testbed, down func(), err error) {
	if o.use {
		tb, err = testbed.Open(ctx, o.testbed.Name, os.Stderr)
		return tb, func() {}, err
	}
	if err := testbed.Down(ctx, o.testbed.Name, io.Discard); err != nil { // what an interrupted run has left
		return nil, nil, err
	}
	if o.agent == testbed.Nodelet {
		if o.testbed.NodeletBin, err = asKubelet(o); err != nil {
			return nil, nil, err
		}
	}
	if tb, err = testbed.Up(ctx, o.testbed); err != nil {
		return nil, nil, err
	}
	down = func() {
		if o.keep {
			return
		}
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Minute)
		defer cancel()
		for _, n := range tb.Nodes {
			_ = copyFile(n.AgentLog(), filepath.Join(o.reports, n.Name+".log"))
		}
		if err := tb.Down(clean); err != nil {
			fmt.Fprintln(os.Stderr, "conformance:", err)
		}
	}
	for _, n := range tb.Nodes {
		for _, archive := range images {
			if err := n.ImportImage(ctx, archive); err != nil {
				down()
				return nil, nil, err
			}
		}
	}
	return tb, down, nil
}

// asKubelet copies nodelet's program to one of the name kubelet: a spec looks for a process of that name.
func asKubelet(o options) (program string, err error) {
	program = filepath.Join(o.reports, "kubelet")
	if err := os.RemoveAll(program); err != nil { // a process of an interrupted run may still have it open
		return "", err
	}
	return program, errors.Join(copyFile(o.testbed.NodeletBin, program), os.Chmod(program, 0o755))
}

// mirror serves the images to the nodes, for specs that insist on a pull.
func mirror(tb *testbed.Testbed, images []string) (stop func(), err error) {
	const host = "registry.k8s.io"
	r, err := registry.Open(images)
	if err != nil {
		return nil, err
	}
	url, closeServer, err := r.Serve(net.JoinHostPort(tb.HostIP(), "0"), host)
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	stop = func() { _ = errors.Join(closeServer(), r.Close()) }
	for _, n := range tb.Nodes {
		if err := n.Mirror(host, url); err != nil {
			stop()
			return nil, err
		}
	}
	return stop, nil
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// run has the suite's runner run the specs, and reads its report. Failed specs are no error.
func run(ctx context.Context, o options, suite string, tb *testbed.Testbed) ([]spec, error) {
	args := o.runnerArgs()
	if o.listOnly {
		args = append(args, "--procs=1", "--dry-run", "-v") // of the first flag the last counts
	}
	args = append(args, filepath.Join(suite, "e2e.test"), "--", "--provider=skeleton", "--num-nodes="+fmt.Sprint(o.testbed.Nodes),
		"--dns-domain=cluster.local", "--disable-log-dump", "--e2e-output-dir="+o.reports)
	cmd := exec.CommandContext(ctx, filepath.Join(suite, "ginkgo"), args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // the specs then clean up
	cmd.WaitDelay = 2 * time.Minute
	cmd.Env = os.Environ()
	if tb != nil {
		n := tb.Nodes[0]
		cmd.Env = append(cmd.Env, "KUBECONFIG="+tb.Kubeconfig, "PATH="+tb.Path()) // the last of a name counts
		cmd.Args = append(cmd.Args, "--kubeconfig="+tb.Kubeconfig, "--container-runtime-endpoint="+n.RuntimeEndpoint,
			"--kubelet-root-dir="+n.RootDir)
	}
	return results(o, cmd)
}

// runnerArgs are the arguments of the suite's runner.
func (o options) runnerArgs() []string {
	return []string{
		"--no-color", "--procs=" + fmt.Sprint(o.procs), "--timeout=" + o.timeout.String(), "--poll-progress-after=0",
		"--focus=" + o.focus, "--skip=" + o.skip, "--label-filter=" + o.label,
		"--output-dir=" + o.reports, "--junit-report=junit.xml", "--json-report=report.json",
	}
}

// results runs the suite's runner and reads its report.
func results(o options, cmd *exec.Cmd) ([]spec, error) {
	runErr, err := follow(cmd, filepath.Join(o.reports, "suite.log"), o.listOnly)
	if err != nil {
		return nil, err
	}
	report, err := readReport(filepath.Join(o.reports, "report.json"))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("the suite left no report, see %s", filepath.Join(o.reports, "suite.log")), runErr, err)
	}
	return report, nil
}

// follow runs the command with its output in a file, and shows on the terminal how it gets on. ran is what the command
// itself came to.
func follow(cmd *exec.Cmd, logFile string, all bool) (ran, err error) {
	log, err := os.Create(logFile)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	cmd.Stderr = log
	fmt.Fprintf(os.Stderr, "running the suite; its words are in %s\n", logFile)
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	lines := bufio.NewReader(out)
	for {
		line, err := lines.ReadString('\n')
		io.WriteString(log, line)
		if all && strings.HasPrefix(line, "[sig-") || strings.Contains(line, "• [FAILED]") || strings.HasPrefix(line, "Will run") {
			fmt.Fprint(os.Stderr, line)
		}
		if err != nil {
			break
		}
	}
	return cmd.Wait(), nil
}
