package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/test/testbed"
)

type options struct {
	name, bin, corpus, known, reports, only string
	wave, random                            int
	seed                                    uint64
	again                                   bool
}

func main() {
	var o options
	flag.StringVar(&o.name, "name", "diff", "the testbed's `name`")
	flag.StringVar(&o.bin, "nodelet-bin", "bin/nodelet", "nodelet's program `file`")
	flag.StringVar(&o.corpus, "corpus", "test/differential/corpus", "`directory` of the pods")
	flag.StringVar(&o.known, "known", "test/differential/known.txt", "`file` with the differences that may be")
	flag.StringVar(&o.reports, "reports", ".cache/differential",
		"`directory` of what was seen, one file an agent and the differences")
	flag.StringVar(&o.only, "only", os.Getenv("ONLY"),
		"run the pods whose name matches this `pattern` of the shell's kind")
	flag.IntVar(&o.wave, "wave", 12, "`number` of pods at a time")
	flag.IntVar(&o.random, "random", 0, "`number` of random pods to run instead of those of the corpus")
	flag.Uint64Var(&o.seed, "seed", 1, "`seed` of the first random pod; the next one has the next seed")
	flag.BoolVar(&o.again, "again", false, "compare what was seen before and run nothing")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := differential(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "differential:", err)
		os.Exit(1)
	}
}

func differential(ctx context.Context, o options) error {
	known, err := readKnown(o.known)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(o.reports, 0o755); err != nil {
		return err
	}
	pods, err := o.pods()
	if err != nil {
		return err
	}
	found, err := runBoth(ctx, o, pods)
	if err != nil {
		return err
	}
	if o.random > 0 && !o.again {
		if found, err = confirm(ctx, o, known, pods, found); err != nil {
			return err
		}
	}
	out, err := os.Create(filepath.Join(o.reports, "differences.txt"))
	if err != nil {
		return err
	}
	defer out.Close()
	for _, d := range found {
		fmt.Fprintln(out, d)
	}
	return known.judge(os.Stdout, found, len(pods), o.only == "" && o.random == 0)
}

// pods returns the pods to compare.
func (o *options) pods() ([]*corev1.Pod, error) {
	if o.random > 0 {
		return randomPods(o.seed, o.random), nil
	}
	return readCorpus(o.corpus, o.only)
}

// runBoth runs pods with both agents, and returns the differences.
func runBoth(ctx context.Context, o options, pods []*corev1.Pod) ([]string, error) {
	seen := map[testbed.AgentKind]sightings{}
	for _, agent := range []testbed.AgentKind{testbed.Kubelet, testbed.Nodelet} {
		file := filepath.Join(o.reports, string(agent)+".json")
		if !o.again {
			all, err := runAgent(ctx, o, agent, pods)
			if err == nil {
				err = all.write(file)
			}
			if err != nil {
				return nil, fmt.Errorf("watch pods on %s: %w", agent, err)
			}
		}
		var err error
		if seen[agent], err = readSightings(file); err != nil {
			return nil, err
		}
	}
	return compare(seen[testbed.Kubelet], seen[testbed.Nodelet]), nil
}

// confirm runs the random pods with unknown differences once more. It returns the known differences, and the unknown
// ones that are there again: the others are chance. Then the reports have the pods that ran again alone.
func confirm(
	ctx context.Context, o options, known knownDifferences, pods []*corev1.Pod, found []string,
) ([]string, error) {
	isKnown := func(d string) bool { return known.of(d) != nil }
	pods = slices.DeleteFunc(slices.Clone(pods), func(pod *corev1.Pod) bool {
		return !slices.ContainsFunc(found, func(d string) bool {
			return strings.HasPrefix(d, pod.Name+" ") && !isKnown(d)
		})
	})
	if len(pods) == 0 {
		return found, nil
	}
	again, err := runBoth(ctx, o, pods)
	return slices.DeleteFunc(found, func(d string) bool { return !isKnown(d) && !slices.Contains(again, d) }), err
}

// runAgent runs pods with one agent.
func runAgent(ctx context.Context, o options, agent testbed.AgentKind, pods []*corev1.Pod) (sightings, error) {
	temp, err := os.MkdirTemp("", "differential-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(temp)
	socket := filepath.Join(temp, "cri.sock")
	release, err := testbed.Own(ctx, o.name, os.Stderr)
	if err != nil {
		return nil, err
	}
	defer release()
	config := map[string]any{"containerRuntimeEndpoint": "unix://" + socket}
	if o.random > 0 { // they restart often
		config["crashLoopBackOff"] = map[string]any{"maxContainerRestartPeriod": "1s"}
	}
	unshare, err := share()
	if err != nil {
		return nil, err
	}
	defer unshare()
	tb, err := testbed.Up(ctx, testbed.Options{
		Name:        o.name,
		NodeletBin:  o.bin,
		AgentArgs:   []string{"-v=4"},
		Progress:    os.Stderr,
		AgentConfig: config,
	})
	if err != nil {
		return nil, err
	}
	defer func() {
		log, err := os.ReadFile(tb.Nodes[0].AgentLog())
		if err == nil {
			_ = os.WriteFile(filepath.Join(o.reports, string(agent)+".log"), log, 0o644)
		}
		if err := tb.Down(context.WithoutCancel(ctx)); err != nil {
			fmt.Fprintln(os.Stderr, "differential:", err)
		}
	}()
	r, err := newRun(tb, agent, socket)
	if err != nil {
		return nil, err
	}
	defer r.close()
	return r.all(ctx, pods, o.wave)
}

// sharedDir is a directory of the machine whose later mounts a container can see. The root of many machines is a
// private mount, for which runtimes refuse the mount propagation of the corpus.
const sharedDir = "/run/nodelet-differential"

// share makes sharedDir a shared mount, until undo is called.
func share() (undo func(), err error) {
	if err := os.MkdirAll(sharedDir, 0o755); err != nil {
		return nil, err
	}
	undo = func() {
		if err := errors.Join(unix.Unmount(sharedDir, unix.MNT_DETACH), os.Remove(sharedDir)); err != nil {
			fmt.Fprintf(os.Stderr, "differential: remove %s: %v\n", sharedDir, err)
		}
	}
	_ = unix.Unmount(sharedDir, unix.MNT_DETACH) // what a killed run has left
	err = unix.Mount(sharedDir, sharedDir, "", unix.MS_BIND, "")
	if err == nil {
		err = unix.Mount("", sharedDir, "", unix.MS_SHARED, "")
	}
	if err != nil {
		undo()
		return nil, fmt.Errorf("make %s a shared mount: %w", sharedDir, err)
	}
	return undo, nil
}
