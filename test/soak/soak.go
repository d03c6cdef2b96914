package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/kube/client"
	"github.com/nodelet/nodelet/test/soak/faultbuild"
	"github.com/nodelet/nodelet/test/testbed"
)

const (
	namespace = "default"
	// settleLimit is how long after the end of a fault everything may take to be as it should: back-offs of crashes
	// and of requests included, on a busy machine.
	settleLimit = 4 * time.Minute
	rootSize    = "size=192m,nr_inodes=40000"
)

// soak is one run: a node under test, what stands around it, and what was seen.
type soak struct {
	opts    options
	profile profile
	lanes   []*lane
	gate    *gate
	tb      *testbed.Testbed
	node    *testbed.Node
	api     *client.Client
	calls   *runtimeProxy
	http    *apiProxy

	// page makes the agent's clock and system calls fail. restores counts how often etcd went back.
	page     *faultbuild.Page
	plugins  []*plugin
	restores atomic.Int64

	churn    *churn
	status   *statusWatch
	steady   *steadyPods
	baseline []string // of Node.Leftovers, with the steady pods alone
	usage    agentUsage
	report   *report
	// logged are the sizes of the logs when the round began.
	logged struct{ runtime, agent int64 }
	// outDir is where pods write down that they ran; a hostPath.
	outDir string
}

// start brings up the testbed with the proxies in place.
func start(ctx context.Context, o options) (*soak, error) {
	s := &soak{opts: o, profile: profiles[o.profile], report: newReport()}
	s.makeLanes()
	if s.needsBuild() {
		o.nodelet += "-faults"
		fmt.Println("building", o.nodelet)
		if err := faultbuild.Build(ctx, "./cmd/nodelet", o.nodelet); err != nil {
			return nil, err
		}
	}
	tb, err := testbed.Up(ctx, testbed.Options{
		Name:        o.name,
		Agent:       testbed.Nodelet,
		NodeletBin:  o.nodelet,
		Network:     o.network,
		Progress:    os.Stderr,
		BeforeAgent: s.interpose,
		AgentArgs:   []string{"-v=3"},
	})
	if err != nil {
		return nil, errors.Join(err, s.closeProxies())
	}
	s.tb, s.node = tb, tb.Nodes[0]
	cfg, err := client.LoadConfig(tb.Kubeconfig)
	if err == nil {
		s.api, err = client.New(cfg, 500, 500, "soak")
	}
	if err != nil {
		return nil, errors.Join(err, s.stop())
	}
	return s, nil
}

// interpose puts the proxies between the agent and its partners, and a small file system under its root directory.
func (s *soak) interpose(n *testbed.Node) (err error) {
	if err := unix.Mount("tmpfs", n.RootDir, "tmpfs", 0, rootSize); err != nil {
		return fmt.Errorf("mount the agent's root directory: %w", err)
	}
	dir := filepath.Dir(n.RootDir)
	s.outDir = filepath.Join(dir, "soak-out")
	if err := os.MkdirAll(s.outDir, 0o777); err != nil {
		return err
	}
	socket := filepath.Join(dir, "soak.sock")
	if s.calls, err = startRuntimeProxy(socket, n.Runtime.Endpoint); err != nil {
		return fmt.Errorf("start the runtime proxy: %w", err)
	}
	const field = "containerRuntimeEndpoint:"
	if err := replaceLine(n.ConfigFile, field, field+" unix://"+socket); err != nil {
		return err
	}
	page := filepath.Join(dir, "soak-page")
	if s.page, err = faultbuild.NewPage(page, n.RootDir); err != nil {
		return err
	}
	if err := os.Setenv(faultbuild.Env, page); err != nil { // agents inherit it
		return err
	}
	if s.http, err = startAPIProxy(n); err != nil {
		return fmt.Errorf("start the API server's proxy: %w", err)
	}
	return nil
}

// replaceLine replaces the one line of a file that begins with prefix.
func replaceLine(file, prefix, line string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	lines := strings.Split(string(text), "\n")
	i := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, prefix) })
	if i < 0 {
		return fmt.Errorf("edit %s: no line begins with %q", file, prefix)
	}
	lines[i] = line
	return os.WriteFile(file, []byte(strings.Join(lines, "\n")), 0o644)
}

// stop takes everything down, whatever has come up.
func (s *soak) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	if s.churn != nil {
		s.churn.stop()
	}
	if s.status != nil {
		s.status.stop()
	}
	var errs []error
	if s.tb != nil {
		errs = append(errs, s.node.StopAgent(unix.SIGTERM), s.tb.Down(ctx))
	}
	for _, p := range s.plugins {
		p.kill()
	}
	errs = append(errs, detachLoops(ctx))
	return errors.Join(append(errs, s.closeProxies())...)
}

func (s *soak) closeProxies() error {
	if s.calls != nil {
		s.calls.close()
	}
	if s.http != nil {
		return s.http.close()
	}
	return nil
}

// prepare starts the pods that are left alone and takes the baseline of what they have on the node.
func (s *soak) prepare(ctx context.Context) (err error) {
	if err := s.startPlugins(ctx); err != nil {
		return err
	}
	if s.steady, err = startSteadyPods(ctx, s); err != nil {
		return err
	}
	if s.baseline, err = s.node.Leftovers(ctx); err != nil {
		return err
	}
	slices.Sort(s.baseline)
	if s.usage, err = s.readUsage(); err != nil {
		return err
	}
	s.status = watchStatuses(s.api, s.report)
	s.churn = startChurn(s, s.opts.slots)
	return nil
}

// round injects faults beside the churn, in all lanes at the same time, lets everything settle, and checks the
// invariants.
func (s *soak) round(ctx context.Context, n int) {
	began := time.Now()
	s.logged.runtime, s.logged.agent = size(s.node.Runtime.Log()), size(s.node.AgentLog())
	s.report.begin(n)
	s.churn.resume()
	var working sync.WaitGroup
	for _, l := range s.lanes {
		working.Go(func() { l.round(ctx) })
	}
	working.Wait()
	if ctx.Err() != nil {
		return
	}
	s.check(ctx)
	s.report.end(n, time.Since(began), s.churn.total())
}

// selected returns the faults that this run injects.
func (s *soak) selected() (all []fault) {
	for _, f := range faults {
		if len(s.opts.only) == 0 && !f.rare || slices.Contains(s.opts.only, f.name) {
			all = append(all, f)
		}
	}
	return all
}

func (s *soak) needsBuild() bool {
	return slices.ContainsFunc(s.selected(), func(f fault) bool { return f.build })
}

// wait waits, or until ctx ends.
func (s *soak) wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// size returns the size of a file, or 0 if it is not there.
func size(file string) int64 {
	info, err := os.Stat(file)
	if err != nil {
		return 0
	}
	return info.Size()
}

// pick draws one of the values.
func pick[T any](r *rand.Rand, values ...T) T { return values[r.IntN(len(values))] }

// within polls look until it returns "", or the limit is over; then it returns what look said last.
func within(ctx context.Context, limit time.Duration, look func() string) string {
	deadline := time.Now().Add(limit)
	for {
		problem := look()
		if problem == "" || time.Now().After(deadline) || ctx.Err() != nil {
			return problem
		}
		time.Sleep(250 * time.Millisecond)
	}
}
