package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// options are the command line.
type options struct {
	duration time.Duration
	seed     uint64
	name     string
	nodelet  string
	only     []string
	slots    int
	out      string
}

func main() {
	o, list := parse()
	if list {
		for _, f := range faults {
			fmt.Printf("%-20s %s\n", f.name, f.about)
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

func parse() (o options, list bool) {
	var only string
	flag.DurationVar(&o.duration, "duration", time.Hour, "how long to go on; the round that is under way then is finished")
	flag.Uint64Var(&o.seed, "seed", 0, "the seed of all choices; 0 takes one from the clock and prints it")
	flag.StringVar(&o.name, "name", "soak", "the testbed's name; runs with different names can go on beside each other")
	flag.StringVar(&o.nodelet, "nodelet", "bin/nodelet", "nodelet's program")
	flag.StringVar(&only, "only", "", "comma-separated faults to inject, instead of all; see -list")
	flag.IntVar(&o.slots, "slots", 12, "how many pods come and go at a time")
	flag.StringVar(&o.out, "out", "", "append the report as one line of JSON to this file")
	flag.BoolVar(&list, "list", false, "list the faults and exit")
	flag.Parse()
	if o.seed == 0 {
		o.seed = uint64(time.Now().UnixNano())
	}
	if only != "" {
		o.only = strings.Split(only, ",")
	}
	for _, name := range o.only {
		if !slices.ContainsFunc(faults, func(f fault) bool { return f.name == name }) {
			fmt.Fprintf(os.Stderr, "soak: unknown fault %q in -only; -list prints all\n", name)
			os.Exit(2)
		}
	}
	return o, list
}

// run starts the testbed, soaks until the duration is over or ctx ends, and takes everything down again.
func run(ctx context.Context, o options) (violations int, err error) {
	fmt.Printf("soak: seed %d, %s, testbed %q\n", o.seed, o.duration, o.name)
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
	deadline := time.Now().Add(o.duration)
	for n := 0; ctx.Err() == nil && time.Now().Before(deadline); n++ {
		s.round(ctx, n)
	}
	s.report.Pods = s.churn.lives()
	s.report.print()
	return len(s.report.Violations), s.report.save(o)
}
