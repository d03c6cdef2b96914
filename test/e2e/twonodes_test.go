//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/test/testbed"
)

// TestLongTwoNodes runs two nodes on one network, once with the runtime setting up the pod network and once with
// nodelet. It covers IPv4 and IPv6, Services with kube-proxy in two modes, and names with CoreDNS.
func TestLongTwoNodes(t *testing.T) {
	for network, proxy := range map[string]string{"agent": "nftables", "runtime": "iptables"} {
		t.Run(network, func(t *testing.T) {
			onTestbed(t, testbed.Options{
				Name:      network[:3],
				Nodes:     2,
				Network:   network,
				KubeProxy: true,
				ProxyMode: proxy,
				DNS:       true,
				DualStack: true,
				AgentArgs: []string{"-v=4"},
			})
			twoNodes(t)
		})
	}
}

const twoNodesYAML = `
apiVersion: v1
kind: Pod
metadata: {name: %[1]s, labels: {app: web, only: %[1]s}}
spec:
  nodeName: %[2]s
  terminationGracePeriodSeconds: 0
  containers:
  - name: app
    image: registry.k8s.io/e2e-test-images/agnhost:2.63.0
    command: [/agnhost, netexec, --http-port=8080]
    ports: [{containerPort: 8080, hostPort: 8088}]
    readinessProbe: {httpGet: {port: 8080, path: /hostname}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: only-%[1]s}
spec: {selector: {only: %[1]s}, ports: [{port: 80, targetPort: 8080}], ipFamilyPolicy: PreferDualStack}
---
`

const webYAML = `
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {type: NodePort, selector: {app: web}, ports: [{port: 80, targetPort: 8080, nodePort: 30080}],
  ipFamilyPolicy: PreferDualStack}
`

func twoNodes(t *testing.T) {
	yaml := webYAML + "---\n"
	for i, name := range []string{"web-a", "web-b"} {
		yaml += fmt.Sprintf(twoNodesYAML, name, tb.Nodes[i].Name)
	}
	apply(t, yaml)
	a, b := waitReady(t, "web-a"), waitReady(t, "web-b")
	if len(a.Status.PodIPs) != 2 || len(b.Status.PodIPs) != 2 {
		t.Fatalf("addresses of the pods: got %v and %v; want one of each family", a.Status.PodIPs, b.Status.PodIPs)
	}
	// From pod to pod on another node, and to itself, with each family. The server sees the client's own address.
	for i := range 2 {
		own, other := a.Status.PodIPs[i].IP, b.Status.PodIPs[i].IP
		expectBody(t, "http://"+net.JoinHostPort(other, "8080")+"/hostname", "web-b")
		if got := body(t, "http://"+net.JoinHostPort(other, "8080")+"/clientip"); addressOf(got) != own {
			t.Errorf("address of web-a that web-b sees: got %s, want %s", got, own)
		}
		expectBody(t, "http://"+net.JoinHostPort(own, "8080")+"/hostname", "web-a")
	}
	pairOnOneNode(t, a)
	// Services by address and by name. "web" has both pods as endpoints; "only-web-a" has only the client itself,
	// which is hairpin.
	for _, s := range []string{"web", "only-web-a", "only-web-b"} {
		for _, ip := range clusterIPs(t, s) {
			bodies(t, "http://"+net.JoinHostPort(ip, "80")+"/hostname", behind(s))
		}
		bodies(t, "http://"+s+".default.svc.cluster.local/hostname", behind(s))
		bodies(t, "http://"+s+"/hostname", behind(s))
	}
	fromOutside(t)
	hostNetwork(t, b)
}

func behind(service string) []string {
	if service == "web" {
		return []string{"web-a", "web-b"}
	}
	return []string{strings.TrimPrefix(service, "only-")}
}

// pairOnOneNode checks requests between two pods on one node.
func pairOnOneNode(t *testing.T, a *corev1.Pod) {
	t.Helper()
	apply(t, `{apiVersion: v1, kind: Pod, metadata: {name: near}, spec: {nodeName: `+tb.Nodes[0].Name+
		`, terminationGracePeriodSeconds: 0,
		containers: [{name: app, image: "`+testbed.AgnhostImage+`", command: [/agnhost, netexec, --http-port=8080]}]}}`)
	near := waitReady(t, "near")
	for i, ip := range near.Status.PodIPs {
		eventually(t, "the pod on the same node answers", func() (string, bool) {
			got, err := tryBody(t, "http://"+net.JoinHostPort(ip.IP, "8080")+"/clientip")
			return fmt.Sprint(got, err), addressOf(got) == a.Status.PodIPs[i].IP
		})
	}
}

// fromOutside requests host ports and node ports from the other node, and a host port from a pod on its own node.
func fromOutside(t *testing.T) {
	t.Helper()
	for i, want := range []string{"web-a", "web-b"} {
		from := tb.Nodes[1-i]
		for _, ip := range nodeIPs(t, tb.Nodes[i].Name) {
			url := "http://" + net.JoinHostPort(ip, "8088") + "/hostname"
			eventually(t, "the host port answers "+url, func() (string, bool) {
				got, err := from.Exec(context.Background(), "curl", "-sgm", "3", url)
				return fmt.Sprint(got, err), got == want
			})
			url = "http://" + net.JoinHostPort(ip, "30080") + "/hostname"
			eventually(t, "the node port answers "+url, func() (string, bool) {
				got, err := from.Exec(context.Background(), "curl", "-sgm", "3", url)
				return fmt.Sprint(got, err), strings.HasPrefix(got, "web-")
			})
		}
		// Hairpin through the host port of the client's own node.
		if i == 0 {
			expectBody(t, "http://"+net.JoinHostPort(tb.Nodes[0].IP, "8088")+"/hostname", want)
		}
	}
}

// hostNetwork checks that a pod in the node's network has the node's address and reaches pods.
func hostNetwork(t *testing.T, b *corev1.Pod) {
	t.Helper()
	apply(t, `{apiVersion: v1, kind: Pod, metadata: {name: host}, spec: {nodeName: `+tb.Nodes[0].Name+
		`, hostNetwork: true, terminationGracePeriodSeconds: 0,
		dnsPolicy: ClusterFirstWithHostNet, containers: [{name: app, image: "`+testbed.BusyboxImage+
		`", command: [sleep, "600"]}]}}`)
	host := waitReady(t, "host")
	if host.Status.PodIP != tb.Nodes[0].IP {
		t.Errorf("IP of a pod in the node's network: got %s, want %s", host.Status.PodIP, tb.Nodes[0].IP)
	}
	for _, url := range []string{"http://" + net.JoinHostPort(b.Status.PodIP, "8080"), "http://only-web-b"} {
		eventually(t, url+" answers a pod in the node's network", func() (string, bool) {
			got, err := tryInside(t, "host", "app", "sh", "-c", "timeout 5 wget -qO- "+url+"/hostname")
			return fmt.Sprint(got, err), got == "web-b"
		})
	}
}

// body requests a URL from inside web-a.
func body(t *testing.T, url string) string {
	t.Helper()
	got, err := tryBody(t, url)
	if err != nil {
		t.Errorf("get %s from web-a: %v", url, err)
	}
	return got
}

func tryBody(t *testing.T, url string) (string, error) {
	t.Helper()
	return tryInside(t, "web-a", "app", "sh", "-c", "timeout 5 wget -qO- '"+url+"'")
}

func expectBody(t *testing.T, url, want string) {
	t.Helper()
	eventually(t, url+" answers "+want, func() (string, bool) {
		got, err := tryBody(t, url)
		return fmt.Sprint(got, err), got == want
	})
}

// bodies requests a URL until each name in want has answered. Any other answer fails the test.
func bodies(t *testing.T, url string, want []string) {
	t.Helper()
	var seen []string
	eventually(t, fmt.Sprintf("%s is answered by %q", url, want), func() (string, bool) {
		got, err := tryBody(t, url)
		if err == nil && !slices.Contains(want, got) {
			t.Fatalf("answer of %s: got %q, want one of %q", url, got, want)
		}
		if err == nil && !slices.Contains(seen, got) {
			seen = append(seen, got)
		}
		return fmt.Sprint(seen, err), len(seen) == len(want)
	})
}

// addressOf returns the address of ADDRESS:PORT, or "".
func addressOf(s string) string {
	ap, err := netip.ParseAddrPort(s)
	if err != nil {
		return ""
	}
	return ap.Addr().Unmap().String()
}

func clusterIPs(t *testing.T, service string) []string {
	t.Helper()
	ips := strings.Fields(strings.Trim(kubectl(t, "get", "service", service, "-o", "jsonpath={.spec.clusterIPs[*]}"),
		"[]"))
	if len(ips) != 2 {
		t.Errorf("addresses of service %s: got %q, want one of each family", service, ips)
	}
	return ips
}

func nodeIPs(t *testing.T, node string) []string {
	t.Helper()
	return strings.Fields(kubectl(t, "get", "node", node, "-o",
		`jsonpath={.status.addresses[?(@.type=="InternalIP")].address}`))
}
