package cni

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
)

// programEnv names nodelet's own program; without it the test's own is the plugin nodelet-cni.
const programEnv = "NODELET_BIN"

// mode is the runtime's end of a network: what it calls, and the configuration it has.
type mode struct {
	chain   *libcni.CNIConfig
	network *Network
}

// modes gives the same network in mode "runtime", where the runtime calls the plugins, and in mode "agent", where it
// calls nodelet's plugin, which asks a server in this process. version is that of CNI which the runtime speaks with
// nodelet's plugin, at most 1.0.0. The runtime calls CHECK, as with the configuration of an earlier nodelet.
func modes(t testing.TB, dir, version, network string) map[string]mode {
	t.Helper()
	own, err := parseNetwork([]byte(network))
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	plugins := []string{os.Getenv(pluginsEnv)}
	c := InstallConfig{ConfDir: filepath.Join(dir, "net.d"), BinDir: filepath.Join(dir, "bin"),
		Program: cmp.Or(os.Getenv(programEnv), program), Socket: filepath.Join(dir, "agent.sock"), Dir: dir, BinDirs: plugins}
	if err := install(c); err != nil {
		t.Fatal(err)
	}
	installed := First(c.ConfDir)
	text := strings.NewReplacer(`"cniVersion": "1.0.0"`, fmt.Sprintf(`"cniVersion": %q`, min(version, "1.0.0")),
		`"disableCheck": true`, `"disableCheck": false`).Replace(string(installed.Bytes))
	if installed, err = parseNetwork([]byte(text)); err != nil {
		t.Fatal(err)
	}
	server := NewServer(ServerConfig{Socket: c.Socket, Log: discard(), Own: func() (*Network, error) { return own, nil },
		Driver: NewDriver(DriverConfig{Dir: dir, BinDirs: plugins})})
	t.Cleanup(run(t, server))
	cache := filepath.Join(dir, "cache")
	return map[string]mode{
		"runtime": {libcni.NewCNIConfigWithCacheDir(plugins, cache, nil), own},
		"agent":   {libcni.NewCNIConfigWithCacheDir([]string{c.BinDir}, cache, nil), installed},
	}
}

// TestVersions checks that the reference plugins do the same in each version of CNI if the runtime calls them and if
// nodelet calls them.
func TestVersions(t *testing.T) {
	if os.Getenv(pluginsEnv) == "" {
		out, err := inOwnNetwork(t, "-test.run=^TestVersions$", "-test.v").CombinedOutput()
		if err != nil || strings.Count(string(out), "    --- PASS: TestVersions/") != 8 {
			t.Fatalf("in a network namespace of its own: got %v, want 8 passed versions:\n%s", err, out)
		}
		return
	}
	sh(t, "ip", "link", "set", "lo", "up")
	for _, version := range []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		dir := t.TempDir()
		network := fmt.Sprintf(`{"cniVersion":%q,"name":"table","plugins":[{"type":"bridge","bridge":"table0",
			"isGateway":true,
			"ipam":{"type":"host-local","dataDir":%q,"ranges":[[{"subnet":"10.56.0.0/29"}]],"routes":[{"dst":"0.0.0.0/0"}]}},
			{"type":"portmap","snat":true,"capabilities":{"portMappings":true}},{"type":"tuning"}]}`, version, dir)
		for name, m := range modes(t, dir, version, network) {
			t.Run(version+"-"+name, func(t *testing.T) {
				m.allVerbs(t, m.network.CNIVersion)
				if left, _ := filepath.Glob(filepath.Join(dir, "table", "10.*")); len(left) > 0 {
					t.Errorf("addresses: got %q left, want none", left)
				}
				if rules := sh(t, "iptables-save", "-t", "nat"); strings.Contains(rules, "CNI-DN-") {
					t.Errorf("rules left: got\n%s\nwant none of port mappings", rules)
				}
			})
		}
	}
}

// allVerbs calls all verbs of a version for a sandbox.
func (m mode) allVerbs(t *testing.T, version string) {
	ctx, netns := t.Context(), namespace(t)
	ports := []map[string]any{{"hostPort": 8090, "containerPort": 80, "protocol": "tcp"}}
	conf := &libcni.RuntimeConf{
		ContainerID:    "table-" + filepath.Base(t.Name()),
		NetNS:          netns,
		IfName:         "eth0",
		CapabilityArgs: map[string]any{"portMappings": ports},
	}
	result, err := m.chain.AddNetworkList(ctx, m.network, conf)
	if err != nil {
		t.Fatal(err)
	}
	if result.Version() != version || !strings.Contains(fmt.Sprint(result), "10.56.0.") {
		t.Errorf("result of version %s: got %v, want an address of 10.56.0.0/24", result.Version(), result)
	}
	err = m.chain.CheckNetworkList(ctx, m.network, conf)
	if err != nil && !(version == "0.3.1" && errors.Is(err, libcni.ErrorCheckNotSupp)) {
		t.Errorf("CHECK: got %v, want no error", err)
	}
	if version != "0.3.1" { // CHECK exists since 0.4.0
		sh(t, "nsenter", "--net="+netns, "ip", "link", "set", "eth0", "down") // removes the routes too
		if err := m.chain.CheckNetworkList(ctx, m.network, conf); err == nil {
			t.Error("CHECK: got no error for missing routes")
		}
	}
	if version == "1.1.0" {
		if err := m.chain.GetStatusNetworkList(ctx, m.network); err != nil {
			t.Errorf("STATUS: got %v, want no error", err)
		}
		valid := []types.GCAttachment{{ContainerID: conf.ContainerID, IfName: "eth0"}}
		if err := m.chain.GCNetworkList(ctx, m.network, &libcni.GCArgs{ValidAttachments: valid}); err != nil {
			t.Errorf("GC: got %v, want no error", err)
		}
		sh(t, "nsenter", "--net="+netns, "ip", "link", "show", "eth0") // GC has left it alone
	}
	for range 2 { // DEL may be repeated
		if err := m.chain.DelNetworkList(ctx, m.network, conf); err != nil {
			t.Errorf("DEL: got %v, want no error", err)
		}
	}
}
