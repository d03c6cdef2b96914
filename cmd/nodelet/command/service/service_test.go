package service

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/cmd/nodelet/command"
	"github.com/nodelet/nodelet/config"
	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/test/cri/fake"
)

// asAgent makes this program a stand-in for an agent that runs until its standard input ends.
const asAgent = "NODELET_TEST_AGENT"

func TestMain(m *testing.M) {
	if os.Getenv(asAgent) != "" {
		_, _ = os.Stdin.Read(make([]byte, 1))
		return
	}
	os.Exit(m.Run())
}

// TestAsk checks that only an agent that answers, and says that it is healthy, works.
func TestAsk(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(http.ResponseWriter, *http.Request) {})
	server := httptest.NewServer(mux)
	defer server.Close()
	for path, want := range map[string]string{"/healthz": "", "/other": "404"} {
		if got := ask(t.Context(), server.URL+path); got != want && (want == "" || !strings.Contains(got, want)) {
			t.Errorf("%s: got %q, want %q", path, got, want)
		}
	}
	server.Close()
	if got := ask(t.Context(), server.URL+"/healthz"); !strings.Contains(got, "refused") {
		t.Errorf("no agent: got %q, want the error", got)
	}
}

// TestUninstallOfABrokenKubelet checks that a kubelet that does not work is not reported as the agent of the node: its
// unit is active as soon as its process runs. A kubelet without health checks is not asked, also if its file or its
// flags are such as only the kubelet accepts. Before, nodelet ends again and again, so that no process has the flags.
func TestUninstallOfABrokenKubelet(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root may uninstall")
	}
	closed := httptest.NewServer(nil)
	closed.Close()
	_, port, _ := strings.Cut(strings.TrimPrefix(closed.URL, "http://"), ":")
	const closedPort = "a port without a kubelet"
	runs := map[string][]string{
		closedPort:                  {"--healthz-port=" + port},
		"no health checks":          {"--healthz-port=0"},
		"flags of other Kubernetes": {"--network-plugin=cni", "--unknown", "value", "--healthz_port=0"},
	}
	for i, fields := range []string{
		"unknown: 1\nhealthzPort: 0\n", "maxPods: 1\nmaxPods: 2\nhealthzPort: 0\n", "healthzPort: 1\nhealthzPort: 0\n",
		"healthzPort: 0\n---\nhealthzPort: 1\n",
	} {
		file := filepath.Join(t.TempDir(), "config.yaml")
		text := "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n" + fields
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		runs[fmt.Sprintf("file %d", i)] = []string{"--config=" + file}
	}
	for _, unit := range []string{"kubelet.service.d/90-nodelet.conf", "nodelet.service"} {
		for name, flags := range runs {
			err, want := uninstallFor(t, unit, flags...), name == closedPort
			if (err != nil) != want || want && !strings.Contains(err.Error(), "refused") {
				t.Errorf("%s, %s: got error %v, want one that it is refused: %v", unit, name, err, want)
			}
		}
	}
}

// uninstallFor removes a file of an installation whose nodelet does not run, so that a kubelet with flags runs.
func uninstallFor(t *testing.T, file string, kubelet ...string) error {
	t.Helper()
	const written = `# Written by "nodelet systemd install"; "nodelet systemd uninstall" removes it`
	root := t.TempDir()
	for _, path := range []string{"run/systemd/system/x", "etc/systemd/system/" + file} {
		path = filepath.Join(root, path)
		err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(written), 0o644))
		if err != nil {
			t.Fatal(err)
		}
	}
	const crashes = "LoadState=loaded\nUnitFileState=enabled\nActiveState=activating\nMainPID=0\n"
	if err := os.WriteFile(filepath.Join(runKubelet(t, kubelet...), "before"), []byte(crashes), 0o644); err != nil {
		t.Fatal(err)
	}
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	run := uninstall().Setup(flags)
	if err := flags.Parse([]string{"--wait=1ns"}); err != nil {
		t.Fatal(err)
	}
	return run(command.Call{Context: t.Context(), Out: io.Discard, Root: root})
}

// TestRelativePath checks that a path is refused that the service would not find: it runs in another directory.
func TestRelativePath(t *testing.T) {
	t.Chdir(t.TempDir())
	absolute, err := filepath.Abs("config.yaml")
	if err == nil {
		const empty = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
		err = os.WriteFile(absolute, []byte(empty), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	for flag, want := range map[string]string{
		"--config=config.yaml":    "write --config=" + absolute,
		"--kubeconfig=k":          "write --kubeconfig=" + filepath.Join(filepath.Dir(absolute), "k"),
		"--manifests=../m":        "write --pod-manifest-path=" + filepath.Join(filepath.Dir(filepath.Dir(absolute)), "m"),
		"--cni-bin-dir=bin,/b":    "write --cni-bin-dir=" + filepath.Join(filepath.Dir(absolute), "bin") + ",/b",
		"--cni-bin-dir=/a,/b":     "",
		"--config=" + absolute:    "",
		"--hostname-override=h.x": "",
	} {
		c, err := config.Load([]string{flag})
		if err != nil {
			t.Fatal(err)
		}
		err = absolutePaths(c)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got error %v, want %q in it", flag, err, want)
		}
	}
}

// TestRelativePathInFile checks that a relative path in the file with the flags is refused, too, also if it exists in
// the directory of the command.
func TestRelativePathInFile(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("the program must belong to root")
	}
	t.Chdir(t.TempDir())
	root := t.TempDir()
	for path, text := range map[string]string{
		"run/systemd/system/x": "", "usr/bin/nodelet": "", "etc/default/nodelet": "NODELET_ARGS=--kubeconfig=k\n",
	} {
		path = filepath.Join(root, path)
		err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o755))
		if err != nil {
			t.Fatal(err)
		}
	}
	runKubelet(t, "--kubeconfig=k") // a kubelet that nodelet does not replace
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	run := install().Setup(set)
	if err := set.Parse([]string{"--own-unit", "--dry-run"}); err != nil {
		t.Fatal(err)
	}
	err := run(command.Call{Context: t.Context(), Out: io.Discard, Root: root, Program: "/usr/bin/nodelet"})
	if err == nil || !strings.Contains(err.Error(), "write --kubeconfig=") {
		t.Errorf("got error %v, want the absolute path in it", err)
	}
}

// TestInstallKeepsPods checks that an installation is refused if nodelet would remove pods that run, or not see them:
// it would not have their source, be another node, or use another runtime.
func TestInstallKeepsPods(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("the program must belong to root")
	}
	root := t.TempDir()
	for _, path := range []string{"run/systemd/system/x", "usr/bin/nodelet"} {
		path = filepath.Join(root, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, nil, 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	link := filepath.Join(root, "link")
	if err := os.Symlink(root, link); err != nil {
		t.Fatal(err)
	}
	named := "--kubeconfig=" + kubeconfig(t, "old")
	old := "--hostname-override= " + named // the machine had another host name when the agent started
	for _, c := range []struct{ source, before, flags, want string }{
		{"api", "", "--manifests=/m", "set --kubeconfig=FILE as"},
		{"api", "", "--kubeconfig=/k", ""},
		{"file", "", "--kubeconfig=/k", "set staticPodPath (--manifests=DIR) as"},
		{"file", "", "--manifests=/m", ""},
		{"file", "--manifests=/m", "--manifests=/m/", ""},
		{"file", "--manifests=" + root, "--manifests=" + link, ""},
		{"file", "--manifests=/m", "--manifests=/other", "set staticPodPath (--manifests=/m) as"},
		{"api", "--manifests=/m", "--kubeconfig=/k", ""},
		{"http", "", "--kubeconfig=/k --manifests=/m", "set staticPodURL (--manifest-url=URL) as"},
		{"http", "", "--manifest-url=http://h/", ""},
		{"http", "--manifest-url=http://h/", "--manifest-url=http://other/", "set staticPodURL (--manifest-url=URL) as"},
		{"", "", "--manifests=/m", ""}, // of another program
		{"", "", "", "no source of pods"},
		{"api", "", "--kubeconfig=/k --hostname-override=other", "add --hostname-override=n, or end"},
		{"api", "", "--kubeconfig=/k --root-dir=/r", "add --root-dir=/var/lib/kubelet, or end its pods"},
		{"api", "", "--kubeconfig=/k --root-dir=/var/lib/kubelet/", ""},
		{"api", "--container-runtime-endpoint=unix:///r", "--kubeconfig=/k", "add --container-runtime-endpoint=unix:///r,"},
		{"api", old, old, "add --hostname-override=old, or end"},
		{"api", old, named + " --hostname-override=old", ""},
		{"api", named, named, ""},
		{"api", named, old, "add --hostname-override=n, or end"},
		{"api", "--hostname-override=", old, "the client certificate is that of node old: add --hostname-override=old"},
	} {
		endpoint := runPod(t, c.source)
		runKubelet(t, append([]string{"--hostname-override=n", endpoint}, strings.Fields(c.before)...)...)
		flags := append([]string{"--hostname-override=n", endpoint}, strings.Fields(c.flags)...)
		set := pflag.NewFlagSet("", pflag.ContinueOnError)
		run := install().Setup(set)
		if err := set.Parse([]string{"--own-unit", "--dry-run"}); err != nil {
			t.Fatal(err)
		}
		err := run(command.Call{
			Context: t.Context(), Out: io.Discard, Root: root, Program: "/usr/bin/nodelet", Args: flags,
		})
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("pod of source %q, %s after %q: got error %v, want %q in it", c.source, c.flags, c.before, err, c.want)
		}
	}
}

// TestKubeletInOtherDirectory checks that relative paths in the flags of the kubelet are those of its own working
// directory, as its unit may set one.
func TestKubeletInOtherDirectory(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("the program must belong to root")
	}
	root, dir := t.TempDir(), t.TempDir()
	const config = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nstaticPodPath: m\n"
	for path, text := range map[string]string{
		root + "/run/systemd/system/x": "", root + "/usr/bin/nodelet": "", dir + "/config.yaml": config,
	} {
		err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o755))
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ before, flags, want string }{
		{"--config=config.yaml", "--own-unit -- --manifests=/m", "(--manifests=" + dir + "/m)"},
		{"--config=config.yaml", "--own-unit -- --manifests=" + dir + "/m", ""},
		{"--manifests=m", "--own-unit -- --manifests=" + dir + "/m", ""},
		{"--config=config.yaml", "", ""},
		{"--config=config.yaml --kubeconfig=k --manifests=", "", "set staticPodPath (--manifests=DIR)"},
	} {
		endpoint := runPod(t, "file")
		t.Chdir(dir)
		runKubelet(t, append([]string{"--hostname-override=n", endpoint}, strings.Fields(c.before)...)...)
		t.Chdir(t.TempDir())
		set := pflag.NewFlagSet("", pflag.ContinueOnError)
		run := install().Setup(set)
		own, flags, separate := strings.Cut(c.flags, " -- ")
		if err := set.Parse(append(strings.Fields(own), "--dry-run")); err != nil {
			t.Fatal(err)
		}
		call := command.Call{Context: t.Context(), Out: io.Discard, Root: root, Program: "/usr/bin/nodelet"}
		if separate {
			call.Args = []string{"--hostname-override=n", endpoint, flags}
		}
		if err := run(call); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s after %s: got error %v, want %q in it", c.flags, c.before, err, c.want)
		}
	}
}

// kubeconfig writes a kubeconfig with the client certificate of a node, and returns its path.
func kubeconfig(t *testing.T, node string) (path string) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		NotAfter:     time.Now().Add(time.Hour),
		Subject:      pkix.Name{CommonName: "system:node:" + node},
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, public, private)
	if err != nil {
		t.Fatal(err)
	}
	key, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	encode := func(kind string, data []byte) string {
		return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: data}))
	}
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: 'https://h'}}]\n"+
		"users: [{name: u, user: {client-certificate-data: %s, client-key-data: %s}}]\n"+
		"contexts: [{name: x, context: {cluster: c, user: u}}]\ncurrent-context: x\n",
		encode("CERTIFICATE", der), encode("PRIVATE KEY", key))
	path = filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// runPod runs a pod of a source in a runtime, and returns the flag with the socket of that.
func runPod(t *testing.T, source string) (endpoint string) {
	t.Helper()
	runtime := fake.New()
	socket := filepath.Join(t.TempDir(), "cri.sock")
	if err := runtime.Listen(socket); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(runtime.Close)
	_, err := runtime.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{
		Metadata:    &runtimeapi.PodSandboxMetadata{Name: "web", Namespace: "default", Uid: "u1"},
		Labels:      map[string]string{podutil.LabelPodUID: "u1"},
		Annotations: map[string]string{podutil.AnnotationSource: source},
	}})
	if err != nil {
		t.Fatal(err)
	}
	return "--container-runtime-endpoint=unix://" + socket
}

// runKubelet runs an agent with flags, and makes it that of kubelet.service. A file "before" in the directory that it
// returns is the state of the unit before a start.
func runKubelet(t *testing.T, flags ...string) (bin string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	agent := exec.Command(self, flags...)
	agent.Env = append(os.Environ(), asAgent+"=1")
	input, err := agent.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		input.Close()
		_ = agent.Wait()
	})
	bin = t.TempDir()
	script := fmt.Sprintf("#!/bin/sh\ncd %s\ncase $1 in start|restart) rm -f before;; cat) echo ExecStart=/bin/kubelet; "+
		"esac\n[ $1 != show ] || [ $2 = nodelet.service ] || cat before 2>/dev/null || "+
		"printf 'LoadState=loaded\\nActiveState=active\\nMainPID=%d\\n'\n", bin, agent.Process.Pid)
	if err := os.WriteFile(filepath.Join(bin, "systemctl"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	return bin
}

// TestSameFile checks that relative paths refer to the working directory of services.
func TestSameFile(t *testing.T) {
	dir := t.TempDir()
	if !sameFile(dir, dir[1:]) || sameFile(dir, "x"+dir) {
		t.Error("a relative path is not one below /")
	}
}
