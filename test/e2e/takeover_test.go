//go:build e2e

package e2e

import (
	"context"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/test/testbed"
)

// TestLongTakeover has the kubelet start a static pod and pods of the API, and nodelet take the node over: no container is
// started anew, and the static pod keeps the UID that the kubelet gave it, which nobody else could guess.
func TestLongTakeover(t *testing.T) {
	clean(t)
	stopAgent(t, unix.SIGTERM)
	t.Cleanup(func() { // whichever agent runs, nodelet has the node in the end
		stopAgent(t, unix.SIGTERM)
		mark := markLog(t)
		startAgent(t)
		mark.waitLine(t, 10*time.Second, "node is registered")
	})
	if err := node().StartAgent(context.Background(), testbed.Kubelet); err != nil {
		t.Fatal(err)
	}
	manifest(t, node().ManifestDir, "taken.yaml", staticPod("taken", "one"))
	taken := waitReady(t, 90*time.Second, mirrorName("taken"))
	check := bystander(t)

	stopAgent(t, unix.SIGTERM)
	mark := markLog(t)
	startAgent(t)
	mark.waitLine(t, 10*time.Second, "node is registered")
	apply(t, crashing("sign")) // when the new agent has started this, it has seen the others
	waitReady(t, 30*time.Second, "sign")
	now := mirrorReady(t, "taken", nil)
	before, after := containerStatus(taken, "app"), containerStatus(now, "app")
	if after.ContainerID != before.ContainerID || after.RestartCount != 0 {
		t.Errorf("the static pod's container was %s and is %s with %d restarts", before.ContainerID, after.ContainerID, after.RestartCount)
	}
	if was, is := taken.Annotations["kubernetes.io/config.hash"], now.Annotations["kubernetes.io/config.hash"]; was != is {
		t.Errorf("the static pod's UID was %s and is %s", was, is)
	}
	check()
}
