package cni

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
)

// BenchmarkCost compares ADD and DEL of nodelet's default network as a runtime runs them: the chain of plugins by
// itself, as in mode "runtime", and nodelet's plugin with the agent behind it, as in mode "agent". Both run in turns,
// so that the load of the machine is the same, and the benchmark reports medians. It runs a copy of itself in a
// network namespace of its own; see `make bench-network`.
func BenchmarkCost(b *testing.B) {
	if os.Getenv(pluginsEnv) == "" {
		inNamespace(b)
		return
	}
	for _, pods := range []int{1, 10} {
		b.Run(fmt.Sprintf("pods-at-once=%d", pods), func(b *testing.B) { measureCost(b, pods) })
	}
}

func inNamespace(b *testing.B) {
	program, err := filepath.Abs("../bin/nodelet")
	if err == nil {
		_, err = os.Stat(program)
	}
	if err != nil {
		b.Skipf("needs nodelet's program, see `make build`: %v", err)
	}
	cmd := inOwnNetwork(b, "-test.run=^$", "-test.bench=^BenchmarkCost$", "-test.benchtime=40x")
	cmd.Env = append(cmd.Env, programEnv+"="+program)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		b.Fatal(err)
	}
}

// side is one of both modes, and how long its calls took.
type side struct {
	mode
	add, del []time.Duration
}

func measureCost(b *testing.B, pods int) {
	dir := b.TempDir()
	own, err := defaultConfig(dir, ownBridge+"0", []netip.Prefix{netip.MustParsePrefix("10.55.0.0/24")})
	if err != nil {
		b.Fatal(err)
	}
	both := modes(b, dir, "1.0.0", string(own))
	alone, through := &side{mode: both["runtime"]}, &side{mode: both["agent"]}
	var sandboxes []*libcni.RuntimeConf
	for i := range pods {
		sandboxes = append(sandboxes, &libcni.RuntimeConf{
			ContainerID: fmt.Sprintf("cost%d", i),
			NetNS:       namespace(b),
			IfName:      "eth0",
		})
	}
	var more [2][]time.Duration
	for i := 0; b.Loop(); i++ {
		turn := []*side{alone, through}
		if i%2 == 1 { // so that the work that one leaves to the kernel does not always delay the other
			slices.Reverse(turn)
		}
		for _, s := range turn {
			s.once(b, sandboxes)
		}
		more[0] = append(more[0], through.add[i]-alone.add[i])
		more[1] = append(more[1], through.del[i]-alone.del[i])
	}
	for name, all := range map[string][]time.Duration{"chain-ADD-ms": alone.add, "chain-DEL-ms": alone.del,
		"nodelet-ADD-ms": through.add, "nodelet-DEL-ms": through.del, "more-ADD-ms": more[0], "more-DEL-ms": more[1]} {
		slices.Sort(all)
		b.ReportMetric(float64(all[len(all)/2].Microseconds())/1000, name)
	}
}

// once attaches all sandboxes at once and then detaches them. What is kept is the mean time of a call.
func (s *side) once(b *testing.B, sandboxes []*libcni.RuntimeConf) {
	all := func(call func(*libcni.RuntimeConf) error) time.Duration {
		var group sync.WaitGroup
		took := make([]time.Duration, len(sandboxes))
		for i, conf := range sandboxes {
			group.Go(func() {
				began := time.Now()
				if err := call(conf); err != nil {
					b.Error(err)
				}
				took[i] = time.Since(began)
			})
		}
		group.Wait()
		var sum time.Duration
		for _, t := range took {
			sum += t
		}
		return sum / time.Duration(len(took))
	}
	s.add = append(s.add, all(func(conf *libcni.RuntimeConf) error {
		_, err := s.chain.AddNetworkList(context.Background(), s.network, conf)
		return err
	}))
	s.del = append(s.del, all(func(conf *libcni.RuntimeConf) error {
		return s.chain.DelNetworkList(context.Background(), s.network, conf)
	}))
}
