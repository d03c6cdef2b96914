//go:build e2e

package e2e

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// Two faults of containerd 2.4.2, which binds the work of a call to its caller's life: one that dies within StartContainer
// leaves an instance that never ran ("context canceled"), in some moments with a task that containerd then refuses to delete,
// and with it the whole sandbox; and one that dies within RunPodSandbox may leave a shim and a mount that containerd has lost
// track of. It takes up both again when it is started anew. What follows knows them by their own marks, so that nothing else
// passes for them.

// cutOff tells whether the one restart of a container is that fault: its instance before never ran, and its end was that of
// an agent which was killed.
func cutOff(c corev1.ContainerStatus, killed []time.Time) bool {
	end := c.LastTerminationState.Terminated
	if end == nil {
		end = c.State.Terminated
	}
	if c.RestartCount > 1 || end == nil || end.Reason != "StartError" || !strings.HasSuffix(end.Message, "context canceled") {
		return false
	}
	for _, at := range killed {
		if d := end.FinishedAt.Sub(at); d > -2*time.Second && d < 2*time.Second { // statuses know seconds only
			return true
		}
	}
	return false
}

// cleanAfterStorm is clean, but for what containerd has lost: it is started anew, and then nothing at all may be
// left.
func cleanAfterStorm(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		if t.Failed() && !agentRuns() {
			return
		}
		var lost []string
		eventually(t, 60*time.Second, "nothing of the pods is left but what the runtime has lost", func() (string, bool) {
			left, err := tb.Leftovers(context.Background())
			if err != nil {
				return err.Error(), false
			}
			var ours []string
			lost, ours = lostByRuntime(t, left)
			return strings.Join(ours, "\n"), len(ours) == 0
		})
		if len(lost) == 0 {
			return
		}
		t.Logf("containerd has lost track of %d things when its client died, and is started anew:\n%s", len(lost), strings.Join(lost, "\n"))
		stopAgent(t, unix.SIGKILL)
		restartRuntime(t)
		mark := markLog(t)
		startAgent(t) // the next test must not meet an agent that is just finding the runtime again
		mark.waitLine(t, 10*time.Second, "node is registered")
		nothingLeft(t)
	})
}

// lostByRuntime divides what is left into what containerd itself says it could not clean up, and all else.
func lostByRuntime(t *testing.T, left []string) (lost, others []string) {
	t.Helper()
	text, err := os.ReadFile(node().RuntimeLog())
	if err != nil {
		t.Fatal(err)
	}
	marks := stuckPods(string(text), left)
	for _, l := range left {
		id := filepath.Base(filepath.Dir(l))
		mount := strings.Contains(l, ": mount ") && filepath.Base(l) == "rootfs" && len(id) == 64 && gaveUp(string(text), id)
		if mount || slices.ContainsFunc(marks, func(mark string) bool { return strings.Contains(l, mark) }) {
			lost = append(lost, l)
		} else {
			others = append(others, l)
		}
	}
	return lost, others
}

// stuckTask is what containerd says of a sandbox that it cannot remove for a task whose start was given up.
var stuckTask = regexp.MustCompile(`RemovePodSandbox for \W*([0-9a-f]{64}).*cannot delete running task ([0-9a-f]{64})`)

// stuckPods finds pods that the runtime cannot remove because it gave up the start of a container with its caller: the IDs of
// sandbox and container, and the pods' UIDs.
func stuckPods(log string, left []string) (marks []string) {
	for line := range strings.Lines(log) {
		m := stuckTask.FindStringSubmatch(line)
		if m == nil || slices.Contains(marks, m[1]) || !startGivenUp(log, m[2]) {
			continue
		}
		marks = append(marks, m[1], m[2])
		for _, l := range left {
			// "NODE: sandbox ID of pod NAMESPACE/NAME, STATE" and "NODE: log directory …/NAMESPACE_NAME_UID"
			_, pod, ok := strings.Cut(l, m[1]+" of pod ")
			if pod, _, _ = strings.Cut(pod, ","); !ok {
				continue
			}
			for _, dir := range left {
				if uid, ok := strings.CutPrefix(filepath.Base(dir), strings.Replace(pod, "/", "_", 1)+"_"); ok {
					marks = append(marks, uid)
				}
			}
		}
	}
	return marks
}

// startGivenUp tells whether the runtime's log says that it gave up the start of a container as its caller went.
func startGivenUp(log, id string) bool {
	for line := range strings.Lines(log) {
		if strings.Contains(line, "StartContainer for") && strings.Contains(line, id) && strings.Contains(line, "context canceled") {
			return true
		}
	}
	return false
}

// gaveUp tells whether the runtime's log says that a sandbox could not be cleaned up after its client had gone.
func gaveUp(log, id string) bool {
	for line := range strings.Lines(log) {
		if strings.Contains(line, id) && strings.Contains(line, "failed to fully teardown sandbox resources") && strings.Contains(line, "context canceled") {
			return true
		}
	}
	return false
}

// restartRuntime ends containerd and starts it again; containers go on.
func restartRuntime(t *testing.T) {
	t.Helper()
	if err := node().StopRuntime(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := node().StartRuntime(context.Background()); err != nil {
		t.Fatal(err)
	}
}
