package testbed

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"
)

// dnsObjects are the Service of the name server and its EndpointSlice.
const dnsObjects = `
apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system}
spec:
  clusterIP: %s
  ports:
  - {name: dns, port: 53, protocol: UDP}
  - {name: dns-tcp, port: 53, protocol: TCP}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: kube-dns, namespace: kube-system, labels: {kubernetes.io/service-name: kube-dns}}
addressType: IPv4
endpoints: [{addresses: ["%s"], conditions: {ready: true}}]
ports:
- {name: dns, port: 53, protocol: UDP}
- {name: dns-tcp, port: 53, protocol: TCP}
`

// corefile has the root as its last zone: CoreDNS answers NXDOMAIN for names outside the cluster, and a resolver
// tries the next search domain.
const corefile = `.:53 {
  bind %s
  errors
  kubernetes %s in-addr.arpa ip6.arpa . {
    kubeconfig %s
    ttl 5
  }
}
`

// startDNS starts the name server and waits until it answers.
func (tb *Testbed) startDNS(ctx context.Context) error {
	config, objects := filepath.Join(tb.dir(), "Corefile"), filepath.Join(tb.dir(), "dns.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, corefile, tb.apiIP(), ClusterDomain, tb.Kubeconfig),
		0o644); err != nil {
		return err
	}
	if err := os.WriteFile(objects, fmt.Appendf(nil, dnsObjects, serviceDNS, tb.apiIP()), 0o644); err != nil {
		return err
	}
	if _, err := tb.Kubectl(ctx, "apply", "-f", objects); err != nil {
		return err
	}
	if err := tb.launchControl(roleDNS, []string{filepath.Join(tb.bins.coredns, "coredns"), "-conf", config}); err != nil {
		return err
	}
	resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "udp", net.JoinHostPort(tb.apiIP(), "53"))
	}}
	return tb.await(ctx, roleDNS, startLimit, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		_, err := resolver.LookupHost(ctx, "kubernetes.default.svc."+ClusterDomain+".")
		return err
	})
}
