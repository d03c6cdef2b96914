package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/config"
	"github.com/nodelet/nodelet/kube/server/endpoints"
	"github.com/nodelet/nodelet/test/cri/fake"
)

const webManifest = `apiVersion: v1
kind: Pod
metadata: {name: web, namespace: default}
spec:
  hostNetwork: true
  containers:
  - {name: app, image: "busybox:1", imagePullPolicy: IfNotPresent}
`

// silentServer returns the URL of an API server that accepts connections and never answers.
func silentServer(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { c.Close() })
		}
	}()
	return "http://" + l.Addr().String()
}

func kubeconfig(t *testing.T, server string) string {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q}}]
users: [{name: u, user: {token: secret}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`, server)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestStaticPodRuns checks that the agent, with all its parts connected, runs the pod of a manifest: without an API
// server, and at its first start while the API server accepts connections and does not answer.
func TestStaticPodRuns(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: the agent makes its root directory a shared mount")
	}
	if err := unix.Mount("tmpfs", "/var/log", "tmpfs", 0, ""); err != nil { // for links to the logs of containers
		t.Fatal(err)
	}
	for name, flags := range map[string][]string{
		"standalone":        nil,
		"silent API server": {"--kubeconfig", kubeconfig(t, silentServer(t))},
	} {
		t.Run(name, func(t *testing.T) {
			runtime := fake.New()
			runtime.CgroupDriver = runtimeapi.CgroupDriver_CGROUPFS
			runtime.AddImage(fake.RemoteImage{Name: "busybox:1"})
			dir := t.TempDir()
			socket := filepath.Join(dir, "cri.sock")
			if err := runtime.Listen(socket); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(runtime.Close)
			manifests := filepath.Join(dir, "manifests")
			root := filepath.Join(dir, "root")
			for _, made := range []string{manifests, root} {
				if err := os.Mkdir(made, 0o700); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.WriteFile(filepath.Join(manifests, "web.yaml"), []byte(webManifest), 0o600); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = unix.Unmount(root, unix.MNT_DETACH) }) // the agent makes it a shared mount
			cfg, err := config.Load(append([]string{
				"--root-dir", root,
				"--pod-manifest-path", manifests,
				"--container-runtime-endpoint", "unix://" + socket,
				"--hostname-override", "node",
				"--network=runtime",
				"--cgroups-per-qos=false",
				"--enforce-node-allocatable=",
				"--healthz-port=0",
				"--resolv-conf=",
			}, flags...))
			if err != nil {
				t.Fatal(err)
			}
			*cfg.Kubelet.EnableServer = false // other agents on this machine may have its port
			ended := runAgent(t, cfg)
			began := time.Now()
			for !appRuns(runtime) {
				select {
				case err := <-ended:
					t.Fatalf("the agent has ended before the pod runs: %v", err)
				case <-time.After(10 * time.Millisecond):
				}
			}
			t.Logf("the pod runs after %s", time.Since(began))
		})
	}
}

// runAgent runs an agent until the test ends.
func runAgent(t *testing.T, cfg *config.Config) (ended <-chan error) {
	t.Helper()
	p, work, err := assemble(cfg, output{
		log:       slog.New(slog.NewTextHandler(t.Output(), nil)),
		verbosity: &endpoints.Verbosity{},
		health:    func() error { return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx, work); close(done) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the agent ended with an error: %v", err)
		}
	})
	return done
}

func appRuns(r *fake.Runtime) bool {
	for _, c := range r.Containers() {
		if c.Metadata.Name == "app" && c.State == runtimeapi.ContainerState_CONTAINER_RUNNING {
			return true
		}
	}
	return false
}
