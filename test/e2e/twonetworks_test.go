//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/test/testbed"
)

const definitionsYAML = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: network-attachment-definitions.k8s.cni.cncf.io}
spec:
  group: k8s.cni.cncf.io
  scope: Namespaced
  names: {plural: network-attachment-definitions, singular: network-attachment-definition,
    kind: NetworkAttachmentDefinition}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object,
properties: {spec: {type: object,
    properties: {config: {type: string}}}}}}}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: nodelet-networks}
rules: [{apiGroups: [k8s.cni.cncf.io], resources: [network-attachment-definitions], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: nodelet-networks}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: nodelet-networks}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: system:nodes}]
`

const wideYAML = `
apiVersion: k8s.cni.cncf.io/v1
kind: NetworkAttachmentDefinition
metadata: {name: wide}
spec:
  config: |
    {"cniVersion": "1.0.0", "type": "macvlan", "master": "eth0", "mode": "bridge", "ipam": {"type": "host-local",
     "dataDir": %q, "ranges": [[{"subnet": "192.0.2.0/24"}]], "routes": [{"dst": "198.51.100.0/24",
       "gw": "192.0.2.1"}]}}
`

const fileNetwork = `{"cniVersion": "1.0.0", "name": "second", "plugins": [{"type": "bridge", "bridge": "second0",
	"capabilities": {"mac": true},
  "ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "203.0.113.0/24"}]]}}]}`

const manyNetsYAML = `
apiVersion: v1
kind: Pod
metadata:
  name: many
  annotations:
    k8s.v1.cni.cncf.io/networks: '[{"name": "wide"}, {"name": "second", "interface": "sec0",
      "mac": "0a:58:cb:00:71:09"}]'
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: app, image: "registry.k8s.io/e2e-test-images/busybox:1.37.0-1", command: [sleep, "3600"]}]
`

// TestLongTwoNetworks runs a pod with a macvlan network from a NetworkAttachmentDefinition and a second bridge from a
// file on the node.
func TestLongTwoNetworks(t *testing.T) {
	dir := t.TempDir()
	onTestbed(t, testbed.Options{
		Name:      "nets",
		Network:   "agent",
		AgentArgs: []string{"-v=4", "--cni-networks-dir=" + dir, "--cni-check-period=2s"},
	})
	addresses := filepath.Join(node().RootDir, "cni/addresses")
	if err := os.WriteFile(filepath.Join(dir, "second.conflist"), fmt.Appendf(nil, fileNetwork, addresses),
		0o644); err != nil {
		t.Fatal(err)
	}
	apply(t, definitionsYAML)
	kubectl(t, "wait", "--for=condition=Established", "crd/network-attachment-definitions.k8s.cni.cncf.io",
		"--timeout=30s")
	apply(t, fmt.Sprintf(wideYAML, addresses))
	apply(t, manyNetsYAML)
	pod := waitReady(t, "many")

	var status []struct {
		Name, Interface, MAC string
		IPs                  []string
		Default              bool
	}
	pod = waitPod(t, "many", "has the status annotation", func(p *corev1.Pod) bool {
		return p.Annotations["k8s.v1.cni.cncf.io/network-status"] != ""
	})
	text := pod.Annotations["k8s.v1.cni.cncf.io/network-status"]
	if err := json.Unmarshal([]byte(text), &status); err != nil || len(status) != 3 {
		t.Fatalf("status annotation: got %d networks, %v; want 3\n%s", len(status), err, text)
	}
	for i, want := range []struct{ name, ifName, ip string }{
		{"nodelet", "eth0", pod.Status.PodIP}, {"default/wide", "net1", "192.0.2."}, {"default/second", "sec0", "203.0.113."},
	} {
		got := status[i]
		if got.Name != want.name || got.Interface != want.ifName || got.Default != (i == 0) || len(got.IPs) != 1 ||
			!strings.HasPrefix(got.IPs[0], want.ip) {
			t.Errorf("network %d: got %+v, want %+v", i, got, want)
			continue
		}
		shown := shell(t, "many", "app", "ip addr show dev "+want.ifName)
		if !strings.Contains(shown, got.IPs[0]+"/") || !strings.Contains(shown, got.MAC) {
			t.Errorf("status annotation: got %+v, want what the pod has:\n%s", got, shown)
		}
	}
	if status[2].MAC != "0a:58:cb:00:71:09" {
		t.Errorf("MAC address of sec0: got %s, want the requested 0a:58:cb:00:71:09", status[2].MAC)
	}
	checkNotices(t, pod)
	kubectl(t, "delete", "pod", "many", "--wait=true")
	replaceDefaultNetwork(t)
}

const insteadYAML = `
apiVersion: v1
kind: Pod
metadata:
  name: instead
  annotations: {v1.multus-cni.io/default-network: '[{"name": "second", "mac": "0a:58:cb:00:71:0a"}]'}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: app, image: "registry.k8s.io/e2e-test-images/busybox:1.37.0-1", command: [sleep, "3600"]}]
`

// replaceDefaultNetwork runs a pod with another default network than the node's, and one that requests a capability
// that no plugin of that network has.
func replaceDefaultNetwork(t *testing.T) {
	t.Helper()
	apply(t, insteadYAML)
	pod := waitReady(t, "instead")
	shown := shell(t, "instead", "app", "ip addr")
	if !strings.HasPrefix(pod.Status.PodIP, "203.0.113.") ||
		!strings.Contains(shown, pod.Status.PodIP+"/24 scope global eth0") &&
			!strings.Contains(shown, pod.Status.PodIP+"/24 brd 203.0.113.255 scope global eth0") ||
		!strings.Contains(shown, "0a:58:cb:00:71:0a") {
		t.Errorf("addresses of the pod: got IP %s and\n%s\nwant 203.0.113.0/24 and 0a:58:cb:00:71:0a on eth0",
			pod.Status.PodIP, shown)
	}
	waitPod(t, "instead", "has the status annotation", func(p *corev1.Pod) bool {
		return strings.Contains(p.Annotations["k8s.v1.cni.cncf.io/network-status"], `"name": "kube-system/second"`)
	})
	kubectl(t, "delete", "pod", "instead", "--wait=true")
	apply(t, strings.NewReplacer("instead", "beyond", `"mac": "0a:58:cb:00:71:0a"`,
		`"ips": ["203.0.113.77"]`).Replace(insteadYAML))
	waitEvent(t, "beyond", "FailedCreatePodSandBox",
		"annotation v1.multus-cni.io/default-network: network kube-system/second",
		`none of its plugins has the capability "ips"`)
	kubectl(t, "delete", "pod", "beyond", "--wait=true")
	metrics := scrape(t, "metrics")
	for _, plugin := range []string{"bridge", "macvlan"} {
		if want := fmt.Sprintf("nodelet_cni_plugin_duration_seconds_count{plugin=%q,verb=\"ADD\"} ",
			plugin); !strings.Contains(metrics, want) {
			t.Errorf("metrics: got no %s, want one", want)
		}
	}
	if strings.Contains(metrics, `nodelet_cni_plugin_duration_seconds_count{plugin="portmap",verb="ADD"`) {
		t.Error("calls of portmap: got some, want none, because no pod has host ports")
	}
}

// checkNotices deletes a route of the pod and adds it again. CNI's CHECK finds both, and events report them.
func checkNotices(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	records, err := filepath.Glob(filepath.Join(node().RootDir, "cni/sandboxes/*/record.json"))
	if err != nil || len(records) != 1 {
		t.Fatalf("records of sandboxes: got %q, %v, want one", records, err)
	}
	text, err := os.ReadFile(records[0])
	var rec struct{ NetNS string }
	if err == nil {
		err = json.Unmarshal(text, &rec)
	}
	if err != nil {
		t.Fatal(err)
	}
	inNetwork := func(args ...string) {
		t.Helper()
		if _, err := node().Exec(context.Background(),
			append([]string{"nsenter", "--net=" + rec.NetNS}, args...)...); err != nil {
			t.Fatal(err)
		}
	}
	inNetwork("ip", "route", "del", "198.51.100.0/24")
	waitEvent(t, pod.Name, "NetworkCheckFailed", "net1 in network default/wide", "198.51.100.0")
	inNetwork("ip", "route", "add", "198.51.100.0/24", "via", "192.0.2.1", "dev", "net1")
	waitEvent(t, pod.Name, "NetworkCheckPassed")
}
