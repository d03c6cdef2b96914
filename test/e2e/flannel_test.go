//go:build e2e

package e2e

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/test/testbed"
)

// flannelNetwork is the network configuration that Flannel's DaemonSet writes on a node, with the values that the
// flannel plugin would read from the file of the daemon.
const flannelNetwork = `{"cniVersion": "1.0.0", "name": %q, "plugins": [
  {"type": "bridge", "bridge": "cni0", "mtu": %s, "isDefaultGateway": true, "hairpinMode": true,
"ipam": {"type": "host-local",
    "dataDir": %q, "ranges": [[{"subnet": %q}]], "routes": [{"dst": "10.244.0.0/16"}]}},
  {"type": "portmap", "snat": true, "capabilities": {"portMappings": true}}]}`

// TestLongFlannel starts nodes without a pod network. They report it, and turn Ready by themselves when Flannel runs.
// Pods on two nodes reach each other over vxlan.
func TestLongFlannel(t *testing.T) {
	onTestbed(t, testbed.Options{Name: "fla", Nodes: 2, Network: "none", AgentArgs: []string{"-v=4", "--network=runtime"}})
	waitNode(t, corev1.ConditionFalse, "NetworkReady=false", "no network configuration", node().CNIConfDir)
	for _, n := range tb.Nodes {
		subnet, mtu, err := n.StartFlannel(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		prefix, err := netip.ParsePrefix(subnet)
		if err != nil {
			t.Fatal(err)
		}
		text := fmt.Sprintf(flannelNetwork, n.Netns, mtu, filepath.Join(filepath.Dir(n.RootDir), "cni/ipam"), prefix.Masked())
		if err := os.WriteFile(filepath.Join(n.CNIConfDir, "10-flannel.conflist"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := n.WaitReady(t.Context(), limit); err != nil {
			t.Fatal(err)
		}
	}
	for i, name := range []string{"web-a", "web-b"} {
		apply(t, `{apiVersion: v1, kind: Pod, metadata: {name: `+name+`}, spec: {nodeName: `+tb.Nodes[i].Name+
			`, terminationGracePeriodSeconds: 0,
			containers: [{name: app, image: "`+testbed.AgnhostImage+`", command: [/agnhost, netexec, --http-port=8080]}]}}`)
	}
	a, b := waitReady(t, "web-a"), waitReady(t, "web-b")
	url := "http://" + net.JoinHostPort(b.Status.PodIP, "8080")
	expectBody(t, url+"/hostname", "web-b")
	if got := body(t, url+"/clientip"); addressOf(got) != a.Status.PodIP {
		t.Errorf("address of web-a that web-b sees: got %s, want %s", got, a.Status.PodIP)
	}
	route, err := node().Exec(t.Context(), "ip", "route", "get", b.Status.PodIP)
	if err != nil || !strings.Contains(route, "dev flannel.1") {
		t.Errorf("route to the pod on the other node: got %q, %v; want one over flannel.1", route, err)
	}
}
