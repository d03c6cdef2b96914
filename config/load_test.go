package config

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nodelet/nodelet/internal/strict"
)

const head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"

// write writes a file with apiVersion, kind and body, and returns its name.
func write(t *testing.T, name, body string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(head+body), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// load loads a file with this body and flags; the name of the node does not depend on the machine.
func load(t *testing.T, body string, args ...string) (*Config, error) {
	t.Helper()
	return Load(append([]string{"--config", write(t, "config.yaml", body), "--hostname-override=node-1"}, args...))
}

func mustLoad(t *testing.T, body string, args ...string) *Config {
	t.Helper()
	c, err := load(t, body, args...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestAnswers checks that nodelet accepts and rejects the same files as the kubelet.
func TestAnswers(t *testing.T) {
	differs := map[string]string{
		// The kubelet refuses gates whose dependencies are off, also those of other programs that AllAlpha turns on.
		"split stream with all alpha gates": "accept",
		// The API server would refuse the node with it, so nodelet refuses to start.
		"taint without effect": "reject",
	}
	text, err := os.ReadFile("testdata/answers.txt")
	if err != nil {
		t.Fatal(err)
	}
	cases := strings.Split(string(text), "\n== ")[1:]
	for _, c := range cases {
		title, body, _ := strings.Cut(c, "\n")
		want, name, _ := strings.Cut(title, " ")
		t.Run(name, func(t *testing.T) {
			if other, ok := differs[name]; ok {
				want = other
			}
			_, err := load(t, body)
			if got := map[bool]string{true: "accept", false: "reject"}[err == nil]; got != want {
				t.Errorf("got %s (%v), want %s", got, err, want)
			}
		})
	}
	if len(cases) < 100 {
		t.Errorf("got %d cases, want at least 100", len(cases))
	}
}

// TestErrorsSayWhatToDo checks the texts of errors: file, field, value, what is allowed, and a similar name.
func TestErrorsSayWhatToDo(t *testing.T) {
	for _, c := range []struct {
		body string
		args []string
		want string
	}{
		{"maxPodz: 10", nil, `config.yaml: maxPodz: unknown field; did you mean "maxPods"?`},
		{"maxpods: 10", nil, `config.yaml: maxpods: unknown field; did you mean "maxPods"?`},
		{"authentication: {webhook: {enable: true}}", nil,
			`authentication.webhook.enable: unknown field; did you mean "enabled"?`},
		{"shutdownGracePeriodByPodPriority: [{prio: 1}]", nil, `shutdownGracePeriodByPodPriority[0].prio: unknown field`},
		{"maxPods: many", nil, `config.yaml: maxPods: "many" is not a whole number of 32 bits`},
		{"maxPods: [1]", nil, `maxPods: a list is not a whole number of 32 bits`},
		{"clusterDNS: 10.0.0.1", nil, `clusterDNS: "10.0.0.1" is not a list`},
		{"staticPodURLHeader: {Authorization: Bearer x}", nil,
			"staticPodURLHeader[Authorization]: the value (not shown) is not a list"},
		{"systemReserved: {cpu: 1}", nil, `systemReserved[cpu]: 1 is not text; put it in quotes: "1"`},
		{"syncFrequency: 10", nil, `syncFrequency: 10 is not a duration such as 30s, 5m or 1h30m`},
		{"reservedMemory: [{numaNode: 0, limits: {memory: lots}}]", nil,
			`reservedMemory[0].limits[memory]: "lots" is not a quantity`},
		{"maxPodz: 1\nporrt: 2", nil, "porrt: unknown field"}, // both at once
		{"maxPods: 1\nmaxPods: 2", nil, `key "maxPods" already set`},
		{"cgroupDriver: system", nil,
			`cgroupDriver (--cgroup-driver): "system" is not one of "cgroupfs", "systemd"; did you mean "systemd"?`},
		{"cpuManagerPolicy: static\nkubeReserved: {cpu: '0'}", nil,
			`cpuManagerPolicy (--cpu-manager-policy): static needs CPUs for the system: set reservedSystemCPUs`},
		{"cpuManagerPolicyOptions: {full-pcpus-only: 'true'}", nil,
			`cpuManagerPolicyOptions (--cpu-manager-policy-options): needs cpuManagerPolicy: static`},
		{"allowedUnsafeSysctls: [net.core.*, vm.swappiness]", nil,
			`allowedUnsafeSysctls (--allowed-unsafe-sysctls): "vm.swappiness" is not known to be namespaced`},
		{"allowedUnsafeSysctls: [net.*.forwarding]", nil,
			`"net.*.forwarding" is neither the name of a sysctl nor its beginning with a star`},
		{"memoryManagerPolicy: Static", nil,
			`memoryManagerPolicy (--memory-manager-policy): Static needs memory for the system: set reservedMemory`},
		{"imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages\n" +
			"preloadedImagesVerificationAllowlist: ['r.io:5000/app:1']", nil,
			`preloadedImagesVerificationAllowlist: "r.io:5000/app:1" has a tag or a digest; write "r.io:5000/app"`},
		{"", []string{"/etc/c.yaml"},
			`unexpected argument "/etc/c.yaml": name a configuration file with --config=/etc/c.yaml`},
		{"imageGCLowThresholdPercent: 90", nil,
			`imageGCLowThresholdPercent (--image-gc-low-threshold): 90 is not below imageGCHighThresholdPercent (85)`},
		{"evictionHard: {memory.availble: 1Gi}", nil,
			`evictionHard (--eviction-hard): "memory.availble" is not a valid eviction signal; ` +
				`did you mean "memory.available"?`},
		{"", []string{"--max-podz=3"}, "unknown flag --max-podz; did you mean --max-pods? (see --help and --help-all)"},
		{"", []string{"--manifest=/x"}, "unknown flag --manifest; did you mean --manifests? (see --help and --help-all)"},
		{"", []string{"--quux-frobnicate"}, "unknown flag --quux-frobnicate (see --help and --help-all)"},
		{"", []string{"--max-pods=many"}, `--max-pods: "many" is not a whole number`},
		{"", []string{"--max-pods"}, "--max-pods needs a value: --max-pods=int"},
		{"", []string{"--sync-frequency=10"}, `--sync-frequency: "10" is not a duration`},
		{"", []string{"--address=here"}, `--address: "here" is not an IP address`},
		{"clusterDomain: \"a b\"", nil, `"a b" is not a domain name: it contains a space`},
		{"", []string{"--register-with-taints=a=b"},
			`--register-with-taints: taint "a=b" is not of the form key=value:Effect`},
		{"", []string{"run"}, `unexpected argument "run"`},
		{"", []string{"--port=0"}, "port (--port): 0 is not between 1 and 65535"},
		{"", []string{"--hostname-override=My_Node"}, `--hostname-override "my_node" cannot be the name of a node`},
		{"", []string{"--node-ip=10.0.0.1,10.0.0.2"}, "--node-ip: 10.0.0.1,10.0.0.2 is neither one address nor a pair"},
		{"", []string{"--node-ip=::,10.0.0.2"}, "cannot be part of a pair"},
		{"", []string{"--node-labels=node-role.kubernetes.io/worker=true"},
			"must not set the label node-role.kubernetes.io/worker on itself"},
		{"", []string{"--cloud-provider=aws"}, `--cloud-provider: "aws" has been removed from Kubernetes`},
		{"", []string{"--config-dir=/does/not/exist"}, "--config-dir"},
		{"", []string{"--config=/does/not/exist"}, "/does/not/exist: no such file or directory; on a node of kubeadm, "},
		{"", []string{"--bootstrap-kubeconfig=/b"}, "--bootstrap-kubeconfig needs --kubeconfig"},
		{"---\nmaxPods: 5", nil, "more than one document"},
		{"---\n# nothing\n--- {maxPods: 5}", nil, "more than one document"},
	} {
		_, err := load(t, c.body, c.args...)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q %q:\n got %v\nwant %s", c.body, c.args, err, c.want)
		}
	}
}

// TestEmptyDocuments checks that documents without content beside the first one do not count, as in the kubelet.
func TestEmptyDocuments(t *testing.T) {
	for _, text := range []string{
		head + "maxPods: 5\n---\n",
		head + "maxPods: 5\n--- \n# nothing\n\n---",
		"# first\n---\n" + head + "maxPods: 5\n...\n",
	} {
		tree, err := strict.Parse([]byte(text), KubeletConfiguration{}, Kind, APIVersion)
		if err != nil || fmt.Sprint(tree["maxPods"]) != "5" {
			t.Errorf("%q: got %v, %v, want maxPods 5", text, tree, err)
		}
	}
}

func TestApiVersionAndKind(t *testing.T) {
	for body, want := range map[string]string{
		"":               "the file is empty",
		"maxPods: 10":    "apiVersion is missing; want apiVersion: kubelet.config.k8s.io/v1beta1",
		"[1, 2]":         "the file contains a list",
		"apiVersion: v1": `apiVersion: unsupported value "v1"; want kubelet.config.k8s.io/v1beta1`,
		"apiVersion: " + APIVersion + "\nkind: KubeProxyConfiguration": `kind: unsupported value "KubeProxyConfiguration"`,
	} {
		_, err := strict.Parse([]byte(body), KubeletConfiguration{}, Kind, APIVersion)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %s", body, err, want)
		}
	}
}

// TestPrecedence checks the order: defaults, then the file, then drop-ins in lexical order, then flags.
func TestPrecedence(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "30-sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, body := range map[string]string{
		"20-b.conf":        "maxPods: 20\nevictionHard: {memory.available: 2Gi}\nclusterDNS: [10.0.0.2]\n",
		"10-a.conf":        "maxPods: 10\npodsPerCore: 1\nregistryBurst: 7\n",
		"30-sub/c.conf":    "podsPerCore: null\nevictionHard: {nodefs.available: null, imagefs.available: 1Gi}\n",
		"99-ignored.yaml":  "maxPods: 99\n",
		"30-sub/.hid.conf": "eventBurst: 5\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(head+body), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	body := "maxPods: 5\nport: 1000\nevictionHard: {nodefs.available: 5%}\n" +
		"clusterDNS: [10.0.0.1, 10.0.0.9]\n" +
		"featureGates: {AllBeta: true, NodeSwap: true}\n"
	c := mustLoad(t, body, "--config-dir", dir, "--port=2000", "--feature-gates=AllBeta=false", "--registry-burst=9",
		"--registry-burst", "8", "--cluster_domain=example.org")
	k := c.Kubelet
	if k.MaxPods != 20 || k.Port != 2000 || k.PodsPerCore != 0 || k.RegistryBurst != 8 || k.EventBurst != 5 ||
		k.ClusterDomain != "example.org" {
		t.Errorf("got maxPods %d, port %d, podsPerCore %d, registryBurst %d, eventBurst %d, domain %q; "+
			"want 20, 2000, 0, 8, 5, example.org",
			k.MaxPods, k.Port, k.PodsPerCore, k.RegistryBurst, k.EventBurst, k.ClusterDomain)
	}
	if want := map[string]string{"memory.available": "2Gi", "imagefs.available": "1Gi"}; !cmp.Equal(k.EvictionHard, want) {
		t.Errorf("evictionHard: got %v, want %v", k.EvictionHard, want)
	}
	if want := []string{"10.0.0.2"}; !cmp.Equal(k.ClusterDNS, want) {
		t.Errorf("clusterDNS: got %v, want %v", k.ClusterDNS, want)
	}
	if want := map[string]bool{"AllBeta": false, "NodeSwap": true}; !cmp.Equal(k.FeatureGates, want) {
		t.Errorf("featureGates: got %v, want %v", k.FeatureGates, want)
	}
}

// TestFlagsMeanZero checks that a flag can set zero where zero in a file means the default.
func TestFlagsMeanZero(t *testing.T) {
	c := mustLoad(t, "", "--max-pods=0", "--streaming-connection-idle-timeout=0", "--eviction-hard=", "--resolv-conf=",
		"--healthz-port=0")
	k := c.Kubelet
	if k.MaxPods != 0 || k.StreamingConnectionIdleTimeout.Duration != 0 || len(c.Thresholds()) != 0 ||
		*k.ResolverConfig != "" || c.Healthz().Port() != 0 {
		t.Errorf("got %d pods, %v idle, the thresholds %v, resolvConf %q and the health checks at %s; want 0 and none",
			k.MaxPods, k.StreamingConnectionIdleTimeout, c.Thresholds(), *k.ResolverConfig, c.Healthz())
	}
}

// TestNegativeLogSize checks that a negative size, which turns the rotation of logs off, is accepted as by the kubelet.
func TestNegativeLogSize(t *testing.T) {
	if got := mustLoad(t, "containerLogMaxSize: \"-1\"\n").Kubelet.ContainerLogMaxSize; got != "-1" {
		t.Errorf("got %s, want -1", got)
	}
}

// TestLooseNames checks names that the kubelet accepts, although one is no address and the other no name of Kubernetes.
func TestLooseNames(t *testing.T) {
	c := mustLoad(t, "healthzBindAddress: localhost\nclusterDomain: My_Cluster.local.\n")
	if got := c.Healthz().Addr().String(); got != "127.0.0.1" {
		t.Errorf("healthzBindAddress: got %s, want 127.0.0.1", got)
	}
}

// TestReservedCPUIsRounded checks that reserved CPU has whole thousandths, as with the kubelet: so has Allocatable.
func TestReservedCPUIsRounded(t *testing.T) {
	for text, want := range map[string]string{"100.6m": "101m", "0.0001": "0", "80m": "80m", "1.5": "1500m"} {
		c := mustLoad(t, "systemReserved: {cpu: '"+text+"', memory: 1500m}\n")
		system := c.Reserved().System
		if got := system.Cpu(); got.Cmp(resource.MustParse(want)) != 0 {
			t.Errorf("cpu %s: got %s reserved, want %s", text, got, want)
		}
		if got := system.Memory().String(); got != "1500m" {
			t.Errorf("memory 1500m: got %s reserved, want it unchanged", got)
		}
	}
}

// TestReservedCPUsReplaceOthers checks that reservedSystemCPUs counts instead of the CPU in the other reservations, as
// with the kubelet.
func TestReservedCPUsReplaceOthers(t *testing.T) {
	c := mustLoad(t, "reservedSystemCPUs: '0'\nkubeReserved: {cpu: 500m, memory: 1Gi}\nsystemReserved: {cpu: '2'}\n")
	r := c.Reserved()
	if kube, system := r.Kube.Cpu(), r.System.Cpu(); !kube.IsZero() || system.Value() != 1 {
		t.Errorf("got %s and %s of CPU reserved, want 0 and 1", kube, system)
	}
	if got := r.Kube.Memory().String(); got != "1Gi" {
		t.Errorf("got %s of memory reserved, want 1Gi", got)
	}
}

// TestOldestTLS checks that the kubelet API refuses TLS 1.0 and 1.1 without a setting.
func TestOldestTLS(t *testing.T) {
	if got := mustLoad(t, "").TLS().MinVersion; got != tls.VersionTLS12 {
		t.Errorf("got %s as the oldest version, want TLS 1.2", tls.VersionName(got))
	}
}

func TestConfigValue(t *testing.T) {
	c := mustLoad(t, "clusterDNS: [10.0.0.9]\nkubeReserved: {cpu: 1m}\nmaxParallelImagePulls: 4\n"+
		"tlsMinVersion: VersionTLS13\n"+
		"tlsCipherSuites: [TLS_AES_128_GCM_SHA256, TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305]\n",
		"--cluster-dns=10.0.0.1,10.0.0.2", "--cluster-dns=fd00::1",
		"--kube-reserved=cpu=100m,memory=1Gi", "--kube-reserved=pid=10",
		"--eviction-hard=memory.available<1Gi,nodefs.available<10%,imagefs.available<0%",
		"--register-with-taints=a=b:NoSchedule,c:NoExecute",
		"--node-labels=x=y,bare,a.k8s.io=b", "--node-labels=node.kubernetes.io/z=1", "--node-ip=10.0.0.5, fd00::5",
		"--reserved-memory=0:memory=1Gi,hugepages-2Mi=2Gi;1:memory=2Gi", "--reserved-memory=2:memory=3Gi",
		"--manifest-url-header=A:1,A:2", "--vmodule=", "--log-format=json", "-v4", "--manifests=/m",
		"--fail-swap-on=false", "--seccomp-default", "--cloud-provider=external")
	same := func(what string, got, want any) {
		t.Helper()
		if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	same("DNS", c.Kubelet.ClusterDNS, []string{"10.0.0.1", "10.0.0.2", "fd00::1"})
	same("node IPs", c.Node.IPs, []netip.Addr{netip.MustParseAddr("10.0.0.5"), netip.MustParseAddr("fd00::5")})
	same("taints", c.Kubelet.RegisterWithTaints, []corev1.Taint{
		{Key: "a", Value: "b", Effect: "NoSchedule"},
		{Key: "c", Effect: "NoExecute"},
	})
	same("labels", c.Node.Labels, map[string]string{
		"x": "y", "bare": "", "a.k8s.io": "b", "node.kubernetes.io/z": "1",
	})
	same("cloud", c.Node.ExternalCloud, true)
	same("name", c.Node.Name, "node-1")
	same("reserved names", len(c.Reserved().Kube), 3)
	same("NUMA nodes", len(c.Kubelet.ReservedMemory), 3)
	same("headers", c.Kubelet.StaticPodURLHeader, map[string][]string{"A": {"1", "2"}})
	same("log format", c.Kubelet.Logging.Format, "json")
	same("verbosity", c.Kubelet.Logging.Verbosity, uint32(4))
	same("manifests", c.Kubelet.StaticPodPath, "/m")
	same("swap", *c.Kubelet.FailSwapOn, false)
	same("seccomp", *c.Kubelet.SeccompDefault, true)
	same("parallel pulls", *c.Kubelet.MaxParallelImagePulls, int32(4))
	same("TLS", c.TLS().MinVersion, uint16(0x0304))
	same("ciphers", c.TLS().CipherSuites, []uint16{0x1301, 0xcca8})
	same("thresholds", len(c.Thresholds()), 2)
	same("share", c.Thresholds()[1].Value.Percentage, 10.0)
	same("address", c.Server().String(), "0.0.0.0:10250")
	same("lease", c.Kubelet.NodeLeaseDurationSeconds, int32(40))
}

// TestDropInThresholds checks that a drop-in file with one threshold leaves the defaults of the other signals, unless
// the main file has thresholds. The main file alone says whether its thresholds are merged with the defaults.
func TestDropInThresholds(t *testing.T) {
	const one, merge = "evictionHard: {nodefs.available: 5%}\n", "mergeDefaultEvictionSettings: true\n"
	for _, c := range []struct {
		main, dropIn string
		want         int
	}{
		{"", "", len(defaultEvictionHard)},
		{one, "", 2},
		{one + merge, "", len(defaultEvictionHard)},
		{one + merge, "mergeDefaultEvictionSettings: false\n", len(defaultEvictionHard)},
		{one, merge, 2},
		{"evictionHard: {}\n", "", 1},
	} {
		got := mustLoad(t, c.main, "--config-dir", dropInDir(t, "evictionHard: {memory.available: 2Gi}\n"+c.dropIn))
		if hard := got.Kubelet.EvictionHard; len(hard) != c.want || hard["memory.available"] != "2Gi" {
			t.Errorf("%q and %q: got %v, want %d thresholds with 2Gi of memory", c.main, c.dropIn, hard, c.want)
		}
	}
}

// TestShownFlags checks that /flagz shows all flags: what was given, the defaults, and no secrets.
func TestShownFlags(t *testing.T) {
	got := mustLoad(t, "maxPods: 7\n", "--v=3", "--cluster-dns=10.0.0.1,10.0.0.2", "--feature-gates=PodsAPI=false",
		"--manifest-url-header=Authorization:secret", "--manifest-url=http://me:secret@h/",
		"--storage-driver-password=secret").Flags
	for flag, want := range map[string]string{
		"v":                   "3",
		"cluster-dns":         "[10.0.0.1,10.0.0.2]",
		"feature-gates":       "PodsAPI=false",
		"manifest-url-header": "1 headers, masked",
		"manifest-url":        "http://me:xxxxx@h/",
		"max-pods":            "110",
		"root-dir":            DefaultRoot,
		"sync-frequency":      "1m0s",
		"tls-cipher-suites":   "[]",
		"fail-swap-on":        "true",

		"storage-driver-password": "masked",
	} {
		if got[flag] != want {
			t.Errorf("%s: got %q, want %q", flag, got[flag], want)
		}
	}
	for _, k := range settingTable {
		if _, shown := got[k.flag]; k.flag != "" && !shown {
			t.Errorf("got no --%s, want it shown", k.flag)
		}
	}
}

func TestCrashLoopCurve(t *testing.T) {
	for body, want := range map[string][2]time.Duration{
		"": {10 * time.Second, 5 * time.Minute},
		"crashLoopBackOff: {maxContainerRestartPeriod: 60s}": {10 * time.Second,
			time.Minute},
		"crashLoopBackOff: {maxContainerRestartPeriod: 2s}": {2 * time.Second,
			2 * time.Second},
		"featureGates: {ReduceDefaultCrashLoopBackOffDecay: true}": {time.Second,
			5 * time.Minute},
		"featureGates: {ReduceDefaultCrashLoopBackOffDecay: true, KubeletCrashLoopBackOffMax: false}": {time.Second,
			time.Minute},
	} {
		first, longest := mustLoad(t, body).CrashLoop()
		if got := [2]time.Duration{first, longest}; got != want {
			t.Errorf("%q: got %v, want %v", body, got, want)
		}
	}
}

// TestDefaultsAreSafe checks that the secure defaults of the file apply also without a file.
func TestDefaultsAreSafe(t *testing.T) {
	c, err := Load([]string{"--hostname-override=Node-1"})
	if err != nil {
		t.Fatal(err)
	}
	k := c.Kubelet
	if *k.Authentication.Anonymous.Enabled || k.Authorization.Mode != "Webhook" || !*k.Authentication.Webhook.Enabled ||
		k.ReadOnlyPort != 0 || len(c.Thresholds()) != 5 {
		t.Errorf("got %+v, %+v, the read-only port %d and the thresholds %v; want the secure defaults", k.Authentication,
			k.Authorization, k.ReadOnlyPort, c.Thresholds())
	}
	if c.Node.Name != "node-1" || len(c.Warnings) != 0 {
		t.Errorf("got the name %q and the warnings %v, want node-1 and none", c.Node.Name, c.Warnings)
	}
}

func TestTextRequests(t *testing.T) {
	for flag, want := range map[string]string{
		"--help-all":    "(-) --qos-reserved",
		"--version":     "Kubernetes " + KubernetesVersion + "+nodelet.",
		"--version=raw": "Kubernetes " + KubernetesVersion + "+nodelet.",
	} {
		_, err := Load([]string{flag})
		if text, ok := errors.AsType[*TextRequest](err); !ok || !strings.Contains(text.Text, want) {
			t.Errorf("%s: got %v, want %q", flag, err, want)
		}
	}
	for _, flag := range []string{"--help", "-h"} {
		_, err := Load([]string{flag})
		if text, ok := errors.AsType[*TextRequest](err); !ok || !text.Help ||
			!strings.Contains(FlagHelp(), "--kubeconfig FILE") {
			t.Errorf("%s: got %v, want a request for help", flag, err)
		}
	}
	if _, err := load(t, "", "--version=false"); err != nil {
		t.Error(err)
	}
}

// TestMachineIsRefusedIfAsked checks that only a setting that was written makes the agent refuse a machine: the
// kubelet's defaults would keep nodelet from machines on which it works.
func TestMachineIsRefusedIfAsked(t *testing.T) {
	for _, c := range []struct {
		body   string
		args   []string
		v1, on bool
	}{
		{"", nil, false, false},
		{"", []string{"--fail-cgroupv1=true", "--fail-swap-on"}, true, true},
		{"", []string{"--fail-cgroupv1=false", "--fail-swap-on=false"}, false, false},
		{"failSwapOn: true\n", nil, false, true},
	} {
		cfg := mustLoad(t, c.body, c.args...)
		if v1, on := cfg.RefusesCgroupV1(), cfg.RefusesSwap(); v1 != c.v1 || on != c.on {
			t.Errorf("%q %q: got cgroup v1 refused: %v, swap: %v, want %v, %v", c.body, c.args, v1, on, c.v1, c.on)
		}
	}
}

// TestSeccompFlagOnlyTurnsOn checks that --seccomp-default=false does not replace the value of the file, as with the
// kubelet.
func TestSeccompFlagOnlyTurnsOn(t *testing.T) {
	for _, c := range []struct {
		body, flag string
		want       bool
	}{
		{"seccompDefault: true\n", "--seccomp-default=false", true},
		{"seccompDefault: false\n", "--seccomp-default", true},
		{"seccompDefault: false\n", "--seccomp-default=false", false},
		{"", "--seccomp-default=false", false},
	} {
		if got := *mustLoad(t, c.body, c.flag).Kubelet.SeccompDefault; got != c.want {
			t.Errorf("%q with %s: got %v, want %v", c.body, c.flag, got, c.want)
		}
	}
}
