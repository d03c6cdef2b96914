package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/nodelet/nodelet/test/registry"
	"github.com/nodelet/nodelet/test/testbed"
)

// Where the results of runs are kept, and the page that shows them.
const (
	resultsDir = "test/conformance/results"
	matrixPage = "docs/conformance.md"
)

// stateRoot holds the testbed's files, unless the environment names another place. It is short, for CSI drivers have
// long names, a socket's path has 107 bytes, and the suite's longest is 73 of them below the agent's directory.
const stateRoot = "/var/lib/ntb"

type options struct {
	testbed             testbed.Options
	agent               testbed.AgentKind
	suite               string // "" if other expressions are given
	focus, skip, label  string
	procs               int
	timeout             time.Duration
	reports, knownFile  string
	keep, use, listOnly bool
	csi                 bool
	images              string
	resume              string   // the file with the result of a run that this one goes on with
	more                []string // arguments of the runner, see result.others
	kept                string   // the file with a result to keep
	matrix              bool
	// node: the suite for a single node runs, which starts the agent itself.
	node bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	o := parse()
	do := conformance
	switch {
	case o.matrix || o.kept != "":
		do = document
	case o.node && os.Getenv(isolatedEnv) == "":
		do = isolate
	}
	err := os.Setenv(testbed.StateEnv, env(testbed.StateEnv, stateRoot))
	if err == nil {
		err = do(ctx, o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

// document keeps a result, if one is given, and makes the matrix of all.
func document(_ context.Context, o options) error {
	if o.kept != "" {
		if err := keep(o.kept, resultsDir); err != nil {
			return err
		}
	}
	return rewrite(resultsDir, matrixPage)
}

// cluster is the testbed as the suite wants it. The API server calls webhooks at their pods, for it has no kube-proxy
// of its own, and few ended pods are kept, for a spec counts on that.
func cluster() testbed.Options {
	return testbed.Options{KubeProxy: true, DNS: true, AgentArgs: []string{"-v=4"}, Progress: os.Stderr,
		AgentConfig:    map[string]any{"enableSystemLogQuery": true},
		APIServerArgs:  []string{"--enable-aggregator-routing"},
		ControllerArgs: []string{"--terminated-pod-gc-threshold=100"}}
}

// parse reads flags whose defaults come from the environment, so that `make conformance FOCUS=…` needs no list of
// them.
func parse() options {
	o := options{testbed: cluster()}
	agent := flag.String("agent", env("AGENT", string(testbed.Nodelet)), "`kind` of agent: nodelet or kubelet")
	flag.StringVar(
		&o.testbed.Name,
		"name",
		env("NAME", "suite"),
		"the testbed's `name`, of 10 letters at most where CSI drivers run",
	)
	flag.StringVar(&o.testbed.NodeletBin, "nodelet-bin", "bin/nodelet", "nodelet's program `file`")
	flag.StringVar(&o.testbed.Runtime, "runtime", env("RUNTIME", "containerd"), "`name` of the container runtime: "+
		"containerd or crio; +crun after it selects another OCI runtime")
	flag.IntVar(&o.testbed.Nodes, "nodes", 0, "`number` of nodes (default what the suite needs)")
	flag.StringVar(&o.suite, "suite", env("SUITE", ""),
		"`name` of a set of specs, unless FOCUS, SKIP or LABEL are set")
	flag.StringVar(&o.focus, "focus", env("FOCUS", ""), "run specs whose full name matches this `regexp`")
	flag.StringVar(&o.skip, "skip", env("SKIP", ""), "leave out specs whose full name matches this `regexp`")
	flag.StringVar(&o.label, "label", env("LABEL", ""), "run specs whose labels match this `filter`")
	flag.IntVar(&o.procs, "procs", 8, "`number` of specs at a time")
	flag.DurationVar(&o.timeout, "timeout", 2*time.Hour, "`limit` for all specs")
	flag.StringVar(&o.resume, "resume", env("RESUME", ""),
		"`file` with the result of a run: leave out what has passed in it, and add to it")
	flag.StringVar(
		&o.reports,
		"reports",
		"",
		"`directory` of the reports (default .cache/conformance/AGENT, with -node node-AGENT)",
	)
	flag.StringVar(&o.knownFile, "known", knownFile, "`file` with the specs that may fail")
	flag.BoolVar(
		&o.keep,
		"keep",
		false,
		"leave the testbed up; with "+testbed.StateEnv+"="+stateRoot+" the command testbed finds it",
	)
	flag.BoolVar(&o.use, "use", false, "use the testbed of that name, which is up, and leave it up")
	flag.BoolVar(
		&o.csi,
		"csi",
		false,
		"have the images of CSI drivers as well; with a FOCUS that says CSI they are there anyway",
	)
	flag.StringVar(
		&o.images,
		"images",
		env("IMAGES", ""),
		"`directory` of more image archives, OCI layouts as tar; of one name they count before the suite's",
	)
	flag.BoolVar(
		&o.node,
		"node",
		false,
		"run the suite for a single node (test/e2e_node), with Serial and Disruptive specs",
	)
	flag.BoolVar(&o.listOnly, "dry-run", false, "only list the specs that would run")
	flag.StringVar(&o.kept, "keep-result", "", "only keep this result `file` of a run, and make the matrix again")
	flag.BoolVar(&o.matrix, "matrix", false, "only make the matrix in "+matrixPage+" again, from "+resultsDir)
	if limit := os.Getenv("TIMEOUT"); limit != "" {
		if err := flag.Set("timeout", limit); err != nil {
			fmt.Fprintf(os.Stderr, "conformance: TIMEOUT=%s: %v\n", limit, err)
			os.Exit(2)
		}
	}
	flag.Parse()
	o.testbed.OwnMounts = !strings.HasPrefix(o.testbed.Runtime, "crio")
	o.agent = testbed.AgentKind(*agent)
	o.testbed.Agent = o.agent
	o.csi = o.csi || strings.Contains(o.focus, "CSI")
	if o.reports == "" {
		kind := *agent
		if o.node {
			kind = "node-" + kind
		}
		o.reports = filepath.Join(".cache/conformance", kind)
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
	if err := o.choose(); err != nil {
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
	report, err := runAndRecord(ctx, o, suite, tb)
	if err != nil {
		return err
	}
	return judge(os.Stdout, report, known[string(o.agent)])
}

// runAndRecord runs the suite and writes its result to result.json. The run may resume another.
func runAndRecord(ctx context.Context, o options, suite string, tb *testbed.Testbed) (*report, error) {
	next, err := begin(ctx, o, tb)
	if err != nil {
		return nil, err
	}
	var before *result
	if o.resume != "" {
		if before, err = readResult(o.resume); err != nil {
			return nil, err
		}
		if err := next.continues(before); err != nil {
			return nil, err
		}
		o.more = before.others()
	}
	runSuite := run
	if o.node {
		runSuite = runOnNode
	}
	report, err := runSuite(ctx, o, suite, tb)
	if err != nil {
		return nil, err
	}
	next.end(report)
	if before != nil {
		next.resume(before, report.skipped)
	}
	return report, next.write(filepath.Join(o.reports, "result.json"))
}

// aggregatorSpec is the only spec that needs the images of AggregatorImages, which are large.
const aggregatorSpec = "[sig-api-machinery] Aggregator Should be able to support the 1.17 Sample API Server " +
	"using the current Aggregator [LinuxOnly] [Conformance]"

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
	if aggregator, err := regexp.MatchString(o.focus, aggregatorSpec); err != nil {
		return nil, err
	} else if aggregator {
		more, err := cache.AggregatorImages(ctx)
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

// up starts the testbed, or opens the one that is up, and gives its runtimes the images. That of the suite for a single
// node has an owner already, see isolate.
func up(ctx context.Context, o options, images []string) (tb *testbed.Testbed, down func(), err error) {
	if o.use {
		tb, err = testbed.Open(ctx, o.testbed.Name, os.Stderr)
		return tb, func() {}, err
	}
	release := func() {}
	if !o.node {
		if release, err = testbed.Own(ctx, o.testbed.Name, os.Stderr); err != nil {
			return nil, nil, err
		}
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
		defer release()
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
		if o.node {
			err = confine(n)
		}
		if err == nil {
			err = importImages(ctx, n, images)
		}
		if err != nil {
			down()
			return nil, nil, err
		}
	}
	return tb, down, nil
}

// importImages gives a node's runtime the images. It prints how long each takes, for some are large.
func importImages(ctx context.Context, n *testbed.Node, archives []string) error {
	for _, archive := range archives {
		began := time.Now()
		if err := n.Runtime.ImportImage(ctx, archive); err != nil {
			return err
		}
		took := time.Since(began).Round(time.Second)
		fmt.Fprintf(os.Stderr, "%s: imported %s in %s\n", n.Name, filepath.Base(archive), took)
	}
	return nil
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
		if err := n.Runtime.Mirror(host, url); err != nil {
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
