package testbed_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/test/testbed"
)

const deployment = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: web
        image: ` + testbed.AgnhostImage + `
        args: [netexec, --http-port=8080]
        readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1}
      - name: shell
        image: busybox:1.37
        command: [sh, -c, "echo hello; exec sleep 3600"]
`

// The oracle works in the testbed: the real kubelet runs a Deployment which the real scheduler and controller-manager
// drive, and its pods reach one another; deleted pods leave nothing on the node, and neither does the testbed.
func TestKubeletRunsDeployment(t *testing.T) {
	tb := testbed.ForTest(t, testbed.Options{Name: "t-kubelet", Agent: testbed.Kubelet})
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	node := tb.Nodes[0]
	manifest := writeFile(t, deployment)

	kubectl(ctx, t, tb, "apply", "-f", manifest)
	kubectl(ctx, t, tb, "rollout", "status", "deployment/web", "--timeout=90s")
	pods := strings.Fields(kubectl(ctx, t, tb, "get", "pods", "-o", "name"))
	if len(pods) != 2 {
		t.Fatalf("pods %v, want 2", pods)
	}
	if got := kubectl(ctx, t, tb, "logs", pods[0], "-c", "shell"); got != "hello\n" {
		t.Errorf("log %q, want hello", got)
	}
	ip := kubectl(ctx, t, tb, "get", pods[0], "-o", "jsonpath={.status.podIP}")
	got := kubectl(ctx, t, tb, "exec", pods[1], "-c", "shell", "--", "wget", "-qO-", "http://"+ip+":8080/hostname")
	if "pod/"+got != pods[0] {
		t.Errorf("host name of %s over the pod network is %q", pods[0], got)
	}
	if left := leftovers(ctx, t, tb); len(left) < 10 {
		t.Errorf("Leftovers sees too little of two running pods:\n%s", strings.Join(left, "\n"))
	}

	kubectl(ctx, t, tb, "delete", "-f", manifest, "--wait")
	kubectl(ctx, t, tb, "wait", "--for=delete", "pod", "-l", "app=web", "--timeout=60s")
	awaitClean(ctx, t, tb)
	if err := node.StopAgent(unix.SIGTERM); err != nil {
		t.Error(err)
	}
	if pid := node.AgentPID(); pid != 0 {
		t.Errorf("agent runs as %d after StopAgent", pid)
	}
}

// Two nodes see each other's pods; crashes of agents, runtimes and the API server can be made and undone; and Down copes
// with all of it, and with nodes that have mounts of their own.
func TestOutages(t *testing.T) {
	tb := testbed.ForTest(t, testbed.Options{Name: "t-outages", Agent: testbed.Kubelet, Nodes: 2, KubeProxy: true, OwnMounts: true})
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	first, second := tb.Nodes[0], tb.Nodes[1]

	for i, n := range tb.Nodes {
		name := []string{"server", "client"}[i]
		kubectl(ctx, t, tb, "run", name, "--image="+testbed.AgnhostImage, "--port=8080", "--labels=app="+name,
			`--overrides={"spec":{"nodeName":"`+n.Name+`","terminationGracePeriodSeconds":1}}`, "--", "netexec")
	}
	kubectl(ctx, t, tb, "wait", "--for=condition=Ready", "pod/server", "pod/client", "--timeout=60s")
	if left := strings.Join(leftovers(ctx, t, tb), "\n"); !strings.Contains(left, ": mount "+first.RootDir) {
		t.Errorf("Leftovers sees no mount of a running pod:\n%s", left)
	}
	if machine, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Contains(string(machine), first.RootDir) {
		t.Errorf("the node's mounts are among the machine's (%v):\n%s", err, machine)
	}
	kubectl(ctx, t, tb, "expose", "pod", "server", "--port=80", "--target-port=8080")
	address := kubectl(ctx, t, tb, "get", "service", "server", "-o", "jsonpath={.spec.clusterIP}")
	kubectl(ctx, t, tb, "wait", "--for=jsonpath={.endpoints[0].conditions.ready}=true", "endpointslice", "-l",
		"kubernetes.io/service-name=server", "--timeout=30s")
	hostname := func() (string, error) {
		return tb.Kubectl(ctx, "exec", "client", "--", "timeout", "5", "wget", "-qO-", "http://"+address+"/hostname")
	}
	eventually(ctx, t, "the service answers over two nodes", func() bool { got, err := hostname(); return err == nil && got == "server" })

	if err := tb.StopAPIServer(); err != nil {
		t.Fatal(err)
	}
	if _, err := tb.Kubectl(ctx, "get", "nodes", "--request-timeout=2s"); err == nil {
		t.Error("the API server answers after StopAPIServer")
	}
	if err := tb.StartAPIServer(ctx); err != nil {
		t.Fatal(err)
	}
	if err := first.StopAgent(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := first.StartAgent(ctx, testbed.Kubelet); err != nil {
		t.Fatal(err)
	}
	if err := first.StartAgent(ctx, testbed.Kubelet); err == nil {
		t.Error("a second agent starts beside the first")
	}
	if err := first.WaitReady(ctx, time.Minute); err != nil {
		t.Fatal(err)
	}
	if err := first.CutLink(ctx); err != nil {
		t.Fatal(err)
	}
	if got, err := hostname(); err == nil {
		t.Errorf("%q answers over a cut link", got)
	}
	if err := first.RestoreLink(ctx); err != nil {
		t.Fatal(err)
	}
	eventually(ctx, t, "the service answers again", func() bool { got, err := hostname(); return err == nil && got == "server" })

	// Down finds one node with a frozen runtime and one whose runtime has died and left its shims.
	if err := unix.Kill(first.RuntimePID(), unix.SIGSTOP); err != nil {
		t.Error(err)
	}
	if err := second.StopRuntime(unix.SIGKILL); err != nil {
		t.Error(err)
	}
}
