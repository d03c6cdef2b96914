//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/nodelet/nodelet/test/testbed"
)

// waitNode waits until the node's Ready condition has that status and its message contains all words.
func waitNode(t *testing.T, status corev1.ConditionStatus, words ...string) {
	t.Helper()
	var seen string
	ctx, cancel := context.WithTimeout(context.Background(), limit) // also called when the test has ended
	defer cancel()
	err := follow(ctx, "nodes", named(node().Name), func(e watch.Event) bool {
		for _, c := range e.Object.(*corev1.Node).Status.Conditions {
			if c.Type == corev1.NodeReady {
				seen = fmt.Sprintf("%s: %s", c.Status, c.Message)
				return c.Status == status && hasAll(c.Message, words)
			}
		}
		return false
	})
	if err != nil {
		t.Fatalf("node within %[3]s: got %[4]s, want Ready=%[1]s with %[2]q%[5]s",
			status, words, limit, seen, agentLogTail())
	}
}

// TestLongBadNetwork breaks the pod network that nodelet sets up in several ways. Each time the node's Ready
// condition or an event names the cause, other pods keep running, and no restart is needed after the fault is fixed.
func TestLongBadNetwork(t *testing.T) {
	dir := t.TempDir()
	conf := filepath.Join(dir, "net.conflist")
	var good string
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(conf+".new", []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(conf+".new", conf); err != nil {
			t.Fatal(err)
		}
	}
	onTestbed(t, testbed.Options{
		Name:      "bad",
		Network:   "agent",
		AgentArgs: []string{"-v=4", "--cni-conf=" + conf, "--cni-call-timeout=2s"},
		BeforeAgent: func(n *testbed.Node) error {
			good = fmt.Sprintf(smallNetwork, filepath.Join(n.RootDir, "cni/addresses"))
			return os.WriteFile(conf, []byte(good), 0o644)
		},
	})
	sameAgent(t)
	onlooker(t)
	bin := node().CNIBinDir

	for _, bad := range []struct{ text, want string }{
		{`{"cniVersion": "1.0.0", "name"`, "not JSON"},
		{strings.Replace(good, "1.0.0", "9.9.9", 1), `unknown "cniVersion" "9.9.9"`},
		{strings.Replace(good, `"type": "portmap"`, `"type": "prtmap"`, 1), `needs the plugin "prtmap", which is not in`},
		{`{"cniVersion": "1.0.0", "name": "empty", "plugins": []}`, "no plugin"},
	} {
		write(bad.text)
		waitNode(t, corev1.ConditionFalse, bad.want)
		write(good)
		waitNode(t, corev1.ConditionTrue)
	}
	// The program of a plugin in use is missing.
	if err := os.Rename(filepath.Join(bin, "bandwidth"), filepath.Join(bin, "bandwidth.away")); err != nil {
		t.Fatal(err)
	}
	waitNode(t, corev1.ConditionFalse, `needs the plugin "bandwidth"`, bin)
	if err := os.Rename(filepath.Join(bin, "bandwidth.away"), filepath.Join(bin, "bandwidth")); err != nil {
		t.Fatal(err)
	}
	waitNode(t, corev1.ConditionTrue)

	// A plugin does not follow the CNI specification: an event names the fault, and the pod runs once the
	// configuration is good.
	for name, c := range map[string]struct{ body, want string }{
		"garbage": {"echo all is fine", "is not JSON"},
		"hang":    {"sleep 600", "did not finish ADD within 2s and was killed"},
		"silent":  {"exit 7", "exit status 7"},
	} {
		replacePlugin(t, filepath.Join(bin, "odd"), "#!/bin/sh\n[ \"$CNI_COMMAND\" = ADD ] || exit 0\n"+c.body+"\n")
		write(strings.Replace(good, `{"type": "portmap"`, `{"type": "odd"}, {"type": "portmap"`, 1))
		odd := "odd-" + name
		eventually(t, "the agent uses the new configuration", func() (string, bool) {
			text, err := os.ReadFile(filepath.Join(node().RootDir, "cni/own.conflist"))
			return fmt.Sprint(string(text), err), strings.Contains(string(text), `"odd"`)
		})
		apply(t, sleeper(odd, ""))
		waitEvent(t, odd, "FailedCreatePodSandBox", "odd", c.want)
		write(good)
		waitReady(t, odd)
	}
	// An annotation names a network that does not exist, and another one cannot be parsed.
	apply(t, sleeper("unknown", "blue"))
	waitEvent(t, "unknown", "FailedCreatePodSandBox",
		"annotation k8s.v1.cni.cncf.io/networks: network default/blue", "blue.conflist")
	apply(t, sleeper("unreadable", `[{"nmae": 1}]`))
	waitEvent(t, "unreadable", "FailedCreatePodSandBox", "not a list of networks")

	// Another configuration file sorts first, so the runtime would use it.
	other := filepath.Join(node().CNIConfDir, "00-a.conflist")
	if err := os.WriteFile(other, []byte(`{"cniVersion": "1.0.0", "name": "other", "plugins": [{"type": "odd"}]}`),
		0o644); err != nil {
		t.Fatal(err)
	}
	waitNode(t, corev1.ConditionFalse, "00-a.conflist instead of 00-nodelet.conflist")
	if err := os.Remove(other); err != nil {
		t.Fatal(err)
	}
	waitNode(t, corev1.ConditionTrue)
	onlookerUnharmed(t)
}

// TestLongBadRuntimeNetwork does the same where the runtime sets up the pod network. It covers the faults that
// nodelet can see.
func TestLongBadRuntimeNetwork(t *testing.T) {
	clean(t)
	sameAgent(t)
	onlooker(t)
	n := node()
	conf, plugin := filepath.Join(n.CNIConfDir, "10-testbed.conflist"), filepath.Join(n.CNIBinDir, "portmap")
	text, err := os.ReadFile(conf)
	if err != nil {
		t.Fatal(err)
	}
	restore := func() {
		t.Helper()
		if err := os.WriteFile(conf, text, 0o644); err != nil {
			t.Fatal(err)
		}
		waitNode(t, corev1.ConditionTrue)
	}
	t.Cleanup(restore)
	if err := os.Remove(conf); err != nil {
		t.Fatal(err)
	}
	waitNode(t, corev1.ConditionFalse, "NetworkReady=false", "no network configuration", n.CNIConfDir)
	restore()
	if err := os.WriteFile(conf, text[:len(text)/2], 0o644); err != nil {
		t.Fatal(err)
	}
	waitNode(t, corev1.ConditionFalse, "10-testbed.conflist: not JSON")
	restore()
	if err := os.Rename(plugin, plugin+".away"); err != nil {
		t.Fatal(err)
	}
	waitNode(t, corev1.ConditionFalse, `needs the plugin "portmap"`, n.CNIBinDir)
	if err := os.Rename(plugin+".away", plugin); err != nil {
		t.Fatal(err)
	}
	waitNode(t, corev1.ConditionTrue)
	onlookerUnharmed(t)
}

func sleeper(name, networks string) string {
	return fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: %s, annotations: {k8s.v1.cni.cncf.io/networks: %q}},
		spec: {nodeName: %s, terminationGracePeriodSeconds: 0, tolerations: [{operator: Exists}],
		containers: [{name: app, image: %q, command: [sleep, "3600"]}]}}`, name, networks, node().Name, testbed.BusyboxImage)
}

// onlooker runs a pod that the test must not disturb.
func onlooker(t *testing.T) {
	t.Helper()
	apply(t, sleeper("onlooker", ""))
	waitReady(t, "onlooker")
}

func onlookerUnharmed(t *testing.T) {
	t.Helper()
	pod := getPod(t, "onlooker")
	if !ready(pod) || pod.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("the onlooker: got %s, want it Ready without a restart", describe(pod))
	}
	if got := shell(t, "onlooker", "app", "ip addr show dev eth0"); !strings.Contains(got, pod.Status.PodIP+"/") {
		t.Errorf("addresses of the onlooker: got\n%s\nwant %s", got, pod.Status.PodIP)
	}
}
