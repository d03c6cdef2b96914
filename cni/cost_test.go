package cni

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
)

// BenchmarkCost compares ADD and DEL of nodelet's default network as a runtime runs them: the chain by itself, and nodelet's
// plugin with the agent behind it, which runs the same chain. It touches the network of the process: run it as
//
//	unshare --net env NODELET_CNI_PLUGINS=DIR NODELET_BIN=bin/nodelet go test -run '^$' -bench Cost ./cni
func BenchmarkCost(b *testing.B) {
	plugins, program := os.Getenv(pluginsEnv), os.Getenv("NODELET_BIN")
	if plugins == "" || program == "" {
		b.Skip("needs a network namespace of its own, the plugins and nodelet's program: see the comment")
	}
	dir := b.TempDir()
	text, err := Default(dir, []netip.Prefix{netip.MustParsePrefix("10.55.0.0/24")}, false)
	if err != nil {
		b.Fatal(err)
	}
	own, err := ParseNetwork(text)
	if err != nil {
		b.Fatal(err)
	}
	if program, err = filepath.Abs(program); err != nil {
		b.Fatal(err)
	}
	c := InstallConfig{ConfDir: filepath.Join(dir, "net.d"), BinDir: filepath.Join(dir, "bin"), Program: program,
		Socket: filepath.Join(dir, "agent.sock"), Dir: dir, BinDirs: []string{plugins}}
	if err := Install(c); err != nil {
		b.Fatal(err)
	}
	inside := map[string]time.Duration{} // what the plugins of the agent took; calls are one after the other
	server := NewServer(ServerConfig{Socket: c.Socket, Log: discard(), Own: func() (*Network, error) { return own, nil },
		Driver: NewDriver(DriverConfig{Dir: dir, BinDirs: c.BinDirs, Log: discard(), Observe: func(c Call) { inside[c.Verb] += c.Took }})})
	listener, err := listen(c.Socket)
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { _ = server.accept(ctx, listener) }()

	netns := namespace(b)
	runtime := &libcni.RuntimeConf{ContainerID: "cost", NetNS: netns, IfName: "eth0"}
	alone := libcni.NewCNIConfigWithCacheDir(c.BinDirs, filepath.Join(dir, "cache"), nil)
	through := libcni.NewCNIConfigWithCacheDir([]string{c.BinDir}, filepath.Join(dir, "cache"), nil)
	shown := First(c.ConfDir)
	once := func(chain *libcni.CNIConfig, n *Network) (add, del time.Duration) {
		began := time.Now()
		if _, err := chain.AddNetworkList(ctx, n, runtime); err != nil {
			b.Fatal(err)
		}
		added := time.Now()
		if err := chain.DelNetworkList(ctx, n, runtime); err != nil {
			b.Fatal(err)
		}
		return added.Sub(began), time.Since(added)
	}
	var sums [4]time.Duration
	for b.Loop() { // in turns, so that both see the same machine
		a, d := once(alone, own)
		ta, td := once(through, shown)
		for i, took := range []time.Duration{a, d, ta, td} {
			sums[i] += took
		}
	}
	for i, name := range []string{"chain-add-ms", "chain-del-ms", "nodelet-add-ms", "nodelet-del-ms"} {
		b.ReportMetric(float64(sums[i].Microseconds())/1000/float64(b.N), name)
	}
	for verb, took := range inside {
		b.ReportMetric(float64(took.Microseconds())/1000/float64(b.N), "plugins-"+verb+"-ms")
	}
}
