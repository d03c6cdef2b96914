// Command bench compares nodelet with the kubelet and with the runtime alone, in one run on one machine.
//
// It owns one testbed. The same containerd and control plane serve all sides: first the floor (the CRI calls alone),
// then each agent in turn, for the requested number of rounds. With -storage or -probes it measures only that, and
// only the agents; with -throughput only that. The side "null" is an agent that patches one status a pod and does
// nothing else. It prints medians and ratios and writes them as JSON; it never judges. `make bench` and the targets
// whose names begin with bench- call it. A crash leaves the testbed, which the next run with the same name takes down
// first.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/test/bench/figures"
	"github.com/nodelet/nodelet/test/testbed"
)

type options struct {
	name   string
	bin    string
	rounds int
	single int
	burst  int
	loads  []int
	rest   time.Duration
	json   string
	sides  []testbed.AgentKind
	// storage measures how soon volumes are ready, and nothing else.
	storage bool
	// throughput measures pods that callers create and delete again and again for duration, and nothing else.
	throughput bool
	callers    int
	duration   time.Duration
	// profile is the file for nodelet's CPU profile of the throughput; empty if none is wanted.
	profile string
	// densities are numbers of pods; the agent is measured with each of them, and nothing else.
	densities []int
	// probes measures agents whose pods have three probes each, and nothing else.
	probes bool
}

func main() {
	var o options
	var sides string
	flag.StringVar(&o.name, "name", "bench", "the testbed's name")
	flag.StringVar(&o.bin, "bin", "bin/nodelet", "nodelet's program")
	flag.IntVar(&o.rounds, "rounds", 2, "how often each side is measured")
	flag.IntVar(&o.single, "single", 15, "pods started one at a time, each round")
	flag.IntVar(&o.burst, "burst", 40, "pods started at once")
	flag.DurationVar(&o.rest, "rest", 45*time.Second, "how long CPU at rest is measured, at each load")
	flag.StringVar(&o.json, "json", "", "also write the figures to this file")
	flag.StringVar(
		&sides,
		"sides",
		"kubelet,nodelet",
		"agents to measure: kubelet, nodelet, null (one status patch a pod and nothing else)",
	)
	flag.BoolVar(&o.storage, "storage", false, "measure how soon the volumes of pods are ready, and nothing else")
	flag.BoolVar(
		&o.probes,
		"probes",
		false,
		"measure agents with 110 pods of three probes each, at rest and as others start beside them, and nothing else",
	)
	flag.BoolVar(&o.throughput, "throughput", false, "measure how many pods a second start and end, and nothing else")
	flag.IntVar(&o.callers, "callers", 10, "with -throughput: how many pods at a time")
	flag.DurationVar(&o.duration, "duration", time.Minute, "with -throughput: how long")
	density := flag.String(
		"density",
		"",
		"measure the node with these numbers of pods, such as 250,500,1000, and nothing else",
	)
	flag.StringVar(&o.profile, "profile", "", "with -throughput: write nodelet's CPU profile to this file")
	quick := flag.Bool("quick", false, "one short round, without loads of 60 and 110 pods")
	flag.Parse()
	o.loads = []int{0, 60, 110}
	if *quick {
		o.rounds, o.single = 1, 8
		o.loads, o.rest = []int{0}, 10*time.Second
	}
	if o.probes {
		o.loads = []int{probedPods}
	}
	if err := o.setDensities(*density); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(2)
	}
	for _, s := range strings.Split(sides, ",") {
		o.sides = append(o.sides, testbed.AgentKind(s))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) (err error) {
	release, err := testbed.Own(ctx, o.name, os.Stderr)
	if err != nil {
		return err
	}
	defer release()
	audit, err := newAudit()
	if err != nil {
		return err
	}
	defer audit.remove()
	tb, err := testbed.Up(
		ctx,
		testbed.Options{Name: o.name, NodeletBin: o.bin, Progress: os.Stderr, APIServerArgs: audit.args(),
			AgentConfig: map[string]any{"maxPods": max(200, slices.Max(o.loads)+50), "serializeImagePulls": false}},
	)
	if err != nil {
		return err
	}
	defer func() {
		if e := tb.Down(context.WithoutCancel(ctx)); e != nil && err == nil {
			err = e
		}
	}()
	// Pages of programs that were built a moment ago would count as the agents' own dirty memory.
	unix.Sync()
	b, err := newBench(tb, o, audit)
	if err != nil {
		return err
	}
	record, err := b.newRecord(ctx)
	if err != nil {
		return err
	}
	if err := b.measure(ctx, record.Run); err != nil {
		return err
	}
	b.report(os.Stdout)
	if o.json == "" {
		return nil
	}
	return record.Save(filepath.Clean(o.json))
}

// The kinds of runs.
const (
	runPods       = "pods"
	runThroughput = "throughput"
	runStorage    = "storage"
	runProbes     = "probes"
	runDensity    = "density"
)

func (o options) run() string {
	switch {
	case o.storage:
		return runStorage
	case o.probes:
		return runProbes
	case o.throughput:
		return runThroughput
	case len(o.densities) > 0:
		return runDensity
	default:
		return runPods
	}
}

func (b *bench) measure(ctx context.Context, run string) error {
	switch run {
	case runStorage:
		return (&volumeRun{b}).storage(ctx)
	case runProbes:
		return b.probes(ctx)
	case runThroughput:
		return (&churner{b}).throughput(ctx)
	case runDensity:
		return (&crowd{b}).density(ctx)
	default:
		return b.all(ctx)
	}
}

// newRecord describes this run. Its figures are those of b, which come later.
func (b *bench) newRecord(ctx context.Context) (*figures.Record, error) {
	version, err := exec.CommandContext(ctx, b.o.bin, "--version").Output()
	if err != nil {
		return nil, fmt.Errorf("ask %s for its version: %w", b.o.bin, err)
	}
	var kernel unix.Utsname
	if err := unix.Uname(&kernel); err != nil {
		return nil, fmt.Errorf("read the kernel's release: %w", err)
	}
	return &figures.Record{
		Run:     b.o.run(),
		Began:   time.Now().UTC().Truncate(time.Second),
		Version: strings.TrimPrefix(strings.TrimSpace(string(version)), "Kubernetes "),
		Kernel:  unix.ByteSliceToString(kernel.Release[:]),
		CPUs:    runtime.NumCPU(),
		Sides:   b.sides,
	}, nil
}
