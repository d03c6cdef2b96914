//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nodelet/nodelet/test/testbed"
)

// TestDeployment does what a new user tries first: it creates a Deployment, scales it, lets its pods call each other,
// rolls it, and deletes it.
func TestDeployment(t *testing.T) {
	clean(t)
	watched := record("app=web")
	apply(t, fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 5
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: web
        image: %s
        command: [/agnhost, netexec, --http-port=8080]
        readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1}
`, testbed.AgnhostImage))
	kubectl(t, "rollout", "status", "deployment/web", "--timeout=5m")
	kubectl(t, "scale", "deployment/web", "--replicas=20")
	kubectl(t, "rollout", "status", "deployment/web", "--timeout=5m")
	answerEachOther(t)

	kubectl(t, "set", "env", "deployment/web", "ROUND=2")
	kubectl(t, "rollout", "status", "deployment/web", "--timeout=5m")
	kubectl(t, "delete", "deployment", "web")
	kubectl(t, "wait", "--for=delete", "pod", "-l", "app=web", "--timeout=5m")
	watched.end(t)
	watched.noRestarts(t, nil)
	if n := len(watched.last); n < 40 {
		t.Errorf("pods that the watch saw: got %d, want at least 40, 20 of each revision", n)
	}
}

// answerEachOther lets one pod request the names of all pods over HTTP.
func answerEachOther(t *testing.T) {
	t.Helper()
	pods := listPods(t, "app=web")
	if len(pods) != 20 {
		t.Fatalf("pods: got %d, want 20", len(pods))
	}
	var ask strings.Builder
	want := map[string]bool{}
	for i := range pods {
		p := &pods[i]
		if p.Status.PodIP == "" || p.Status.HostIP != node().IP {
			t.Errorf("pod %s: got pod IP %q and host IP %q, want any pod IP and host IP %s",
				p.Name, p.Status.PodIP, p.Status.HostIP, node().IP)
		}
		fmt.Fprintf(&ask, "timeout 30 wget -qO- http://%s:8080/hostname; echo;", p.Status.PodIP)
		want[p.Name] = true
	}
	for _, name := range strings.Fields(shell(t, pods[0].Name, "web", ask.String())) {
		delete(want, name)
	}
	if len(want) > 0 {
		t.Errorf("pods that did not answer over HTTP with their names: got %v, want none", want)
	}
}
