//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/test/testbed"
)

// loginScript is a credential provider that returns the right login for one registry and a wrong one for another, and
// fails for a third.
const loginScript = `#!/bin/sh
request=$(cat)
case "$request" in
*'"image":"right.nodelet.test/e2e-test-images/busybox"'*) password=$PASSWORD ;;
*'"image":"wrong.nodelet.test/'*) password=mistyped ;;
*) echo no metadata service >&2; exit 1 ;;
esac
echo '{"apiVersion": "credentialprovider.kubelet.k8s.io/v1", "kind": "CredentialProviderResponse",
"cacheKeyType": "Registry",
 "auth": {"*.nodelet.test": {"username": "node", "password": "'$password'"}}}'
`

// tokenScript is a credential provider that requires a token of the pod's service account, and an annotation of the
// account.
const tokenScript = `#!/bin/sh
request=$(cat)
case "$request" in
*'"serviceAccountToken":"ey'*'"serviceAccountAnnotations":{"nodelet.test/registry":"by-token"}'*) ;;
*) echo no token >&2; exit 1 ;;
esac
echo '{"apiVersion": "credentialprovider.kubelet.k8s.io/v1", "kind": "CredentialProviderResponse",
"cacheKeyType": "Registry",
 "auth": {"by.token.nodelet.test": {"username": "node", "password": "open-sesame"}}}'
`

// tokenAccount is a service account with that annotation. Nodes may request tokens with the audience of that provider.
const tokenAccount = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: login-account, annotations: {nodelet.test/registry: by-token}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: e2e-login}
rules:
- {apiGroups: [""], resources: [nodelet-login], verbs: [request-serviceaccounts-token-audience]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: e2e-login}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: e2e-login}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: system:nodes}]
`

const loginConfig = `
apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
- name: login
  matchImages: ["*.nodelet.test"]
  defaultCacheDuration: 10s
  apiVersion: credentialprovider.kubelet.k8s.io/v1
  env: [{name: PASSWORD, value: open-sesame}]
- name: token-login
  matchImages: ["*.token.nodelet.test"]
  defaultCacheDuration: 10s
  apiVersion: credentialprovider.kubelet.k8s.io/v1
  tokenAttributes:
    serviceAccountTokenAudience: nodelet-login
    cacheType: ServiceAccount
    requireServiceAccount: true
    requiredServiceAccountAnnotationKeys: [nodelet.test/registry]
`

// TestCredentialProvider pulls an image with the login that a credential provider returns, with and without the token
// of a service account. With a wrong login or none the pull fails, and the pod reports it. Other tests use the same
// image under another name, so the test removes the names that it adds.
func TestCredentialProvider(t *testing.T) {
	at := lockedRegistry(t, "node")
	var pods strings.Builder
	for _, name := range []string{"right", "wrong", "broken", "by.token"} {
		if err := node().Runtime.Mirror(name+".nodelet.test", at); err != nil {
			t.Fatal(err)
		}
		image := strings.Replace(testbed.BusyboxImage, "registry.k8s.io", name+".nodelet.test", 1)
		fmt.Fprintf(&pods, `---
{apiVersion: v1, kind: Pod, metadata: {name: login-%s}, spec: {nodeName: %s, serviceAccountName: login-account,
  terminationGracePeriodSeconds: 0,
  containers: [{name: app, image: '%s', imagePullPolicy: Always, command: [sleep, inf]}]}}
`, name, node().Name, image)
	}
	startWithProvider(t)
	forgetNames(t)
	clean(t) // no pod may be left when the cleanup restarts the agent
	sameAgent(t)
	apply(t, tokenAccount)
	apply(t, pods.String())
	waitReady(t, "login-right")
	waitReady(t, "login-by.token")
	waitPod(t, "login-wrong", "is refused",
		noImage("wrong.nodelet.test/e2e-test-images/busybox", "401 Unauthorized"))
	waitPod(t, "login-broken", "names the provider", noImage("credential provider login gave no login"))
}

// noImage returns a function that reports whether a pod's container waits because a pull has failed with all words in
// the message. During the back-off the message also has the error of the last pull.
func noImage(words ...string) func(*corev1.Pod) bool {
	return func(p *corev1.Pod) bool {
		return waitingFor("app", "ErrImagePull", words...)(p) ||
			waitingFor("app", "ImagePullBackOff", append(words, "ErrImagePull")...)(p)
	}
}

// startWithProvider restarts the agent with a credential provider. The end of the test restarts the agent without it.
func startWithProvider(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	start := filepath.Join(dir, "nodelet")
	script := fmt.Sprintf("#!/bin/sh\nexec %s \"$@\" --image-credential-provider-config=%s/config.yaml "+
		"--image-credential-provider-bin-dir=%s\n", program, dir, dir)
	for file, text := range map[string]string{
		filepath.Join(dir, "login"):       loginScript,
		filepath.Join(dir, "token-login"): tokenScript,
		filepath.Join(dir, "config.yaml"): loginConfig,
		start:                             script,
	} {
		if err := os.WriteFile(file, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	restart := func(program string) {
		stopAgent(t, unix.SIGTERM)
		tb.SetNodelet(program)
		mark := markLog(t)
		startAgent(t)
		mark.waitLine(t, "node is registered")
	}
	t.Cleanup(func() { restart(program) })
	restart(start)
}
