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

// faultyIPAM stands in for host-local: one ADD in eight fails after the address is taken, one in sixteen hangs.
const faultyIPAM = `#!/bin/sh
config=$(cat)
out=$(printf '%%s' "$config" | %[1]s); code=$?
if [ "$CNI_COMMAND" = ADD ] && [ $code = 0 ]; then
  case $(od -An -N1 -tu1 /dev/urandom | awk '{print $1 %% 16}') in
  0|1) echo '{"cniVersion":"1.0.0","code":100,"msg":"a fault that the test has made"}'; exit 1;;
  2) exec sleep 10;; # beyond the time-out, but not for ever: who kills the agent leaves it alone
  esac
fi
printf '%%s' "$out"; exit $code
`

const smallNetwork = `{"cniVersion": "1.0.0", "name": "small", "plugins": [
  {"type": "bridge", "bridge": "nodelet0", "isGateway": true, "hairpinMode": true, "ipam": {"type": "host-local",
    "dataDir": %q, "ranges": [[{"subnet": "10.244.0.0/26"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "snat": true, "capabilities": {"portMappings": true}},
  {"type": "bandwidth", "capabilities": {"bandwidth": true}}]}`

// TestLongLeaks: 300 pods come and go on a range of 61 addresses while plugins fail after they have taken an address or hang, the
// runtime and the agent are killed, and network namespaces vanish as with a reboot. At the end all is given back.
func TestLongLeaks(t *testing.T) {
	dir := t.TempDir()
	conf := filepath.Join(dir, "net.conflist")
	onTestbed(t, testbed.Options{Name: "leak", Network: "agent", AgentArgs: []string{"-v=4", "--cni-conf=" + conf,
		"--cni-call-timeout=3s"}, BeforeAgent: func(n *testbed.Node) error {
		return os.WriteFile(conf, fmt.Appendf(nil, smallNetwork, filepath.Join(n.RootDir, "cni/addresses")), 0o644)
	}})
	n := node()
	plugin := filepath.Join(n.CNIBinDir, "host-local")
	real, err := os.Readlink(plugin)
	if err != nil {
		t.Fatal(err)
	}
	replacePlugin(t, plugin, fmt.Sprintf(faultyIPAM, real))

	const waves, each = 12, 25
	for w := range waves {
		began := time.Now()
		createWave(t, w, each)
		disturb(t, w)
		eventually(t, 4*time.Minute, "all pods of the wave are ready", func() (string, bool) {
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
	if err := os.Symlink(real, plugin); err != nil {
		t.Fatal(err)
	}
	killAgent(t) // what is left is found at the start, rather than ten minutes later
	forgottenNamespaces(t)
	nothingLeft(t)
	for _, tool := range []string{"iptables-save", "ip6tables-save"} {
		rules, err := n.Exec(context.Background(), tool, "-t", "nat")
		if err != nil || strings.Contains(rules, "CNI-DN-") {
			t.Errorf("rules of host ports are left (%v):\n%s", err, rules)
		}
	}
	if links, err := n.Exec(context.Background(), "ip", "-o", "link", "show", "type", "ifb"); err != nil || links != "" {
		t.Errorf("interfaces of bandwidth limits are left (%v):\n%s", err, links)
	}
}

// createWave makes pods; some have host ports, some limits.
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

// disturb kills the runtime or the agent amid a wave.
func disturb(t *testing.T, wave int) {
	t.Helper()
	time.Sleep(700 * time.Millisecond) // some are being made now
	switch wave % 3 {
	case 1:
		killAgent(t)
	case 2:
		if err := node().StopRuntime(unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if err := node().StartRuntime(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
}

// loseNamespaces takes the network namespaces of some sandboxes away, as a reboot does.
func loseNamespaces(t *testing.T) {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(filepath.Dir(node().RootDir), "run/io.containerd.grpc.v1.cri/netns/*"))
	if err != nil || len(all) == 0 {
		t.Fatalf("network namespaces of sandboxes: %q, %v", all, err)
	}
	for i, ns := range all {
		if i%4 == 0 {
			if err := unmountNamespace(ns); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// forgottenNamespaces removes namespaces that the runtime had made when it was killed and before it called any plugin: those are
// its own leaks, of which nobody else can know.
func forgottenNamespaces(t *testing.T) {
	t.Helper()
	eventually(t, time.Minute, "no sandbox and no namespace with a network is left", func() (string, bool) {
		known, err := node().Leftovers(context.Background())
		if err != nil {
			return err.Error(), false
		}
		for _, line := range known {
			if strings.HasPrefix(line, "sandbox ") {
				return line, false // the runtime is still to take its namespace away
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
			t.Logf("the runtime has forgotten %s", ns)
			if err := unmountNamespace(ns); err != nil {
				t.Error(err)
			}
		}
		return "", true
	})
}

// unmountNamespace takes a namespace's name away. A runtime that was killed between making the file and mounting the namespace
// on it has left an empty file (EINVAL); one that gives a failed sandbox back may have been faster (ENOENT).
func unmountNamespace(path string) error {
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && err != unix.EINVAL && err != unix.ENOENT {
		return err
	}
	return nil
}

// replacePlugin puts a script in a plugin's place.
func replacePlugin(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}
