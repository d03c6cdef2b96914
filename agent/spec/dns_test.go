package spec

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func testPod() *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "uid-1"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "busybox"}}},
	}
	setDefaults(pod)
	return pod
}

func TestDNSPolicy(t *testing.T) {
	cluster, host := []string{"10.96.0.10"}, []string{"192.168.1.1"}
	for _, c := range []struct {
		policy      corev1.DNSPolicy
		hostNetwork bool
		want        []string
	}{
		{corev1.DNSClusterFirst, false, cluster},
		{corev1.DNSClusterFirst, true, host},
		{"", false, cluster},
		{corev1.DNSClusterFirstWithHostNet, false, cluster},
		{corev1.DNSClusterFirstWithHostNet, true, cluster},
		{corev1.DNSDefault, false, host},
		{corev1.DNSDefault, true, host},
		{corev1.DNSNone, false, nil},
		{corev1.DNSNone, true, nil},
	} {
		pod := testPod()
		pod.Spec.DNSPolicy, pod.Spec.HostNetwork = c.policy, c.hostNetwork
		got, warnings, err := dnsConfig(pod, testNode(nodeFacts{}))
		if err != nil || len(warnings) > 0 || !slices.Equal(got.Servers, c.want) {
			t.Errorf("%q, host network %v: got %v, warnings %v, error %v", c.policy, c.hostNetwork, got, warnings, err)
		}
		node := testNode(nodeFacts{NoClusterDNS: true})
		got, warnings, err = dnsConfig(pod, node)
		if fallsBack := slices.Equal(c.want, cluster); err != nil || fallsBack != (len(warnings) == 1) ||
			fallsBack && (warnings[0].Reason != "MissingClusterDNS" || !slices.Equal(got.Servers, host)) {
			t.Errorf("%q, host network %v, no cluster DNS: got %v, warnings %v, error %v", c.policy, c.hostNetwork, got,
				warnings, err)
		}
	}
	pod := testPod()
	pod.Spec.DNSPolicy = "Magic"
	if _, _, err := dnsConfig(pod, testNode(nodeFacts{})); err == nil {
		t.Error("unknown dnsPolicy: got no error, want one")
	}
}

// TestDNSOfOneInterface checks that a nameserver that is valid on one interface of the node only is of no use in
// another network.
func TestDNSOfOneInterface(t *testing.T) {
	all := []string{"fe80::1%eth0", "2001:db8::53", "fe80::2%3", "192.0.2.53"}
	node := testNode(nodeFacts{NoClusterDNS: true})
	node.Resolv.Nameservers = all
	for _, c := range []struct {
		policy      corev1.DNSPolicy
		hostNetwork bool
		want        []string
	}{
		{corev1.DNSDefault, false, []string{"2001:db8::53", "192.0.2.53"}},
		{corev1.DNSClusterFirst, false, []string{"2001:db8::53", "192.0.2.53"}},
		{corev1.DNSDefault, true, all[:3]},
	} {
		pod := testPod()
		pod.Spec.DNSPolicy, pod.Spec.HostNetwork = c.policy, c.hostNetwork
		if got, _, err := dnsConfig(pod, node); err != nil || !slices.Equal(got.Servers, c.want) {
			t.Errorf("%s, host network %v: got %v (%v), want %v", c.policy, c.hostNetwork, got.GetServers(), err, c.want)
		}
	}
	if !slices.Equal(node.Resolv.Nameservers, all) {
		t.Errorf("nameservers of the node: got %v, want %v", node.Resolv.Nameservers, all)
	}
}

// TestDNSOfOneInterfaceOnly checks that a pod has a nameserver also where all are valid on one interface of the node
// only, as in networks with router advertisements alone: CoreDNS does not start without one. An event says so.
func TestDNSOfOneInterfaceOnly(t *testing.T) {
	zoned := []string{"fe80::1%2"}
	node := testNode(nodeFacts{})
	node.Resolv.Nameservers = zoned
	for name, c := range map[string]struct {
		hostNetwork bool
		own, want   []string
		warnings    int
	}{
		"a network of its own":    {want: zoned, warnings: 1},
		"the network of the node": {hostNetwork: true, want: zoned},
		"a nameserver of its own": {own: []string{"192.0.2.53"}, want: []string{"192.0.2.53"}},
	} {
		pod := testPod()
		pod.Spec.DNSPolicy, pod.Spec.HostNetwork = corev1.DNSDefault, c.hostNetwork
		pod.Spec.DNSConfig = &corev1.PodDNSConfig{Nameservers: c.own}
		got, warnings, err := dnsConfig(pod, node)
		if err != nil || !slices.Equal(got.Servers, c.want) || len(warnings) != c.warnings {
			t.Errorf("%s: got %v, warnings %v (%v), want %v and %d warnings", name, got.GetServers(), warnings, err, c.want,
				c.warnings)
		}
	}
}

func TestDNSWithoutClusterDomain(t *testing.T) {
	node := testNode(nodeFacts{})
	node.ClusterDomain = ""
	got, _, err := dnsConfig(testPod(), node)
	if err != nil || !slices.Equal(got.Searches, []string{"example.com"}) {
		t.Errorf("got %v, %v, want the search domain example.com", got, err)
	}
}

func TestDNSWithoutResolvConf(t *testing.T) {
	for _, c := range []struct{ ips, want []string }{
		{nil, []string{"127.0.0.1"}},
		{[]string{"10.0.0.1"}, []string{"127.0.0.1"}},
		{[]string{"fd00::1"}, []string{"::1"}},
		{[]string{"fd00::1", "10.0.0.1"}, []string{"::1", "127.0.0.1"}},
	} {
		node := testNode(nodeFacts{NoResolvConf: true})
		node.HostIPs = c.ips
		pod := testPod()
		pod.Spec.DNSPolicy = corev1.DNSDefault
		got, _, err := dnsConfig(pod, node)
		if err != nil || !slices.Equal(got.Servers, c.want) || !slices.Equal(got.Searches, []string{"."}) {
			t.Errorf("%v: got %v, %v", c.ips, got, err)
		}
	}
}

func TestDNSLimits(t *testing.T) {
	many := func(n int, format string) (out []string) {
		for i := range n {
			out = append(out, fmt.Sprintf(format, i))
		}
		return out
	}
	tooLong := strings.Repeat("a", 254)
	domain200 := strings.Repeat("b", 197) + "%03d"
	for name, c := range map[string]struct {
		servers, searches         []string
		wantServers, wantSearches []string
		wantWarnings              int
	}{
		"all fits":             {many(3, "10.0.0.%d"), many(32, "d%d"), many(3, "10.0.0.%d"), many(32, "d%d"), 0},
		"servers":              {many(5, "10.0.0.%d"), nil, many(3, "10.0.0.%d"), nil, 1},
		"search paths":         {nil, many(33, "d%d"), nil, many(32, "d%d"), 1},
		"both":                 {many(4, "10.0.0.%d"), many(33, "d%d"), many(3, "10.0.0.%d"), many(32, "d%d"), 2},
		"search list":          {nil, many(11, domain200), nil, many(10, domain200), 1}, // 10 domains are 2009 characters
		"one domain too long":  {nil, []string{"a", tooLong, "b"}, nil, []string{"a", "b"}, 1},
		"all domains too long": {nil, []string{tooLong}, nil, nil, 1},
	} {
		pod := testPod()
		pod.Spec.DNSPolicy = corev1.DNSNone
		pod.Spec.DNSConfig = &corev1.PodDNSConfig{Nameservers: c.servers, Searches: c.searches}
		got, warnings, err := dnsConfig(pod, testNode(nodeFacts{}))
		if err != nil || len(warnings) != c.wantWarnings {
			t.Errorf("%s: got warnings %v, error %v", name, warnings, err)
			continue
		}
		for _, w := range warnings {
			if w.Reason != "DNSConfigForming" {
				t.Errorf("%s: got warning %v", name, w)
			}
		}
		if diff := cmp.Diff([][]string{c.wantServers, c.wantSearches}, [][]string{got.Servers, got.Searches}); diff != "" {
			t.Errorf("%s: got %s, want none", name, diff)
		}
	}
}

// TestDNSMessages checks that warnings have the words of the kubelet: runbooks and alerts look for them.
func TestDNSMessages(t *testing.T) {
	pod, node := testPod(), testNode(nodeFacts{NoClusterDNS: true})
	pod.Spec.DNSConfig = &corev1.PodDNSConfig{
		Nameservers: []string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"},
		Searches:    []string{strings.Repeat("a", 254), "b"},
	}
	node.Resolv = ResolvConf{}
	_, got, err := dnsConfig(pod, node)
	want := []Warning{{
		Reason: "MissingClusterDNS",
		Message: `pod: "p_ns(uid-1)". kubelet does not have ClusterDNS IP configured and cannot create Pod using ` +
			`"ClusterFirst" policy. Falling back to "Default" policy.`,
	}, {
		Reason: "DNSConfigForming",
		Message: "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: " +
			"10.0.0.1 10.0.0.2 10.0.0.3",
	}, {
		Reason:  "DNSConfigForming",
		Message: "Search Line limits were exceeded, some search paths have been omitted, the applied search line is: b",
	}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("error %v, got %s", err, diff)
	}
}

// TestDNSSearchLineBoundary checks that the search line may have at most 2048 characters.
func TestDNSSearchLineBoundary(t *testing.T) {
	domains := []string{}
	for range 8 {
		domains = append(domains, strings.Repeat("a", 253))
	}
	domains = append(domains, strings.Repeat("b", 2048-8*254))
	if kept := cutSearch(domains); len(kept) != 9 || len(strings.Join(kept, " ")) != 2048 {
		t.Errorf("got %d domains, want 9", len(kept))
	}
	domains[8] += "b"
	if kept := cutSearch(domains); len(kept) != 8 {
		t.Errorf("a line that is too long: got %d domains, want 8", len(kept))
	}
}

func TestHostname(t *testing.T) {
	long := strings.Repeat("x", 62) + "-" + "y"
	yes, no := true, false
	for name, c := range map[string]struct {
		pod          string
		hostname     string
		subdomain    string
		override     *string
		fqdn         *bool
		host, domain string
		kernel       string
		fails        bool
	}{
		"pod name":           {pod: "web-0", host: "web-0", kernel: "web-0"},
		"pod name with dots": {pod: "a.b", host: "a.b", kernel: "a.b"},
		"pod name too long":  {pod: long, host: long[:62], kernel: long[:62]},
		"63 characters": {
			pod:    strings.Repeat("x", 63),
			host:   strings.Repeat("x", 63),
			kernel: strings.Repeat("x", 63),
		},
		"hostname":           {pod: "p", hostname: "h", host: "h", kernel: "h"},
		"bad hostname":       {pod: "p", hostname: "H_", fails: true},
		"hostname with dots": {pod: "p", hostname: "a.b", fails: true},
		"subdomain":          {pod: "p", subdomain: "s", host: "p", domain: "s.ns.svc.cluster.local", kernel: "p"},
		"bad subdomain":      {pod: "p", subdomain: "a.b", fails: true},
		"fqdn": {
			pod:       "p",
			subdomain: "s",
			fqdn:      &yes,
			host:      "p",
			domain:    "s.ns.svc.cluster.local",
			kernel:    "p.s.ns.svc.cluster.local",
		},
		"fqdn off": {
			pod:       "p",
			subdomain: "s",
			fqdn:      &no,
			host:      "p",
			domain:    "s.ns.svc.cluster.local",
			kernel:    "p",
		},
		"fqdn without domain": {pod: "p", fqdn: &yes, host: "p", kernel: "p"},
		"fqdn too long":       {pod: strings.Repeat("x", 50), subdomain: "s", fqdn: &yes, fails: true},
		"override": {
			pod:       "p",
			hostname:  "h",
			subdomain: "s",
			fqdn:      &yes,
			override:  new("my.host"),
			host:      "my.host",
			kernel:    "my.host",
		},
		"override too long":      {pod: "p", override: new(long), host: long[:62], kernel: long[:62]},
		"bad override":           {pod: "p", override: new("-"), fails: true},
		"empty override":         {pod: "p", override: new(""), fails: true},
		"empty after truncation": {pod: strings.Repeat("-", 64), fails: true},
	} {
		pod := testPod()
		pod.Name = c.pod
		pod.Spec.Hostname = c.hostname
		pod.Spec.Subdomain, pod.Spec.HostnameOverride = c.subdomain, c.override
		pod.Spec.SetHostnameAsFQDN = c.fqdn
		kernel, err := kernelHostname(pod, "cluster.local")
		if (err != nil) != c.fails || kernel != c.kernel {
			t.Errorf("%s: got kernel host name %q, %v", name, kernel, err)
		}
		if c.fails {
			continue
		}
		if host, domain, err := hostname(pod, "cluster.local"); err != nil || host != c.host || domain != c.domain {
			t.Errorf("%s: got %q, %q, %v", name, host, domain, err)
		}
	}
	// The kernel accepts at most 64 characters. Programs look for the first words of the error.
	pod := testPod()
	pod.Name = strings.Repeat("x", 64-len(".s.ns.svc.cluster.local"))
	pod.Spec.Subdomain, pod.Spec.SetHostnameAsFQDN = "s", &yes
	if name, err := kernelHostname(pod, "cluster.local"); err != nil || len(name) != 64 {
		t.Errorf("got %q, %v, want a name of 64 characters", name, err)
	}
	pod.Name += "x"
	want := "failed to construct FQDN from pod hostname and cluster domain, FQDN " + pod.Name + ".s.ns.svc.cluster.local "
	if _, err := kernelHostname(pod, "cluster.local"); err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("a longer name: got error %v, want one that begins with %q", err, want)
	}
}

func TestHostsFile(t *testing.T) {
	node := testNode(nodeFacts{})
	pod := testPod()
	pod.Spec.Subdomain = "sub"
	pod.Spec.HostAliases = []corev1.HostAlias{{IP: "127.000.0.1", Hostnames: []string{"a", "b.c"}}, {IP: "::1"}}
	got, err := HostsFile(pod, node, []string{"10.0.0.1", "fd00::1"}, []byte("not looked at"))
	want := "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n" +
		"fe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n" +
		"10.0.0.1\tp.sub.ns.svc.cluster.local\tp\nfd00::1\tp.sub.ns.svc.cluster.local\tp\n" +
		"\n# Entries added by HostAliases.\n127.000.0.1\ta\tb.c\n::1\t\n"
	if diff := cmp.Diff(want, string(got)); err != nil || diff != "" {
		t.Errorf("got the error %v, and -want +got:\n%s", err, diff)
	}
	pod.Spec.HostNetwork = true
	got, err = HostsFile(pod, node, nil, []byte("127.0.0.1 me\n"))
	want = "# Kubernetes-managed hosts file (host network).\n127.0.0.1 me\n\n# Entries added by HostAliases.\n" +
		"127.000.0.1\ta\tb.c\n::1\t\n"
	if diff := cmp.Diff(want, string(got)); err != nil || diff != "" {
		t.Errorf("host network: got the error %v, and -want +got:\n%s", err, diff)
	}
}

func TestHostsFileRefuses(t *testing.T) {
	for name, change := range map[string]func(*corev1.Pod){
		"bad address": func(p *corev1.Pod) { p.Spec.HostAliases = []corev1.HostAlias{{IP: "1.2.3.4\n5.6.7.8"}} },
		"no address":  func(p *corev1.Pod) { p.Spec.HostAliases = []corev1.HostAlias{{}} },
		"bad name": func(p *corev1.Pod) {
			p.Spec.HostAliases = []corev1.HostAlias{{IP: "::1",
				Hostnames: []string{"a\nb"}}}
		},
		"bad host": func(p *corev1.Pod) { p.Spec.Hostname = "a b" },
	} {
		pod := testPod()
		change(pod)
		if got, err := HostsFile(pod, testNode(nodeFacts{}), nil, nil); err == nil {
			t.Errorf("%s: got %q, want an error", name, got)
		}
	}
}
