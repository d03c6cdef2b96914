//go:build e2e

package e2e

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/nodelet/nodelet/kube/client"
	"github.com/nodelet/nodelet/test/testbed"
)

// bootstrapRights are the role bindings that kubeadm creates for bootstrap tokens and nodes.
const bootstrapRights = `apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: bootstrap}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: system:node-bootstrapper}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: system:bootstrappers}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: renew}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole,
  name: system:certificates.k8s.io:certificatesigningrequests:selfnodeclient}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: system:nodes}]
---
`

// approvalRight lets the controller manager approve the requests of bootstrap tokens.
const approvalRight = `apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: approve}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole,
  name: system:certificates.k8s.io:certificatesigningrequests:nodeclient}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: system:bootstrappers}]
`

func bootstrapToken(expires time.Time) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Secret
metadata: {name: bootstrap-token-abcdef, namespace: kube-system}
type: bootstrap.kubernetes.io/token
stringData: {token-id: abcdef, token-secret: 0123456789abcdef, usage-bootstrap-authentication: "true", expiration: %q}
`, expires.UTC().Format(time.RFC3339))
}

// TestLongIdentity starts a node with a bootstrap token. It gets a certificate that is valid for two minutes, and
// renews it. The agent reports an expired token, a wrong authority and a denied request, and goes on by itself when
// they are fixed. No request fails while certificates change.
func TestLongIdentity(t *testing.T) {
	if os.Getenv("NODELET_E2E_TESTBED") != "" {
		t.Fatal("this test starts a testbed of its own: run it without NODELET_E2E_TESTBED")
	}
	bootstrap := filepath.Join(t.TempDir(), "bootstrap.conf")
	name := cmp.Or(os.Getenv("NODELET_E2E_NAME"), "e2e") + "-id"
	release, err := testbed.Own(t.Context(), name, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	own, err := testbed.Up(t.Context(), testbed.Options{
		Name: name, NodeletBin: program, Agent: testbed.NoAgent,
		AgentArgs:      []string{"--bootstrap-kubeconfig=" + bootstrap},
		AgentConfig:    map[string]any{"rotateCertificates": true, "serverTLSBootstrap": true},
		ControllerArgs: []string{"--cluster-signing-duration=2m"},
		Progress:       os.Stderr,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := own.Down(context.Background()); err != nil {
			t.Error(err)
		}
	})
	n := own.Nodes[0]
	kubectl := func(stdin string, args ...string) {
		t.Helper()
		if stdin != "" {
			file := filepath.Join(t.TempDir(), "in.yaml")
			if err := os.WriteFile(file, []byte(stdin), 0o600); err != nil {
				t.Fatal(err)
			}
			args = append(args, "-f", file)
		}
		if out, err := own.Kubectl(t.Context(), args...); err != nil {
			t.Fatalf("kubectl %v: %v\n%s", args, err, out)
		}
	}
	kubectl(bootstrapRights+bootstrapToken(time.Now().Add(-time.Minute)), "apply")
	authority := writeBootstrap(t, own, bootstrap, nil)
	if err := os.Remove(n.Kubeconfig); err != nil {
		t.Fatal(err)
	}
	if err := n.StartAgent(t.Context(), testbed.Nodelet); err != nil {
		t.Fatal(err)
	}
	await(t, "the agent reports the expired token", func() bool {
		return strings.Contains(logOf(t, n), "kubeadm token create")
	})
	kubectl("", "delete", "secret", "-n", "kube-system", "bootstrap-token-abcdef", "--ignore-not-found")
	kubectl(bootstrapToken(time.Now().Add(time.Hour)), "apply")
	writeBootstrap(t, own, bootstrap, anotherAuthority(t))
	await(t, "the agent reports the wrong authority", func() bool {
		return strings.Contains(logOf(t, n), "put the cluster's CA there")
	})
	writeBootstrap(t, own, bootstrap, authority) // the agent uses it at once
	await(t, "a request is denied", func() bool {
		name, err := own.Kubectl(t.Context(), "get", "csr", "-o", "jsonpath={.items[*].metadata.name}")
		if err != nil || name == "" {
			return false
		}
		kubectl("", "certificate", "deny", name)
		return true
	})
	await(t, "the agent reports the denial", func() bool {
		return strings.Contains(logOf(t, n), "denied (KubectlDeny: This CSR was denied by kubectl certificate deny.)")
	})
	kubectl(approvalRight, "apply")
	if err := n.WaitReady(t.Context(), limit); err != nil {
		t.Fatal(err)
	}
	t.Logf("Ready with %s", current(t, n))
	notReady := watchReadiness(t, own)
	from := len(logOf(t, n))
	go approveServing(t.Context(), own)
	await(t, "a serving certificate", func() bool {
		return strings.Contains(logOf(t, n), "serving certificate issued")
	})
	seen := map[string]bool{current(t, n): true}
	await(t, "three client certificates", func() bool {
		seen[current(t, n)] = true
		return len(seen) >= 3
	})
	if err := n.StopAgent(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := n.StartAgent(t.Context(), testbed.Nodelet); err != nil {
		t.Fatal(err)
	}
	await(t, "a fourth client certificate after a crash", func() bool {
		seen[current(t, n)] = true
		return len(seen) >= 4
	})
	if bad := regexp.MustCompile(`(?m)^.*level=(WARN|ERROR).*$`).FindAllString(logOf(t, n)[from:], -1); len(bad) > 0 {
		for _, line := range bad {
			// A container that runs the tests may not let a process lower its OOM score.
			if !strings.Contains(line, "setting has no effect") && !strings.Contains(line, "cannot set the OOM score") {
				t.Errorf("log of the agent: got %s, want no warning and no error", line)
			}
		}
	}
	if n := notReady(); n > 0 {
		t.Errorf("updates with a node that is not Ready: got %d, want none", n)
	}
}

// current returns the file name of the client certificate in use.
func current(t *testing.T, n *testbed.Node) string {
	t.Helper()
	target, err := os.Readlink(filepath.Join(n.RootDir, "pki", "kubelet-client-current.pem"))
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Base(target)
}

func logOf(t *testing.T, n *testbed.Node) string {
	t.Helper()
	text, err := os.ReadFile(n.AgentLog())
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !ok(); time.Sleep(200 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %s: %s", limit, what)
		}
	}
}

// anotherAuthority returns, in PEM, an authority that has not signed the API server's certificate.
func anotherAuthority(t *testing.T) []byte {
	t.Helper()
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
}

// writeBootstrap writes the bootstrap kubeconfig with an authority, and returns the authority. nil means that of the
// cluster.
func writeBootstrap(t *testing.T, b *testbed.Testbed, path string, authority []byte) []byte {
	t.Helper()
	rc, err := client.LoadConfig(b.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	if authority == nil {
		authority = rc.CAData
	}
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q, certificate-authority-data: %s}}]
users: [{name: u, user: {token: abcdef.0123456789abcdef}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
# written at %s
`, rc.Host, base64.StdEncoding.EncodeToString(authority), time.Now())
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return authority
}

// approveServing approves requests for serving certificates until ctx ends. No controller of Kubernetes does that.
func approveServing(ctx context.Context, b *testbed.Testbed) {
	for ctx.Err() == nil {
		out, err := b.Kubectl(ctx, "get", "csr", "-o",
			`jsonpath={range .items[?(@.spec.signerName=="kubernetes.io/kubelet-serving")]}`+
				`{.metadata.name} {.status.conditions[*].type}{"\n"}{end}`)
		for line := range strings.Lines(out) {
			if f := strings.Fields(line); err == nil && len(f) == 1 {
				_, _ = b.Kubectl(ctx, "certificate", "approve", f[0])
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// watchReadiness counts how often the node is not Ready. count ends the watch, fails the test if it has seen no update,
// and returns the number.
func watchReadiness(t *testing.T, b *testbed.Testbed) (count func() int) {
	t.Helper()
	rc, err := client.LoadConfig(b.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(rc, 100, 100, "e2e")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var updates, bad int
	see := func(o *corev1.Node) {
		updates++
		if !nodeReady(o) {
			bad++
		}
	}
	done, last := make(chan struct{}), error(nil)
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if err := followNodes(ctx, c, see); err != nil && ctx.Err() == nil {
				last = err
				time.Sleep(100 * time.Millisecond)
			}
		}
	}()
	return func() int {
		t.Helper()
		cancel()
		<-done
		if updates == 0 {
			t.Errorf("updates of the node: got none (last error: %v), want some", last)
		}
		return bad
	}
}

// followNodes calls see with each node as it is now, and with each update until the watch ends. A watch at resource
// version 0 could begin with a node as it was before.
func followNodes(ctx context.Context, c *client.Client, see func(*corev1.Node)) error {
	now := &corev1.NodeList{}
	if err := c.Core.Get().Resource("nodes").Do(ctx).Into(now); err != nil {
		return err
	}
	for i := range now.Items {
		see(&now.Items[i])
	}
	w, err := c.Core.Get().Resource("nodes").VersionedParams(&metav1.ListOptions{
		Watch: true, ResourceVersion: now.ResourceVersion}, client.Parameters).Watch(ctx)
	if err != nil {
		return err
	}
	for e := range w.ResultChan() {
		if o, ok := e.Object.(*corev1.Node); ok && e.Type != watch.Deleted {
			see(o)
		}
	}
	return nil
}

func nodeReady(o *corev1.Node) bool {
	for _, c := range o.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}
