package cni

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/cni/shim"
	"github.com/nodelet/nodelet/host/atomicfile"
	"github.com/nodelet/nodelet/test/faulttest"
)

// service is a server with the plugin installed as for a runtime.
type service struct {
	*bench
	conf     string // the runtime's directory of configurations
	bin      string // and of plugins
	ownErr   error
	own      *Network
	more     map[string]*Network
	attached []*Record
	stop     func()
}

func newService(t *testing.T) *service {
	t.Helper()
	s := &service{bench: newBench(t), more: map[string]*Network{}}
	s.conf, s.bin = filepath.Join(s.dir, "net.d"), filepath.Join(s.dir, "bin")
	s.plugin("first", answer)
	s.own = s.network(chain("first"))
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	state := filepath.Join(s.dir, "state")
	if err := install(InstallConfig{ConfDir: s.conf, BinDir: s.bin, Program: program, Socket: s.socket(), Dir: state,
		BinDirs: []string{s.bench.dir}}); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(state, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := atomicfile.Write(filepath.Join(state, ownFile), s.own.Bytes, 0o600); err != nil {
		t.Fatal(err)
	}
	s.start()
	t.Cleanup(func() { s.stop() })
	return s
}

func (s *service) socket() string { return filepath.Join(s.dir, "state", "agent.sock") }

func (s *service) start() {
	s.t.Helper()
	server := NewServer(ServerConfig{Socket: s.socket(), Driver: s.Driver, Log: discard(),
		Own:        func() (*Network, error) { return s.own, s.ownErr },
		Additional: s.additional,
		Attached:   func(r *Record) { s.attached = append(s.attached, r) },
	})
	s.stop = run(s.t, server)
}

// run runs a server until stop is called, and waits until it can be reached.
func run(t testing.TB, server *Server) (stop func()) {
	t.Helper()
	serving, stop := begin(server)
	if err := <-serving; err != nil {
		t.Error(err)
	}
	return stop
}

// begin runs a server until stop is called. serving receives what the server passes to Serving.
func begin(server *Server) (serving <-chan error, stop func()) {
	outcomes := make(chan error, 10)
	server.Serving = func(err error) { outcomes <- err }
	if server.Attached == nil {
		server.Attached = func(*Record) {}
	}
	if server.Exhausted == nil {
		server.Exhausted = func(context.Context) {}
	}
	if server.Incomplete == nil {
		server.Incomplete = func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		server.Run(ctx)
	}()
	return outcomes, sync.OnceFunc(func() { cancel(); <-done })
}

// TestSocketOpensAgain checks that a server whose socket cannot be opened, or fails, tries again and says so.
func TestSocketOpensAgain(t *testing.T) {
	s := newService(t)
	s.stop()
	server := NewServer(ServerConfig{Socket: s.socket(), Driver: s.Driver, Log: discard(),
		Own: func() (*Network, error) { return s.own, nil },
	})
	inTheWay := filepath.Join(s.socket(), "file")
	if err := os.MkdirAll(inTheWay, 0o700); err != nil {
		t.Fatal(err)
	}
	serving, stop := begin(server)
	defer stop()
	if err := <-serving; err == nil {
		t.Fatal("a directory in the way of the socket: got no error")
	}
	if err := os.RemoveAll(s.socket()); err != nil {
		t.Fatal(err)
	}
	if err := <-serving; err != nil {
		t.Fatalf("nothing in the way any more: got %v, want no error", err)
	}
	if _, err := s.call("ADD", "s1", nil); err != nil {
		t.Errorf("a call after the socket was opened: got %v, want no error", err)
	}
	faulttest.BreakListener(t, s.socket())
	if err := <-serving; err == nil {
		t.Fatal("a broken socket: got no error")
	}
	if err := <-serving; err != nil {
		t.Fatalf("a socket opened again: got %v, want no error", err)
	}
	if _, err := s.call("DEL", "s1", nil); err != nil {
		t.Errorf("a call after the socket was opened again: got %v, want no error", err)
	}
}

// TestShortage checks that a call that comes while no file can be opened is answered later, and that the network does
// not count as failed.
func TestShortage(t *testing.T) {
	s := newService(t)
	s.stop()
	logged := make(chan struct{}, 10)
	server := NewServer(ServerConfig{Socket: s.socket(), Driver: s.Driver,
		Log: slog.New(slog.NewTextHandler(writes(logged), nil)),
		Own: func() (*Network, error) { return s.own, nil },
	})
	serving, stop := begin(server)
	defer stop()
	if err := <-serving; err != nil {
		t.Fatalf("at the start: got %v, want no error", err)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	restore := faulttest.NoFiles(t)
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: s.socket()}); err != nil {
		t.Fatal(err)
	}
	<-logged
	restore()
	if _, err := s.call("ADD", "s1", nil); err != nil {
		t.Errorf("a call after the shortage: got %v, want no error", err)
	}
	select {
	case err := <-serving:
		t.Errorf("after a shortage: got %v, want no change", err)
	default:
	}
}

// writes is a writer that tells of each write.
type writes chan<- struct{}

func (w writes) Write(b []byte) (int, error) {
	select {
	case w <- struct{}{}:
	default:
	}
	return len(b), nil
}

func (s *service) additional(_ context.Context, sel *Selection) (*Network, error) {
	if n := s.more[sel.label()]; n != nil {
		return n, nil
	}
	return nil, fmt.Errorf("there is no such network")
}

// call runs the plugin as a runtime does, with what libcni would put into the configuration.
func (s *service) call(verb, sandbox string, inject map[string]any) (map[string]any, error) {
	s.t.Helper()
	text, err := os.ReadFile(filepath.Join(s.conf, installedFile))
	if err != nil {
		s.t.Fatal(err)
	}
	var list struct {
		Plugins []map[string]any `json:"plugins"`
	}
	if err := json.Unmarshal(text, &list); err != nil {
		s.t.Fatal(err)
	}
	config := list.Plugins[0]
	config["name"], config["cniVersion"] = "nodelet", "1.0.0"
	maps.Copy(config, inject)
	stdin, err := json.Marshal(config)
	if err != nil {
		s.t.Fatal(err)
	}
	return s.raw(verb, sandbox, stdin)
}

func (s *service) raw(verb, sandbox string, stdin []byte) (map[string]any, error) {
	s.t.Helper()
	cmd := exec.Command(filepath.Join(s.bin, shim.Name))
	cmd.Env = append(
		os.Environ(),
		"CNI_COMMAND="+verb,
		"CNI_CONTAINERID="+sandbox,
		"CNI_NETNS=/proc/self/ns/net",
		"CNI_IFNAME=eth0",
		"CNI_PATH="+s.bin,
		"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=space;K8S_POD_NAME=pod;K8S_POD_UID=uid-1;K8S_POD_INFRA_CONTAINER_ID="+
			sandbox,
	)
	cmd.Stdin = bytes.NewReader(stdin)
	out, err := cmd.Output()
	result := map[string]any{}
	if len(out) > 0 {
		if e := json.Unmarshal(out, &result); e != nil {
			s.t.Fatalf("output of the plugin: got %q, want JSON", out)
		}
	}
	if err != nil {
		return result, fmt.Errorf("%v: %v", result["msg"], err)
	}
	return result, nil
}

func TestCallsThroughThePlugin(t *testing.T) {
	s := newService(t)
	result, err := s.call("ADD", "s1", nil)
	if err != nil {
		t.Fatal(err)
	}
	if ips, _ := json.Marshal(result["ips"]); !strings.Contains(string(ips),
		"10.9.0.2/24") || result["cniVersion"] != "1.0.0" {
		t.Errorf("result: got %v, want 10.9.0.2/24 in version 1.0.0", result)
	}
	rec, err := s.store.read("s1")
	if err != nil || !rec.Whole || rec.Pod != (Pod{
		Namespace: "space",
		Name:      "pod",
		UID:       "uid-1",
	}) || rec.Runtime.PID != os.Getpid() {
		t.Errorf("got record %+v, %v, want that of the pod and this process", rec, err)
	}
	if _, err := s.call("CHECK", "s1", nil); err != nil {
		t.Error(err)
	}
	for range 2 {
		if _, err := s.call("DEL", "s1", nil); err != nil {
			t.Error(err)
		}
	}
	want := []string{"ADD first s1 eth0", "CHECK first s1 eth0", "DEL first s1 eth0", "DEL first s1 eth0"}
	if got := s.calls(); !slices.Equal(got, want) {
		t.Errorf("calls %q, want %q", got, want)
	}
	if v, err := s.call("VERSION", "", nil); err != nil || len(v["supportedVersions"].([]any)) != 4 {
		t.Errorf("VERSION: got %v, %v, want four versions", v, err)
	}
}

// TestResultInOtherVersions checks that results are written in the version that the runtime asks for.
func TestResultInOtherVersions(t *testing.T) {
	s := newService(t)
	for _, v := range []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		result, err := s.call("ADD", "s"+v, map[string]any{"cniVersion": v})
		if err != nil || result["cniVersion"] != v {
			t.Errorf("version %s: got %v, %v, want a result of that version", v, result, err)
		}
	}
	if result, err := s.call("ADD", "s9", map[string]any{"cniVersion": "9.0.0"}); err == nil || len(s.kept()) != 4 {
		t.Errorf("version 9.0.0: got %v, %v, want an error; on record: got %q, want 4", result, err, s.kept())
	}
}

// TestPluginWithoutAgent checks that while the agent is away, a sandbox can be checked and taken off its networks;
// nothing else can be done.
func TestPluginWithoutAgent(t *testing.T) {
	s := newService(t)
	if _, err := s.call("ADD", "s1", nil); err != nil {
		t.Fatal(err)
	}
	s.stop()
	for verb, code := range map[string]float64{"ADD": 11, "CHECK": 999, "GC": 4, "STATUS": 4} {
		if result, err := s.call(verb, "s2", nil); err == nil || result["code"] != code {
			t.Errorf("%s without an agent: got %v, %v, want code %v", verb, result, err, code)
		}
	}
	if _, err := s.call("CHECK", "s1", nil); err != nil {
		t.Error(err)
	}
	for _, sandbox := range []string{"s1", "never-seen"} {
		if _, err := s.call("DEL", sandbox, nil); err != nil {
			t.Error(err)
		}
	}
	want := []string{"ADD first s1 eth0", "CHECK first s1 eth0", "DEL first s1 eth0", "DEL first never-seen eth0"}
	if got := s.calls(); !slices.Equal(got, want) || len(s.kept()) != 0 {
		t.Errorf("calls %q, want %q; on record: %q", got, want, s.kept())
	}
}

// TestLackOfAddresses checks that an ADD that fails for lack of addresses is tried once more after a clean-up of the
// node, and that one that fails otherwise does not wait for a clean-up.
func TestLackOfAddresses(t *testing.T) {
	s := newService(t)
	s.stop()
	var cleaned, failed atomic.Int64
	s.stop = run(t, NewServer(ServerConfig{Socket: s.socket(), Driver: s.Driver, Log: discard(),
		Own:        func() (*Network, error) { return s.own, nil },
		Incomplete: func() { failed.Add(1) },
		Exhausted: func(context.Context) {
			cleaned.Add(1)
			if err := os.WriteFile(filepath.Join(s.dir, "free"), nil, 0o600); err != nil {
				t.Error(err)
			}
		},
	}))
	for i, c := range []struct{ message, want string }{
		{noAddresses + ": 10.9.0.2-10.9.0.2", ""},
		{"no luck", "no luck"},
	} {
		s.plugin("first", `[ "$CNI_COMMAND" = ADD ] && [ ! -e DIR/free ] && { echo '{"cniVersion":"1.0.0","code":100,
			"msg":"`+c.message+`"}'; exit 1; }
`+answer)
		_, err := s.call("ADD", fmt.Sprint("s", i), nil)
		if fails := c.want != ""; fails != (err != nil) || fails && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got error %v, want %q", c.message, err, c.want)
		}
		if now, later := cleaned.Load(), failed.Load(); now != 1 || later != int64(i) {
			t.Errorf("%s: got %d clean-ups at once and %d later, want 1 and %d", c.message, now, later, i)
		}
		if err := os.Remove(filepath.Join(s.dir, "free")); (err != nil) != (i > 0) {
			t.Fatal(err)
		}
	}
}

func TestRefusedCalls(t *testing.T) {
	s := newService(t)
	for name, c := range map[string]struct {
		verb, sandbox string
		inject        map[string]any
		want          string
	}{
		"sandbox":    {"ADD", "../../etc", nil, "invalid characters"},
		"no sandbox": {"DEL", "", nil, "missing containerID"},
		"verb":       {"DANCE", "s1", nil, `CNI_COMMAND "DANCE" is not known`},
		"unrecorded": {"CHECK", "s1", nil, "sandbox s1: not attached"},
		"annotation": {"ADD", "s1", annotated("a/b/c"), "is not a valid network"},
		"unknown": {"ADD", "s1", annotated("blue"),
			"annotation k8s.v1.cni.cncf.io/networks: network space/blue: there is no such network"},
		"already used": {"ADD", "s1", annotated("blue@eth0"), `interface "eth0" of network space/blue is already used`},
		"bad list":     {"ADD", "s1", annotated(`[{"name":"blue","nmae":1}]`), "unknown field"},
		"wrong shape":  {"ADD", "s1", map[string]any{"runtimeConfig": "x"}, "read the network configuration"},
	} {
		t.Run(name, func(t *testing.T) {
			result, err := s.call(c.verb, c.sandbox, c.inject)
			if err == nil || !strings.Contains(err.Error(), c.want) || result["code"] == nil {
				t.Errorf("got %v, %v, want an error with %q", result, err, c.want)
			}
		})
	}
	for _, stdin := range []string{"", "{", "[]", `{"socket":7}`, `{"socket":"/nowhere"}`} {
		if result, err := s.raw("ADD", "s1", []byte(stdin)); err == nil || result["code"] != float64(7) {
			t.Errorf("standard input %q: got %v, %v, want code 7", stdin, result, err)
		}
	}
	s.ownErr = fmt.Errorf("no pod CIDR yet")
	if result, err := s.call("ADD", "s1", nil); err == nil || result["code"] != float64(11) ||
		!strings.Contains(err.Error(), "no pod CIDR yet") {
		t.Errorf("not ready: got %v, %v, want code 11 and no pod CIDR yet", result, err)
	}
	if got := s.kept(); len(got) != 0 {
		t.Errorf("on record: got %q, want none", got)
	}
}

func annotated(networks string) map[string]any {
	return map[string]any{"runtimeConfig": map[string]any{podAnnotations: map[string]string{networksAnnotation: networks}}}
}

func TestAdditionalNetworks(t *testing.T) {
	s := newService(t)
	s.plugin("other", strings.ReplaceAll(answer, "10.9.0", "10.8.0"))
	s.more["space/blue"] = s.network(`{"cniVersion":"1.0.0","name":"blue-net","type":"other"}`)
	s.more["default/green"] = s.network(`{"cniVersion":"1.0.0","name":"green-net","type":"other"}`)
	if _, err := s.call("ADD", "s1", annotated("blue, default/green@eth7")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.call("DEL", "s1", nil); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"ADD first s1 eth0",
		"ADD other s1 net1",
		"ADD other s1 eth7",
		"DEL other s1 eth7",
		"DEL other s1 net1",
		"DEL first s1 eth0",
	}
	if got := s.calls(); !slices.Equal(got, want) {
		t.Errorf("calls %q, want %q", got, want)
	}
	text, err := s.attached[0].StatusText()
	if err != nil {
		t.Fatal(err)
	}
	var all []networkStatus
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		t.Fatal(err)
	}
	if len(all) != 3 || all[0].Name != "net" || !all[0].Default || all[0].IPs[0] != "10.9.0.2" ||
		all[1].Name != "space/blue" || all[1].Default || all[1].Interface != "net1" || all[1].IPs[0] != "10.8.0.2" ||
		all[1].MAC != "0a:00:00:00:00:01" || all[1].Gateway[0] != "10.8.0.1" || all[2].Name != "default/green" ||
		all[2].Interface != "eth7" {
		t.Errorf("status annotation: want three networks, got\n%s", text)
	}
}

// TestDefaultNetwork checks that a pod can use another network instead of the node's own, and that what it asks of a
// network must be supported by a plugin of it.
func TestDefaultNetwork(t *testing.T) {
	s := newService(t)
	s.ownErr = fmt.Errorf("the node has none")
	s.plugin("other", answer)
	s.more["kube-system/blue"] = s.network(`{"cniVersion":"1.0.0","name":"blue-net","type":"other",
		"capabilities":{"portMappings":true,"ips":true}}`)
	ask := func(text string) map[string]any {
		return map[string]any{"runtimeConfig": map[string]any{"portMappings": []any{map[string]any{"hostPort": 80}},
			podAnnotations: map[string]string{defaultNetworkAnnotation: text}}}
	}
	_, err := s.call("ADD", "s1", ask(`[{"name":"blue","mac":"0a:58:0a:00:00:07"}]`))
	if err == nil || !strings.Contains(
		err.Error(),
		`annotation v1.multus-cni.io/default-network: network kube-system/blue: none of its plugins has the capability "mac"`,
	) {
		t.Errorf("a request that no plugin supports: got error %v", err)
	}
	if _, err := s.call("ADD", "s1", ask(`[{"name":"blue","ips":["10.9.0.2/24"]}]`)); err != nil {
		t.Fatal(err)
	}
	want := `{"ips":["10.9.0.2/24"],"portMappings":[{"hostPort":80}]}`
	if got, _ := json.Marshal(s.got("other", "ADD")["runtimeConfig"]); string(got) != want {
		t.Errorf("runtimeConfig of the plugin: got %s, want %s", got, want)
	}
	if _, err := s.call("DEL", "s1", nil); err != nil {
		t.Fatal(err)
	}
	if got, want := s.calls(), []string{"ADD other s1 eth0", "DEL other s1 eth0"}; !slices.Equal(got, want) {
		t.Errorf("calls %q, want %q", got, want)
	}
}
