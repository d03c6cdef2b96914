package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/test/soak/record"
	"github.com/nodelet/nodelet/test/testbed"
)

// options are the command line.
type options struct {
	duration time.Duration
	seed     uint64
	name     string
	nodelet  string
	profile  string
	network  string
	only     []string
	slots    int
	record   string
}

// profile says how densely a run injects faults.
type profile struct {
	about string
	// perRound is how many faults follow each other before the invariants are checked. lanes says that the faults of
	// each part of the node are a lane of their own, and that perRound counts how often each kind comes in a round.
	perRound int
	lanes    bool
	// pace is by what the durations of faults are multiplied.
	pace float64
	// only are the names of the faults; empty means all.
	only []string
}

// profiles are the values of -profile.
var profiles = map[string]profile{
	"single": {about: "one fault a round", perRound: 1, pace: 1},
	"dense":  {about: "16 faults a round, a fifth as long", perRound: 16, pace: 0.2},
	"lanes": {about: "every fault but rare ones twice a round, a fifth as long, those of different parts at the same time",
		perRound: 2, pace: 0.2, lanes: true},
	"kill": {about: "the agent is killed two to three times a second", perRound: 1, pace: 1,
		only: []string{"agent-killed-often"}},
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == servePluginArg {
		if err := servePlugin(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, "soak:", err)
			os.Exit(1)
		}
		return
	}
	o, list, table := parse()
	if list {
		for _, f := range faults {
			fmt.Printf("%-20s %s\n", f.name, f.about)
		}
		return
	}
	if table {
		if err := writeTable(); err != nil {
			fmt.Fprintln(os.Stderr, "soak:", err)
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	violations, err := run(ctx, o)
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(1)
	case violations > 0:
		os.Exit(1)
	}
}

func parse() (o options, list, table bool) {
	var only string
	flag.DurationVar(&o.duration, "duration", time.Hour, "how long to go on; the round that is under way then is finished")
	flag.Uint64Var(&o.seed, "seed", 0, "the seed of all choices; 0 takes one from the clock and prints it")
	flag.StringVar(&o.name, "name", "soak", "the testbed's name; runs with different names can go on beside each other")
	flag.StringVar(&o.nodelet, "nodelet", "bin/nodelet", "nodelet's program")
	flag.StringVar(&only, "only", "", "comma-separated faults to inject, instead of all; see -list")
	flag.IntVar(&o.slots, "slots", 12, "how many pods come and go at a time")
	flag.StringVar(&o.profile, "profile", "single", "how densely faults come: single, dense, lanes or kill")
	flag.StringVar(&o.network, "network", "runtime", "who sets up the pod network: runtime or agent")
	flag.StringVar(&o.record, "record", "", "append the run as one line of JSON to this file")
	flag.BoolVar(&list, "list", false, "list the faults and exit")
	flag.BoolVar(&table, "table", false, "write the runs of "+runsFile+" into "+runsPage+" and exit")
	flag.Parse()
	if o.seed == 0 {
		o.seed = uint64(time.Now().UnixNano())
	}
	p, ok := profiles[o.profile]
	if !ok {
		fmt.Fprintf(os.Stderr, "soak: unknown profile %q: use single, dense, lanes or kill\n", o.profile)
		os.Exit(2)
	}
	if o.only = p.only; only != "" {
		o.only = strings.Split(only, ",")
	}
	for _, name := range o.only {
		if !slices.ContainsFunc(faults, func(f fault) bool { return f.name == name }) {
			fmt.Fprintf(os.Stderr, "soak: unknown fault %q in -only; -list prints all\n", name)
			os.Exit(2)
		}
	}
	return o, list, table
}

// run starts the testbed, soaks until the duration is over or ctx ends, and takes everything down again.
func run(ctx context.Context, o options) (violations int, err error) {
	commit := head(ctx)
	fmt.Printf("soak: commit %s, profile %s, seed %d, %s, testbed %q\n", commit, o.profile, o.seed, o.duration, o.name)
	release, err := testbed.Own(ctx, o.name, os.Stderr)
	if err != nil {
		return 0, err
	}
	defer release()
	s, err := start(ctx, o)
	if err != nil {
		return 0, err
	}
	defer func() {
		if downErr := s.stop(); err == nil {
			err = downErr
		}
	}()
	if err := s.prepare(ctx); err != nil {
		return 0, err
	}
	s.report.Began = time.Now()
	deadline := s.report.Began.Add(o.duration)
	for n := 0; ctx.Err() == nil && time.Now().Before(deadline); n++ {
		s.round(ctx, n)
	}
	s.report.Pods = s.churn.total()
	return s.finish(ctx, commit)
}

// finish prints what the run has seen, and records it unless ctx has ended before the run.
func (s *soak) finish(ctx context.Context, commit string) (violations int, err error) {
	if ctx.Err() != nil {
		s.report.print(s.opts)
		return len(s.report.Violations), errors.New("interrupted: the run is not complete, and is not recorded")
	}
	s.evidence()
	s.report.print(s.opts)
	return len(s.report.Violations), s.report.save(s.opts, commit)
}

// The record of runs, and the page that shows it.
const (
	runsFile = "test/soak/runs.jsonl"
	runsPage = "docs/robustness.md"
)

// writeTable writes the recorded runs into the page.
func writeTable() error {
	runs, err := record.Read(runsFile)
	if err != nil {
		return err
	}
	page, err := os.ReadFile(runsPage)
	if err != nil {
		return err
	}
	text, err := record.Replace(string(page), runs)
	if err != nil {
		return err
	}
	return os.WriteFile(runsPage, []byte(text), 0o644)
}
