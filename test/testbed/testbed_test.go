package testbed_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/test/testbed"
	"github.com/nodelet/nodelet/test/waittest"
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

// TestKubeletRunsDeployment checks that the real kubelet runs a Deployment in the testbed and that its pods reach
// each other. Nothing is left of deleted pods on the node, and nothing of the testbed on the machine.
func TestKubeletRunsDeployment(t *testing.T) {
	tb := testbed.ForTest(t, testbed.Options{Name: "t-kubelet", Agent: testbed.Kubelet})
	ctx := t.Context()
	node := tb.Nodes[0]
	manifest := writeFile(t, deployment)

	kubectl(ctx, t, tb, "apply", "-f", manifest)
	kubectl(ctx, t, tb, "rollout", "status", "deployment/web", waitLimit)
	pods := strings.Fields(kubectl(ctx, t, tb, "get", "pods", "-o", "name"))
	if len(pods) != 2 {
		t.Fatalf("pods: got %v, want 2", pods)
	}
	if got := kubectl(ctx, t, tb, "logs", pods[0], "-c", "shell"); got != "hello\n" {
		t.Errorf("log: got %q, want %q", got, "hello\n")
	}
	ip := kubectl(ctx, t, tb, "get", pods[0], "-o", "jsonpath={.status.podIP}")
	got := kubectl(ctx, t, tb, "exec", pods[1], "-c", "shell", "--", "wget", "-qO-", "http://"+ip+":8080/hostname")
	if "pod/"+got != pods[0] {
		t.Errorf("host name over the pod network: got pod/%s, want %s", got, pods[0])
	}
	if left := leftovers(ctx, t, tb); len(left) < 10 {
		t.Errorf("leftovers of two running pods: got %d, want at least 10:\n%s", len(left), strings.Join(left, "\n"))
	}

	kubectl(ctx, t, tb, "delete", "-f", manifest, "--wait")
	kubectl(ctx, t, tb, "wait", "--for=delete", "pod", "-l", "app=web", waitLimit)
	awaitClean(ctx, t, tb)
	for _, socket := range []string{"device-plugins/kubelet.sock", "pod-resources/kubelet.sock"} {
		if _, err := os.Lstat(filepath.Join(node.RootDir, socket)); err != nil {
			t.Errorf("the kubelet serves in the node's root directory: got %v, want %s", err, socket)
		}
	}
	if err := node.StopAgent(unix.SIGTERM); err != nil {
		t.Error(err)
	}
	if pid := node.AgentPID(); pid != 0 {
		t.Errorf("agent after StopAgent: got process %d, want none", pid)
	}
}

// TestOutages checks that pods on two nodes reach each other, and that tests can stop and start agents, runtimes, the
// API server and the network. Then Down must remove everything, also with mount namespaces of the nodes.
func TestOutages(t *testing.T) {
	tb := testbed.ForTest(t, testbed.Options{
		Name:      "t-outages",
		Agent:     testbed.Kubelet,
		Nodes:     2,
		KubeProxy: true,
		OwnMounts: true,
	})
	ctx := t.Context()
	first, second := tb.Nodes[0], tb.Nodes[1]

	for i, n := range tb.Nodes {
		name := []string{"server", "client"}[i]
		kubectl(ctx, t, tb, "run", name, "--image="+testbed.AgnhostImage, "--port=8080", "--labels=app="+name,
			`--overrides={"spec":{"nodeName":"`+n.Name+`","terminationGracePeriodSeconds":1}}`, "--", "netexec")
	}
	kubectl(ctx, t, tb, "wait", "--for=condition=Ready", "pod/server", "pod/client", waitLimit)
	if left := strings.Join(leftovers(ctx, t, tb), "\n"); !strings.Contains(left, ": mount "+first.RootDir) {
		t.Errorf("leftovers of a running pod: got no mount, want one:\n%s", left)
	}
	if machine, err := os.ReadFile("/proc/self/mountinfo"); err != nil ||
		strings.Contains(string(machine), first.RootDir) {
		t.Errorf("mount table of the machine: got mounts of the node, want none (%v):\n%s", err, machine)
	}
	kubectl(ctx, t, tb, "expose", "pod", "server", "--port=80", "--target-port=8080")
	address := kubectl(ctx, t, tb, "get", "service", "server", "-o", "jsonpath={.spec.clusterIP}")
	kubectl(ctx, t, tb, "wait", "--for=jsonpath={.endpoints[0].conditions.ready}=true", "endpointslice", "-l",
		"kubernetes.io/service-name=server", waitLimit)
	hostname := func() (string, error) {
		return tb.Kubectl(ctx, "exec", "client", "--", "timeout", "5", "wget", "-qO-", "http://"+address+"/hostname")
	}
	serves := func() bool { got, err := hostname(); return err == nil && got == "server" }
	waittest.Until(t, "the service answers on the other node", serves)

	if err := tb.StopAPIServer(); err != nil {
		t.Fatal(err)
	}
	if _, err := tb.Kubectl(ctx, "get", "nodes", "--request-timeout=2s"); err == nil {
		t.Error("request after StopAPIServer: got an answer, want an error")
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
		t.Error("start of a second agent: got no error, want one")
	}
	if err := first.WaitReady(ctx, waittest.Limit); err != nil {
		t.Fatal(err)
	}
	if err := first.CutLink(ctx); err != nil {
		t.Fatal(err)
	}
	if got, err := hostname(); err == nil {
		t.Errorf("request over a cut link: got %q, want an error", got)
	}
	if err := first.RestoreLink(ctx); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "the service answers again", serves)

	// Down must handle a node with a stopped runtime, and one whose runtime was killed and has left its shims.
	if err := unix.Kill(first.Runtime.PID(), unix.SIGSTOP); err != nil {
		t.Error(err)
	}
	if err := second.Runtime.Stop(unix.SIGKILL); err != nil {
		t.Error(err)
	}
}
