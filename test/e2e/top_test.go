//go:build e2e

package e2e

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/nodelet/nodelet/test/testbed"
)

// metricsAPI registers the metrics-server in the node's network for the resource metrics API. A Service of type
// ExternalName leads to its address without kube-proxy.
const metricsAPI = `
apiVersion: v1
kind: Service
metadata: {name: metrics-server, namespace: kube-system}
spec: {type: ExternalName, externalName: %s, ports: [{port: 4443}]}
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1beta1.metrics.k8s.io}
spec:
  group: metrics.k8s.io
  version: v1beta1
  groupPriorityMinimum: 100
  versionPriority: 100
  insecureSkipTLSVerify: true
  service: {name: metrics-server, namespace: kube-system, port: 4443}
`

// TestLongTop checks that kubectl top shows the node and its pods through a real metrics-server.
func TestLongTop(t *testing.T) {
	clean(t)
	sameAgent(t)
	program, err := cache(t).Program(t.Context(), "metrics-server", "metrics-server")
	if err != nil {
		t.Fatal(err)
	}
	apply(t, `
apiVersion: v1
kind: Pod
metadata: {name: top-busy, namespace: default}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: busy
    image: `+testbed.AgnhostImage+`
    command: [sh, -c, "while true; do :; done"]
    resources: {limits: {cpu: 200m, memory: 64Mi}}
  - name: idle
    image: `+testbed.AgnhostImage+`
    args: [pause]
`)
	waitReady(t, "top-busy")
	runOnNode(t, program, "--kubeconfig="+tb.Kubeconfig, "--authentication-kubeconfig="+tb.Kubeconfig,
		"--authorization-kubeconfig="+tb.Kubeconfig, "--bind-address="+node().IP, "--secure-port=4443",
		"--cert-dir="+t.TempDir(),
		"--kubelet-preferred-address-types=InternalIP", "--kubelet-insecure-tls", "--metric-resolution=10s",
		"--kubelet-request-timeout=5s")
	apply(t, fmt.Sprintf(metricsAPI, node().IP))

	var nodeLine, pods string
	eventually(t, "kubectl top shows node and pods", func() (string, bool) {
		var err error
		if nodeLine, err = tb.Kubectl(t.Context(), "top", "node", node().Name, "--no-headers"); err != nil {
			return err.Error(), false
		}
		pods, err = tb.Kubectl(t.Context(), "top", "pod", "top-busy", "--containers", "--no-headers")
		return fmt.Sprint(nodeLine, pods, err), err == nil && strings.Contains(pods, "busy")
	})
	t.Logf("kubectl top node:\n%s\nkubectl top pod --containers:\n%s", nodeLine, pods)
	seen := map[string][2]string{}
	for line := range strings.Lines(pods) {
		if f := strings.Fields(line); len(f) == 4 {
			seen[f[1]] = [2]string{f[2], f[3]}
		}
	}
	if cpu := amount(t, seen["busy"][0], "m"); cpu < 50 || cpu > 260 {
		t.Errorf("CPU of busy: got %dm, want 50m to 260m with a limit of 200m", cpu)
	}
	if cpu := amount(t, seen["idle"][0], "m"); cpu > 40 {
		t.Errorf("CPU of idle: got %dm, want at most 40m", cpu)
	}
	if memory := amount(t, seen["busy"][1], "Mi"); memory > 64 {
		t.Errorf("memory of busy: got %dMi, want at most its limit of 64Mi", memory)
	}
	f := strings.Fields(nodeLine)
	if len(f) != 5 || amount(t, f[1], "m") == 0 || amount(t, f[3], "Mi") == 0 {
		t.Errorf("kubectl top node: got %q, want five fields with CPU and memory", nodeLine)
	}
}

// amount parses a number with a unit.
func amount(t *testing.T, text, unit string) int {
	t.Helper()
	number, ok := strings.CutSuffix(text, unit)
	n, err := strconv.Atoi(number)
	if !ok || err != nil {
		t.Errorf("parse an amount: got %q, want a number in %s", text, unit)
	}
	return n
}
