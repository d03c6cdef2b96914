//go:build e2e

package e2e

import (
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/test/testbed"
)

// privatePod is a pod with an image, a pull policy and a list of pull secrets.
const privatePod = `---
{apiVersion: v1, kind: Pod, metadata: {name: private-%s}, spec: {nodeName: %s, terminationGracePeriodSeconds: 0,
 imagePullSecrets: [%s], containers: [{name: app, image: '%s', imagePullPolicy: %s, command: [sleep, inf]}]}}
`

// TestPrivateImage checks that pods without a pull secret cannot use an image that another pod has pulled with a
// secret, before and after a restart of the agent.
func TestPrivateImage(t *testing.T) {
	const host = "private.nodelet.test"
	if err := node().Runtime.Mirror(host, lockedRegistry(t, "me")); err != nil {
		t.Fatal(err)
	}
	image := strings.Replace(testbed.BusyboxImage, "registry.k8s.io", host, 1)
	forgetNames(t)
	clean(t)
	login := base64.StdEncoding.EncodeToString([]byte(`{"auths":{"` + host +
		`":{"username":"me","password":"open-sesame"}}}`))
	apply(t, "{apiVersion: v1, kind: Secret, metadata: {name: private-login}, type: kubernetes.io/dockerconfigjson, "+
		"data: {.dockerconfigjson: "+login+"}}")
	start := func(name, secrets string, policy corev1.PullPolicy) {
		apply(t, fmt.Sprintf(privatePod, name, node().Name, secrets, image, policy))
	}
	start("owner", "{name: private-login}", corev1.PullIfNotPresent)
	waitReady(t, "private-owner")
	for _, when := range []string{"first", "restarted"} {
		start(when+"-never", "", corev1.PullNever)
		start(when+"-pull", "", corev1.PullIfNotPresent)
		start(when+"-secret", "{name: private-login}", corev1.PullNever)
		waitPod(t, "private-"+when+"-never", "is denied the image", waitingFor("app", "ErrImageNeverPull"))
		waitPod(t, "private-"+when+"-pull", "is denied the image", noImage("pull access denied"))
		waitReady(t, "private-"+when+"-secret")
		if when == "first" {
			killAgent(t)
		}
	}
}

// forgetNames removes, at the end of a test with a registry of its own, the names of images in that registry and the
// records of their pulls. Other tests use the same images under other names.
func forgetNames(t *testing.T) {
	t.Cleanup(func() {
		if err := node().Runtime.ForgetNames(context.Background(), "nodelet.test"); err != nil {
			t.Error(err)
		}
		records, err := filepath.Glob(filepath.Join(node().RootDir, "image_manager/*/sha256-*"))
		if err != nil || len(records) == 0 {
			t.Errorf("records of pulls: got %v, %v, want some", records, err)
		}
		for _, r := range records {
			if err := os.Remove(r); err != nil {
				t.Error(err)
			}
		}
	})
}
