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

// This file excuses two faults of containerd 2.4.2. containerd cancels a call when its client exits. When the client
// exits during StartContainer, an instance is left that never ran ("context canceled"). Sometimes it has a task that
// containerd then refuses to delete, and with it the sandbox. When the client exits during RunPodSandbox, a shim and
// a mount may be left that containerd does not know. A restarted containerd cleans up both. The functions below
// identify exactly these faults by what containerd logs, so that they excuse nothing else.

// cutOff reports whether the only restart of a container is that fault: its previous instance never ran, and its
// start failed at the time when the agent was killed.
func cutOff(c corev1.ContainerStatus, killed []time.Time) bool {
	end := c.LastTerminationState.Terminated
	if end == nil {
		end = c.State.Terminated
	}
	if c.RestartCount > 1 || end == nil || end.Reason != "StartError" ||
		!strings.HasSuffix(end.Message, "context canceled") {
		return false
	}
	for _, at := range killed {
		// times in a status have a resolution of one second
		if d := end.FinishedAt.Sub(at); d > -2*time.Second && d < 2*time.Second {
			return true
		}
	}
	return false
}

// cleanAfterStorm is like clean, but excuses what containerd has lost. Then it restarts containerd, and after that
// nothing may be left.
func cleanAfterStorm(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		if t.Failed() && !agentRuns() {
			return
		}
		var lost []string
		eventually(t, "nothing of the pods is left except what the runtime has lost", func() (string, bool) {
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
		t.Logf("containerd has lost %d resources of calls whose client was killed, restarting it:\n%s", len(lost),
			strings.Join(lost, "\n"))
		stopAgent(t, unix.SIGKILL)
		restartRuntime(t)
		mark := markLog(t)
		startAgent(t) // the next test needs an agent that is connected to the runtime again
		mark.waitLine(t, "node is registered")
		nothingLeft(t)
	})
}

// lostByRuntime divides what is left into what containerd could not clean up, as its log shows, and the rest.
func lostByRuntime(t *testing.T, left []string) (lost, others []string) {
	t.Helper()
	text, err := os.ReadFile(node().Runtime.Log())
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

// stuckTask matches the log line of containerd about a sandbox that it cannot remove, because of a task whose start
// was canceled.
var stuckTask = regexp.MustCompile(`RemovePodSandbox for \W*([0-9a-f]{64}).*cannot delete running task ([0-9a-f]{64})`)

// stuckPods finds pods that the runtime cannot remove because the start of a container was canceled. It returns the
// IDs of sandbox and container, and the UIDs of the pods.
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

// startGivenUp reports whether the runtime's log has a canceled start of that container.
func startGivenUp(log, id string) bool {
	for line := range strings.Lines(log) {
		if strings.Contains(line, "StartContainer for") && strings.Contains(line, id) &&
			strings.Contains(line, "context canceled") {
			return true
		}
	}
	return false
}

// gaveUp reports whether the runtime's log says that the clean-up of that sandbox was canceled.
func gaveUp(log, id string) bool {
	for line := range strings.Lines(log) {
		if hasAll(line, []string{id, "failed to fully teardown sandbox resources", "context canceled"}) {
			return true
		}
	}
	return false
}

// restartRuntime kills the runtime and starts it again. Containers keep running.
func restartRuntime(t *testing.T) {
	t.Helper()
	if err := node().Runtime.Stop(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := node().Runtime.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
}
