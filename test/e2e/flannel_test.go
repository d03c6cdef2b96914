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
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/test/testbed"
)

// What Flannel's DaemonSet puts on a node, with the values that its plugin reads from the daemon's file.
const flannelNetwork = `{"cniVersion": "1.0.0", "name": %q, "plugins": [
  {"type": "bridge", "bridge": "cni0", "mtu": %s, "isDefaultGateway": true, "hairpinMode": true, "ipam": {"type": "host-local",
    "dataDir": %q, "ranges": [[{"subnet": %q}]], "routes": [{"dst": "10.244.0.0/16"}]}},
  {"type": "portmap", "snat": true, "capabilities": {"portMappings": true}}]}`

// TestLongFlannel: nodes without a network say so, and turn Ready by themselves when Flannel has come; pods on two nodes talk over
// its vxlan.
func TestLongFlannel(t *testing.T) {
	onTestbed(t, testbed.Options{Name: "fla", Nodes: 2, Network: "none", AgentArgs: []string{"-v=4", "--network=runtime"}})
	waitNode(t, 30*time.Second, corev1.ConditionFalse, "NetworkReady=false", "no network configuration", node().CNIConfDir)
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
		if err := n.WaitReady(t.Context(), 30*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	for i, name := range []string{"web-a", "web-b"} {
		apply(t, `{apiVersion: v1, kind: Pod, metadata: {name: `+name+`}, spec: {nodeName: `+tb.Nodes[i].Name+`, terminationGracePeriodSeconds: 0,
			containers: [{name: app, image: "`+testbed.AgnhostImage+`", command: [/agnhost, netexec, --http-port=8080]}]}}`)
	}
	a, b := waitReady(t, time.Minute, "web-a"), waitReady(t, time.Minute, "web-b")
	url := "http://" + net.JoinHostPort(b.Status.PodIP, "8080")
	expectBody(t, url+"/hostname", "web-b")
	if got := body(t, url+"/clientip"); addressOf(got) != a.Status.PodIP {
		t.Errorf("web-b takes web-a for %s, which has %s", got, a.Status.PodIP)
	}
	route, err := node().Exec(t.Context(), "ip", "route", "get", b.Status.PodIP)
	if err != nil || !strings.Contains(route, "dev flannel.1") {
		t.Errorf("the way from node to node is %q, %v; want vxlan", route, err)
	}
}
