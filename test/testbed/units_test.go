package testbed

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"
)

func testNames(t *testing.T, name string) names {
	t.Helper()
	t.Setenv(StateEnv, t.TempDir())
	n, err := newNames(name)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestNames(t *testing.T) {
	for _, bad := range []string{"-a", "a-", "A", "a/b", "..", "a.0", strings.Repeat("a", 21), "a b"} {
		if _, err := newNames(bad); err == nil {
			t.Errorf("newNames(%q): got no error, want one", bad)
		}
	}
	t.Setenv(StateEnv, "")
	n, err := newNames(strings.Repeat("x", 20))
	if err != nil {
		t.Fatal(err)
	}
	// Linux allows 15 characters for a link and 107 for a socket. Shims add "/" and 64 characters.
	if l := n.hostLink(); len(l) > 15 {
		t.Errorf("link name: got %q, want at most 15 characters", l)
	}
	for _, socket := range []string{
		n.shimSockets(maxNodes) + "/" + strings.Repeat("0", 64),
		n.nodeDir(maxNodes) + "/containerd.sock.ttrpc",
		n.nodeDir(maxNodes) + "/kubelet/device-plugins/kubelet.sock",
	} {
		if len(socket) > 107 {
			t.Errorf("socket path %s: got %d characters, want at most 107", socket, len(socket))
		}
	}
}

func TestFreeSubnet(t *testing.T) {
	var all []netip.Prefix
	for x := range 256 {
		if x != 42 {
			all = append(all, subnet(x))
		}
	}
	if x, err := freeSubnet("any", all); err != nil || x != 42 {
		t.Errorf("freeSubnet with one free subnet: got %d, %v; want 42", x, err)
	}
	if _, err := freeSubnet("any", []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}); err == nil {
		t.Error("freeSubnet with a route to 10.0.0.0/8: got no error, want one")
	}
	first, err := freeSubnet("any", []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}) // a default route does not count
	if err != nil {
		t.Fatal(err)
	}
	if second, _ := freeSubnet("any", []netip.Prefix{subnet(first)}); second == first {
		t.Errorf("freeSubnet: got %d twice, want another one", first)
	}
}

func TestParseRoutes(t *testing.T) {
	table := "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n" +
		"eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n" +
		"ntb\t00DE4D0A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
	got, err := parseRoutes(table)
	want := []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("10.77.222.0/24")}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("routes: got %v, %v; want %v", got, err, want)
	}
	if _, err := parseRoutes("heading\neth0 zz 0 0 0 0 0 00FFFFFF"); err == nil {
		t.Error("parseRoutes of an invalid line: got no error, want one")
	}
}

func TestParseStartTime(t *testing.T) {
	stat := "12 (a) b (c) S 1 12 12 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654 1 2 3\n"
	if got, err := parseStartTime([]byte(stat)); err != nil || got != 987654 {
		t.Errorf("start time: got %d, %v; want 987654", got, err)
	}
	if _, err := parseStartTime([]byte("12 (a) S 1")); err == nil {
		t.Error("parseStartTime of a short line: got no error, want one")
	}
}

func TestProcessStop(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	stubborn, err := start(
		launch{log: log, argv: []string{"sh", "-c", "trap '' TERM; echo up; while :; do sleep 1; done"}},
	)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stubborn.stop(unix.SIGKILL, 0) })
	if !stubborn.Alive() {
		t.Fatal("new process: got it not alive, want it alive: " + tail(log, 5))
	}
	reused := Proc{PID: stubborn.PID, Start: stubborn.Start + 1} // another process has this PID
	if err := reused.stop(unix.SIGKILL, time.Second); err != nil || reused.Alive() {
		t.Errorf("stop of a process whose PID was reused: got %v, want no error and not alive", err)
	}
	if !stubborn.Alive() {
		t.Fatal("process with a reused PID: got it killed, want it alive")
	}
	if err := stubborn.stop(unix.SIGTERM, 10*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	<-stubborn.done
	if stubborn.Alive() {
		t.Error("killed process: got it alive, want it not alive")
	}
	if err := stubborn.stop(unix.SIGTERM, 0); err != nil {
		t.Errorf("stop of an exited process: got %v, want no error", err)
	}
}

func TestState(t *testing.T) {
	n := testNames(t, "x")
	if _, err := readState(n.stateFile()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("read a missing state file: got %v, want %v", err, os.ErrNotExist)
	}
	if err := os.MkdirAll(n.dir(), 0o755); err != nil {
		t.Fatal(err)
	}
	s := state{Options: Options{Name: "x", Nodes: 2}, BootID: bootID(), Procs: map[string]Proc{"etcd": {PID: 7, Start: 8}}}
	if err := writeState(n.stateFile(), s); err != nil {
		t.Fatal(err)
	}
	if err := n.updateState(func(s *state) { s.Subnet = 5 }); err != nil {
		t.Fatal(err)
	}
	got, err := readState(n.stateFile())
	if err != nil || got.Subnet != 5 || got.Options.Nodes != 2 || got.Procs["etcd"] != s.Procs["etcd"] {
		t.Errorf("state: got %+v, %v; want subnet 5, 2 nodes, process %+v", got, err, s.Procs["etcd"])
	}
	s.BootID = "another boot"
	if err := writeState(n.stateFile(), s); err != nil {
		t.Fatal(err)
	}
	if got, err := readState(n.stateFile()); err != nil || len(got.Procs) != 0 {
		t.Errorf("processes of another boot: got %+v, %v; want none", got.Procs, err)
	}
	if err := os.WriteFile(n.stateFile(), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readState(n.stateFile()); err == nil || !strings.Contains(err.Error(), n.stateFile()) {
		t.Errorf("read an invalid state file: got %v, want an error with %s", err, n.stateFile())
	}
}

func TestClaimIsExclusive(t *testing.T) {
	tb := &Testbed{names: testNames(t, "x")}
	if err := tb.claim(); err != nil {
		t.Fatal(err)
	}
	if err := tb.claim(); err == nil || !strings.Contains(err.Error(), "testbed down --name x") {
		t.Errorf("second claim: got %v, want an error with %q", err, "testbed down --name x")
	}
}

func TestCertificates(t *testing.T) {
	ca, err := newCA("ca")
	if err != nil {
		t.Fatal(err)
	}
	server, err := ca.issue(subject{user: "s", names: []string{"localhost"}, ips: []net.IP{net.ParseIP("10.0.0.1")}})
	if err != nil {
		t.Fatal(err)
	}
	client, err := ca.issue(subject{user: "system:node:n", groups: []string{"system:nodes"}})
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca.certPEM)
	if _, err := server.cert.Verify(x509.VerifyOptions{Roots: roots, DNSName: "10.0.0.1"}); err != nil {
		t.Error(err)
	}
	asServer := x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	if _, err := client.cert.Verify(asServer); err == nil {
		t.Error("client certificate as a server: got no error, want one")
	}
	asClient := x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	if _, err := client.cert.Verify(asClient); err != nil || client.cert.Subject.Organization[0] != "system:nodes" {
		t.Errorf("client certificate: got %v, %v; want organization system:nodes", client.cert.Subject, err)
	}
	var config map[string]any
	if err := yaml.Unmarshal(kubeconfig("https://10.0.0.1:6443", ca, client), &config); err != nil ||
		config["kind"] != "Config" {
		t.Errorf("kubeconfig: got %v, %v; want kind Config", config, err)
	}
}

func TestTemplates(t *testing.T) {
	tb := &Testbed{
		names: testNames(t, "x"),
		opts:  Options{CgroupDriver: DriverCgroupfs},
		bins:  programs{cni: "/cni", runc: "/runc-dir"},
	}
	n := newNode(tb, 3)
	for name, want := range map[string]string{
		"containerd.toml": `BinaryName = "/runc-dir/runc"`,
		"crio.conf":       `cgroup_manager = "cgroupfs"`,
		"oci-runtime.sh":  "exec /runc-dir/runc",
		"cni.conflist":    `"subnet": "10.244.48.0/20"`,
		"kubelet.yaml":    "cgroupRoot: /nodelet-tb-x/n3",
	} {
		b, err := render(name, n.values())
		if err != nil || !strings.Contains(string(b), want) {
			t.Errorf("render %s: got %v\n%s\nwant it to contain %q", name, err, b, want)
		}
	}
	if _, err := render("kubelet.yaml", map[string]string{}); err == nil {
		t.Error("render with a missing value: got no error, want one")
	}
	b, err := override([]byte("a: 1\nb: 2\n"), map[string]any{"b": map[string]any{"c": 3}})
	if err != nil || string(b) != "a: 1\nb:\n  c: 3\n" {
		t.Errorf("override: got %q, %v; want %q", b, err, "a: 1\nb:\n  c: 3\n")
	}
}

// unpack reads a tar and returns the contents or link targets of its files by name.
func unpack(t *testing.T, b []byte) map[string]string {
	t.Helper()
	files := map[string]string{}
	for r := tar.NewReader(bytes.NewReader(b)); ; {
		h, err := r.Next()
		if err == io.EOF {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[h.Name] = h.Linkname + string(body)
	}
}

func TestImageArchive(t *testing.T) {
	img := image{
		refs: []string{"example.org/a:1", "docker.io/library/a:1"},
		files: []imageFile{
			{name: "/bin", mode: 0o755, isDir: true},
			{name: "/bin/a", mode: 0o755, body: []byte("program")},
			{name: "/bin/b", mode: 0o777, link: "a"},
		},
		entrypoint: []string{"/bin/a"},
	}
	var first, second bytes.Buffer
	if err := errors.Join(img.write(&first), img.write(&second)); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("archives of equal images: got different bytes, want equal ones")
	}
	files := unpack(t, first.Bytes())
	blob := func(d descriptor) []byte {
		t.Helper()
		body := []byte(files["blobs/sha256/"+strings.TrimPrefix(d.Digest, "sha256:")])
		sum := sha256.Sum256(body)
		if "sha256:"+hex.EncodeToString(sum[:]) != d.Digest || int64(len(body)) != d.Size {
			t.Fatalf("blob of %+v: got digest %x and size %d", d, sum, len(body))
		}
		return body
	}
	var index ociIndex
	var manifest ociManifest
	var config ociConfig
	if err := json.Unmarshal([]byte(files["index.json"]), &index); err != nil || len(index.Manifests) != 2 {
		t.Fatalf("index: got %s, %v; want two manifests", files["index.json"], err)
	}
	for i, m := range index.Manifests {
		if m.Annotations[refAnnotation] != img.refs[i] {
			t.Errorf("annotations of manifest %d: got %v, want name %s", i, m.Annotations, img.refs[i])
		}
	}
	if err := json.Unmarshal(blob(index.Manifests[0]), &manifest); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(blob(manifest.Config), &config); err != nil {
		t.Fatal(err)
	}
	layer := manifest.Layers[0]
	if config.RootFS.DiffIDs[0] != layer.Digest || config.OS != "linux" || config.Config.Entrypoint[0] != "/bin/a" {
		t.Errorf("config: got %+v, want diff ID %s, linux, /bin/a", config, layer.Digest)
	}
	root := unpack(t, blob(layer))
	if root["bin/a"] != "program" || root["bin/b"] != "a" || len(root) != 3 {
		t.Errorf("root file system: got %v, want bin/, bin/a and the link bin/b", root)
	}
}

// TestImageLayer checks what CRI-O is strict about: the end of a layer, and that no two files have the same name.
func TestImageLayer(t *testing.T) {
	img := image{files: []imageFile{{name: "/etc/a", body: []byte("one")}}}
	layer, err := img.layer()
	if err != nil {
		t.Fatal(err)
	}
	end := make([]byte, 1024) // two empty blocks
	if len(layer)%512 != 0 || !bytes.HasSuffix(layer, end) {
		t.Errorf("layer: got %d bytes that end with %q, want whole blocks, the last two empty", len(layer),
			layer[max(0, len(layer)-16):])
	}
	img.files = append(img.files, imageFile{name: "/etc/../etc/a", body: []byte("two")})
	if layer, err := img.layer(); err == nil {
		t.Errorf("layer with two files /etc/a: got %d bytes, want an error", len(layer))
	}
}

// TestImagesApart checks that each reference of an image has a configuration of its own if it is to be one, which is
// what the runtime knows an image by, and that the layer is there once.
func TestImagesApart(t *testing.T) {
	for _, apart := range []bool{false, true} {
		img := image{refs: []string{"example.org/a:1", "example.org/a:2"}, apart: apart,
			files: []imageFile{{name: "/a", mode: 0o644, body: []byte("file")}}}
		var archive bytes.Buffer
		if err := img.write(&archive); err != nil {
			t.Fatal(err)
		}
		var index ociIndex
		files := unpack(t, archive.Bytes())
		if err := json.Unmarshal([]byte(files["index.json"]), &index); err != nil {
			t.Fatal(err)
		}
		configs, layers := map[string]bool{}, map[string]bool{}
		for _, d := range index.Manifests {
			var m ociManifest
			if err := json.Unmarshal([]byte(files["blobs/sha256/"+strings.TrimPrefix(d.Digest, "sha256:")]), &m); err != nil {
				t.Fatal(err)
			}
			configs[m.Config.Digest], layers[m.Layers[0].Digest] = true, true
		}
		want := 1
		if apart {
			want = 2
		}
		if len(configs) != want || len(layers) != 1 {
			t.Errorf("apart %v: got %d configurations and %d layers, want %d and 1", apart, len(configs), len(layers), want)
		}
	}
}

func TestAppletLinks(t *testing.T) {
	got := appletLinks("bin/busybox\nbin/ls\nlinuxrc\nusr/sbin/chroot\n")
	if len(got) != 2 || got[0].name != "/bin/ls" || got[1].name != "/usr/sbin/chroot" || got[1].link != "/bin/busybox" {
		t.Errorf("links: got %+v, want /bin/ls and /usr/sbin/chroot to /bin/busybox", got)
	}
}

// TestModulesPinned checks that each go.mod below modules/ pins the version of its module and lists each program as a
// tool.
func TestModulesPinned(t *testing.T) {
	for name, m := range goModules() {
		dir, err := moduleDir(name)
		if err != nil {
			t.Fatal(err)
		}
		if v, err := pinnedVersion(filepath.Join(dir, "go.mod"), m.path); err != nil || !strings.HasPrefix(v, "v") {
			t.Errorf("%s: got version %q, %v; want one with prefix v", name, v, err)
		}
		b, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range m.programs {
			if !strings.Contains(string(b), m.pkg(p)+"\n") {
				t.Errorf("%s: got no tool line for %s, want one, so that go.sum has all its dependencies", name, m.pkg(p))
			}
		}
	}
}

// TestLookOnly checks that lookOnly builds no missing program, and that the error shows how to build it.
func TestLookOnly(t *testing.T) {
	t.Setenv(CacheEnv, t.TempDir())
	err := lookBuilt(t.Context(), Options{})
	if err == nil || !strings.Contains(err.Error(), "testbed build") {
		t.Errorf("look into an empty cache: got %v, want an error with %q", err, "testbed build")
	}
}

func TestCgroupPath(t *testing.T) {
	for _, c := range []struct {
		driver string
		names  []string
		want   string
	}{
		{DriverCgroupfs, []string{"nodelet-tb-x", "n0"}, "/nodelet-tb-x/n0"},
		{DriverSystemd, []string{"nodelet-tb-x", "n0"}, "/nodelet_tb_x.slice/nodelet_tb_x-n0.slice"},
		{DriverSystemd, []string{"kubepods", "pod1-2"}, "/kubepods.slice/kubepods-pod1_2.slice"},
	} {
		if got := cgroupPath(c.driver, c.names...); got != c.want {
			t.Errorf("cgroupPath(%s, %q): got %s, want %s", c.driver, c.names, got, c.want)
		}
	}
}

// TestWorkDir checks that a build removes what killed builds have left, and nothing of builds that may still run.
func TestWorkDir(t *testing.T) {
	c := &Cache{dir: t.TempDir()}
	old, young := filepath.Join(c.dir, ".build-1"), filepath.Join(c.dir, ".build-2")
	for _, dir := range []string{old, young} {
		if err := os.MkdirAll(filepath.Join(dir, "bin"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	before := time.Now().Add(-2 * noBuild)
	if err := os.Chtimes(old, before, before); err != nil {
		t.Fatal(err)
	}
	dir, err := c.workDir()
	if err != nil {
		t.Fatal(err)
	}
	got, err := filepath.Glob(filepath.Join(c.dir, ".build-*"))
	want := []string{young, dir}
	slices.Sort(want)
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

// TestSuiteReferences checks that the suite's own lists of images give the references, also several of one name.
func TestSuiteReferences(t *testing.T) {
	b := imageBuilder{&Cache{}}
	for name, want := range map[string]string{
		"pause":        "registry.k8s.io/pause:",
		"agnhost":      "registry.k8s.io/e2e-test-images/agnhost:",
		"csi-attacher": "registry.k8s.io/sig-storage/csi-attacher:v", // only in manifests
	} {
		got, err := b.suiteReferences(t.Context(), []string{name})
		if err != nil || len(got) == 0 || !strings.HasPrefix(got[0], want) {
			t.Errorf("%s: got %q, %v, want references that begin with %s", name, got, err, want)
		}
	}
	got, err := b.suiteReferences(t.Context(), []string{"nginx"})
	if err != nil || len(got) != 2 {
		t.Errorf("nginx: got %q, %v, want two versions", got, err)
	}
	if got, err := b.suiteReferences(t.Context(), []string{"no-such-image"}); err == nil {
		t.Errorf("got %v for an image that the suite does not have, want an error", got)
	}
}

// TestRetryDownload checks which failures of a build are tried again.
func TestRetryDownload(t *testing.T) {
	for text, want := range map[string]int{
		`go: a@v1: Get "https://proxy.example/a/@v/v1.zip": dial tcp: i/o timeout`: 4,
		"reading https://proxy.example/a/@v/v1.mod: 503 Service Unavailable":       4,
		"reading https://proxy.example/a/@v/v1.mod: 404 Not Found":                 1,
		"./main.go:1:1: undefined: x":                                              1,
	} {
		synctest.Test(t, func(t *testing.T) {
			tries := 0
			err := retryDownload(t.Context(), io.Discard, "x", func() error { tries++; return errors.New(text) })
			if tries != want || err == nil || err.Error() != text {
				t.Errorf("%s: got %d attempts and error %v, want %d and the error", text, tries, err, want)
			}
		})
	}
	tries := 0
	err := retryDownload(t.Context(), io.Discard, "x", func() error { tries++; return nil })
	if tries != 1 || err != nil {
		t.Errorf("got %d attempts and error %v, want 1 and none", tries, err)
	}
}
