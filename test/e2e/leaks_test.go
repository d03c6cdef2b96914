//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodelet/nodelet/kube/client"
	"github.com/nodelet/nodelet/test/testbed"
)

// faultyIPAM replaces host-local: one ADD in eight fails after it has allocated the address, and one in sixteen hangs.
const faultyIPAM = `#!/bin/sh
config=$(cat)
out=$(printf '%%s' "$config" | %[1]s); code=$?
if [ "$CNI_COMMAND" = ADD ] && [ $code = 0 ]; then
  case $(od -An -N1 -tu1 /dev/urandom | awk '{print $1 %% 16}') in
  0|1) echo '{"cniVersion":"1.0.0","code":100,"msg":"a fault that the test injects"}'; exit 1;;
  2) exec sleep 10;; # longer than the timeout, but not forever: a killed agent cannot end it
  esac
fi
printf '%%s' "$out"; exit $code
`

const smallNetwork = `{"cniVersion": "1.0.0", "name": "small", "plugins": [
  {"type": "bridge", "bridge": "nodelet0", "isGateway": true, "hairpinMode": true, "ipam": {"type": "host-local",
    "dataDir": %q, "ranges": [[{"subnet": "10.244.0.0/26"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "snat": true, "capabilities": {"portMappings": true}},
  {"type": "bandwidth", "capabilities": {"bandwidth": true}}]}`

// TestLongLeaks creates and deletes 300 pods on a range of 61 addresses. Meanwhile plugins hang or fail after they
// have allocated an address, runtime and agent are killed, and network namespaces disappear as with a reboot. In the
// end nothing is left.
func TestLongLeaks(t *testing.T) {
	dir := t.TempDir()
	conf := filepath.Join(dir, "net.conflist")
	onTestbed(t, testbed.Options{Name: "leak", Network: "agent", AgentArgs: []string{"-v=4", "--cni-conf=" + conf,
		"--cni-call-timeout=3s"}, BeforeAgent: func(n *testbed.Node) error {
		return os.WriteFile(conf, fmt.Appendf(nil, smallNetwork, filepath.Join(n.RootDir, "cni/addresses")), 0o644)
	}})
	n := node()
	plugin := filepath.Join(n.CNIBinDir, "host-local")
	target, err := os.Readlink(plugin)
	if err != nil {
		t.Fatal(err)
	}
	replacePlugin(t, plugin, fmt.Sprintf(faultyIPAM, target))

	const waves, each = 12, 25
	for w := range waves {
		began := time.Now()
		createWave(t, w, each)
		disturb(t, w)
		eventually(t, "all pods of the wave are ready", func() (string, bool) {
			ready := 0
			for _, p := range listPods(t, fmt.Sprintf("wave=%d", w)) {
				if condition(&p, corev1.PodReady) == corev1.ConditionTrue {
					ready++
				}
			}
			return fmt.Sprintf("%d of %d", ready, each), ready == each
		})
		if w%4 == 3 {
			loseNamespaces(t)
		}
		kubectl(t, "delete", "pods", "-l", fmt.Sprintf("wave=%d", w), "--wait=true", "--timeout=180s")
		t.Logf("wave %d: %s", w, time.Since(began).Round(time.Second))
	}
	if err := os.Remove(plugin); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, plugin); err != nil {
		t.Fatal(err)
	}
	killAgent(t) // a starting agent finds leftovers at once, a running one after up to ten minutes
	forgottenNamespaces(t)
	nothingLeft(t)
	for _, tool := range []string{"iptables-save", "ip6tables-save"} {
		rules, err := n.Exec(context.Background(), tool, "-t", "nat")
		if err != nil || strings.Contains(rules, "CNI-DN-") {
			t.Errorf("%s: got rules of host ports, want none (%v):\n%s", tool, err, rules)
		}
	}
	if links, err := n.Exec(context.Background(), "ip", "-o", "link", "show", "type", "ifb"); err != nil || links != "" {
		t.Errorf("interfaces of bandwidth limits: got some, want none (%v):\n%s", err, links)
	}
}

// createWave creates the pods of a wave. Some have host ports, some have bandwidth limits.
func createWave(t *testing.T, wave, count int) {
	t.Helper()
	zero := int64(0)
	for i := range count {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("leak-%d-%d", wave, i), Namespace: space,
			Labels: map[string]string{"wave": fmt.Sprint(wave)}, Annotations: map[string]string{}},
			Spec: corev1.PodSpec{NodeName: node().Name, TerminationGracePeriodSeconds: &zero, Containers: []corev1.Container{{
				Name: "app", Image: testbed.BusyboxImage, Command: []string{"sleep", "3600"}}}}}
		switch i % 5 {
		case 0:
			pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: int32(9000 + 100*wave + i)}}
		case 1:
			pod.Annotations["kubernetes.io/egress-bandwidth"] = "10M"
			pod.Annotations["kubernetes.io/ingress-bandwidth"] = "10M"
		}
		err := api.Core.Post().Namespace(space).Resource("pods").VersionedParams(&metav1.CreateOptions{}, client.Parameters).
			Body(pod).Do(t.Context()).Error()
		if err != nil {
			t.Fatal(err)
		}
	}
}

// disturb kills the runtime or the agent while the pods of a wave start.
func disturb(t *testing.T, wave int) {
	t.Helper()
	time.Sleep(700 * time.Millisecond) // some pods are starting now
	switch wave % 3 {
	case 1:
		killAgent(t)
	case 2:
		if err := node().Runtime.Stop(unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if err := node().Runtime.Start(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
}

// loseNamespaces unmounts the network namespaces of some sandboxes, as a reboot does.
func loseNamespaces(t *testing.T) {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(filepath.Dir(node().RootDir), "run/io.containerd.grpc.v1.cri/netns/*"))
	if err != nil || len(all) == 0 {
		t.Fatalf("network namespaces of sandboxes: got %q, %v, want some", all, err)
	}
	for i, ns := range all {
		if i%4 == 0 {
			if err := unmountNamespace(ns); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// forgottenNamespaces removes namespaces that the runtime had created before it was killed, and before it called any
// plugin. Only the runtime could know these namespaces, so they are its leaks. A namespace with a network is a
// failure.
func forgottenNamespaces(t *testing.T) {
	t.Helper()
	eventually(t, "no sandbox and no namespace with a network is left", func() (string, bool) {
		known, err := node().Leftovers(context.Background())
		if err != nil {
			return err.Error(), false
		}
		for _, line := range known {
			if strings.Contains(line, ": sandbox ") {
				return line, false // the runtime will remove its namespace
			}
		}
		left, _ := filepath.Glob(filepath.Join(filepath.Dir(node().RootDir), "run/io.containerd.grpc.v1.cri/netns/*"))
		for _, ns := range left {
			links, err := node().Exec(context.Background(), "nsenter", "--net="+ns, "ip", "-o", "link")
			if err == nil && strings.Count(links, "\n") > 1 {
				return ns + ": " + links, false
			}
		}
		for _, ns := range left {
			t.Logf("the runtime has leaked %s, removing it", ns)
			if err := unmountNamespace(ns); err != nil {
				t.Error(err)
			}
		}
		return "", true
	})
}

// unmountNamespace unmounts a namespace. EINVAL means that the runtime was killed after it created the file and
// before it mounted the namespace on it. ENOENT means that the runtime has removed the namespace of a failed sandbox
// at the same time.
func unmountNamespace(path string) error {
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && err != unix.EINVAL && err != unix.ENOENT {
		return err
	}
	return nil
}

// replacePlugin replaces the program of a plugin with a script.
func replacePlugin(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}
