//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/test/testbed"
)

// clean checks at the end of the test that no trace of any pod is left on the node. Call it first, so that its check
// runs last. If a failed test leaves no agent, clean starts one for the tests after it.
func clean(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		if t.Failed() && !agentRuns() {
			startAgent(t)
		}
		nothingLeft(t)
	})
}

func agentRuns() bool { return node().AgentPID() != 0 }

// nothingLeft waits until no trace of any pod is left on the node.
func nothingLeft(t *testing.T) {
	t.Helper()
	eventually(t, "nothing of the pods is left", func() (string, bool) {
		left, err := tb.Leftovers(context.Background())
		if err != nil {
			return err.Error(), false
		}
		return strings.Join(left, "\n"), len(left) == 0
	})
}

// limit is how long a test waits for what must happen. It ends a failed test only: what a busy machine delays comes
// earlier than that.
const limit = 5 * time.Minute

// eventually polls for a condition that cannot be watched. After limit it fails the test and prints what check last
// saw.
func eventually(t *testing.T, what string, check func() (seen string, ok bool)) {
	t.Helper()
	within(t, limit, what, check)
}

// within is eventually with a limit that is part of what the test proves.
func within(t *testing.T, limit time.Duration, what string, check func() (seen string, ok bool)) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for {
		seen, ok := check()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("want within %s: %s; got: %s%s", limit, what, seen, agentLogTail())
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// agentLogTail returns the end of the agent's log for failure messages.
func agentLogTail() string {
	text, err := os.ReadFile(node().AgentLog())
	if err != nil {
		return "\n" + err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return "\nagent's log:\n" + strings.Join(lines[max(0, len(lines)-30):], "\n")
}

// logMark is a position in the agent's log.
type logMark struct{ offset int64 }

// markLog returns the current end of the agent's log.
func markLog(t *testing.T) logMark {
	t.Helper()
	info, err := os.Stat(node().AgentLog())
	if err != nil {
		t.Fatal(err)
	}
	return logMark{info.Size()}
}

// waitLine waits for a log line after the mark that contains all words.
func (m logMark) waitLine(t *testing.T, words ...string) {
	t.Helper()
	eventually(t, fmt.Sprintf("the agent logs %q", words), func() (string, bool) {
		text, err := os.ReadFile(node().AgentLog())
		if err != nil {
			return err.Error(), false
		}
		for line := range strings.Lines(string(text[m.offset:])) {
			if hasAll(line, words) {
				return "", true
			}
		}
		return "", false
	})
}

func hasAll(text string, words []string) bool {
	for _, w := range words {
		if !strings.Contains(text, w) {
			return false
		}
	}
	return true
}

// killAgent kills the agent with SIGKILL and starts it again.
func killAgent(t *testing.T) {
	t.Helper()
	stopAgent(t, unix.SIGKILL)
	startAgent(t)
}

func stopAgent(t *testing.T, sig unix.Signal) {
	t.Helper()
	if err := node().StopAgent(sig); err != nil {
		t.Fatal(err)
	}
}

func startAgent(t *testing.T) {
	t.Helper()
	if err := node().StartAgent(context.Background(), testbed.Nodelet); err != nil {
		t.Fatal(err)
	}
}

// sameAgent fails the test if the agent is another process at the end of the test than now, because it has crashed.
func sameAgent(t *testing.T) {
	t.Helper()
	pid := node().AgentPID()
	t.Cleanup(func() {
		if now := node().AgentPID(); now != pid {
			t.Errorf("process of the agent: got %d, want %d; the agent has crashed%s", now, pid, agentLogTail())
		}
	})
}

// explain runs `nodelet explain`, which prints what the running agent waits for.
func explain(t *testing.T, args ...string) (output string, exitCode int) {
	t.Helper()
	return nodelet(t, append([]string{"explain", "--root-dir=" + node().RootDir}, args...)...)
}

// nodelet runs the nodelet binary with these arguments in the node's network namespace until it exits.
func nodelet(t *testing.T, args ...string) (output string, exitCode int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	argv := append([]string{"--net=" + filepath.Join("/run/netns", node().Netns), "--", program}, args...)
	cmd := exec.CommandContext(ctx, "nsenter", argv...)
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil || cmd.ProcessState == nil {
		t.Fatalf("nodelet %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// containers lists the containers with these labels in the runtime, all or only the running ones.
func containers(t *testing.T, labels map[string]string, running bool) []*runtimeapi.Container {
	t.Helper()
	client, closeConn, err := node().Runtime.CRI()
	if err != nil {
		t.Fatal(err)
	}
	defer closeConn()
	filter := &runtimeapi.ContainerFilter{LabelSelector: labels}
	if running {
		filter.State = &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING}
	}
	answer, err := client.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{Filter: filter})
	if err != nil {
		t.Fatalf("list containers: %v", err)
	}
	return answer.Containers
}

// inside runs a command in a pod's running container with the runtime's ExecSync, and returns its output.
func inside(t *testing.T, pod, container string, command ...string) string {
	t.Helper()
	out, err := tryInside(t, pod, container, command...)
	if err != nil {
		t.Fatalf("run %q in container %s of pod %s: %v", command, container, pod, err)
	}
	return out
}

func tryInside(t *testing.T, pod, container string, command ...string) (string, error) {
	t.Helper()
	found := containers(t, map[string]string{
		"io.kubernetes.pod.name":       pod,
		"io.kubernetes.container.name": container,
	}, true)
	if len(found) != 1 {
		return "", fmt.Errorf("find the running container %s of pod %s: got %d, want 1", container, pod, len(found))
	}
	client, closeConn, err := node().Runtime.CRI()
	if err != nil {
		return "", err
	}
	defer closeConn()
	r, err := client.ExecSync(t.Context(),
		&runtimeapi.ExecSyncRequest{ContainerId: found[0].Id, Cmd: command, Timeout: 20})
	if err != nil {
		return "", err
	}
	if r.ExitCode != 0 {
		return string(r.Stdout), fmt.Errorf("exit code %d: %s%s", r.ExitCode, r.Stdout, r.Stderr)
	}
	return strings.TrimSpace(string(r.Stdout)), nil
}

// shell runs a shell line in a pod's container and returns its output.
func shell(t *testing.T, pod, container, line string) string {
	t.Helper()
	return inside(t, pod, container, "sh", "-c", line)
}
