//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/nodelet/nodelet/test/testbed"
)

// waitNodeEvent waits for an event about the node whose message contains all words.
func waitNodeEvent(t *testing.T, reason string, words ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	o := labelled("")
	o.FieldSelector = "reason=" + reason + ",involvedObject.kind=Node"
	o.ResourceVersion = ""
	if err := follow(ctx, "events", o,
		func(e watch.Event) bool { return hasAll(e.Object.(*corev1.Event).Message, words) }); err != nil {
		t.Errorf("no event %s about the node with %q within %s%s", reason, words, limit, agentLogTail())
	}
}

// runStandalone stops the node's agent and runs nodelet with a manifest directory and without an API server. end
// stops it and starts the node's agent again. The end of the test calls end, too.
func runStandalone(t *testing.T, manifests string) (end func()) {
	t.Helper()
	stopAgent(t, unix.SIGTERM)
	log, err := os.OpenFile(node().AgentLog(), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command("nsenter", "--net="+filepath.Join("/run/netns", node().Netns), "--", program,
		"--config="+node().ConfigFile,
		"--root-dir="+node().RootDir, "--hostname-override="+node().Name, "--node-ip="+node().IP, "--manifests="+manifests,
		"-v=4")
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = tb.Env()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := false
	end = func() {
		if ended {
			return
		}
		ended = true
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			t.Errorf("exit of nodelet without an API server: got %v, want exit code 0%s", err, agentLogTail())
		}
		mark := markLog(t)
		startAgent(t)
		mark.waitLine(t, "node is registered")
	}
	t.Cleanup(end)
	return end
}

// crashing is a pod whose container exits with code 3 as soon as the file /tmp/end exists.
func crashing(name string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: app, image: %s, command: [sh, -c, "while [ ! -e /tmp/end ]; do sleep 0.1; done; exit 3"]}]
`, name, testbed.BusyboxImage)
}

// letEnd makes the file at which a container exits. The container may exit before the command has answered, and the
// command then fails: callers wait for what follows.
func letEnd(t *testing.T, pod, container, file string) {
	t.Helper()
	if _, err := tryInside(t, pod, container, "touch", file); err != nil {
		t.Logf("make %s in container %s of pod %s: %v", file, container, pod, err)
	}
}

// runtimeBack restarts the runtime after a failed test, so that the next test has one.
func runtimeBack(t *testing.T) {
	t.Cleanup(func() {
		if t.Failed() {
			restartRuntime(t)
		}
	})
}

// TestRuntimeComesLate starts the agent before its runtime. The agent reports what it waits for, and runs pods as
// soon as the runtime answers.
func TestRuntimeComesLate(t *testing.T) {
	clean(t)
	runtimeBack(t)
	check := bystander(t)
	stopAgent(t, unix.SIGTERM)
	if err := node().Runtime.Stop(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	mark := markLog(t)
	startAgent(t)
	sameAgent(t)
	apply(t, crashing("late"))
	mark.waitLine(t, "container runtime does not answer", filepath.Base(node().Runtime.Endpoint))
	eventually(t, "explain says that the agent waits for the runtime", func() (string, bool) {
		out, _ := explain(t)
		return out, strings.Contains(out, "waiting for the container runtime at "+node().Runtime.Endpoint)
	})
	if err := node().Runtime.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	waitReady(t, "late")
	t.Logf("the pod was ready %s after the start of the agent", time.Since(began).Round(time.Second))
	check()
}

// lostRuntime is what the agent logs when its runtime has stopped. With a runtime that sends no events, the agent
// notices when it lists the pods.
func lostRuntime() string {
	if silentRuntime() {
		return "cannot list the runtime's pods"
	}
	return "event stream ended"
}

// TestRuntimeKilled kills the runtime with SIGKILL. Pods keep running and keep their container IDs. When the runtime
// is back, the agent sees a container that has terminated in the meantime, and restarts it.
func TestRuntimeKilled(t *testing.T) {
	clean(t)
	runtimeBack(t)
	sameAgent(t)
	check := bystander(t)
	apply(t, crashing("restless"))
	before := containerStatus(waitReady(t, "restless"), "app")
	watched := record("")
	mark := markLog(t)
	if err := node().Runtime.Stop(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	mark.waitLine(t, lostRuntime())
	if err := node().Runtime.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the container can be reached", func() (string, bool) {
		out, err := tryInside(t, "restless", "app", "true")
		return fmt.Sprint(out, err), err == nil
	})
	letEnd(t, "restless", "app", "/tmp/end")
	waitPod(t, "restless", "was restarted and shows full container IDs", func(p *corev1.Pod) bool {
		c := containerStatus(p, "app")
		end := c.LastTerminationState.Terminated
		return c.RestartCount == 1 && c.State.Running != nil && strings.HasPrefix(c.ContainerID, node().Runtime.Name+"://") &&
			c.ContainerID != before.ContainerID &&
			end != nil && end.ContainerID == before.ContainerID && end.ExitCode == 3
	})
	watched.end(t)
	check()
}

// TestAPIServerAway starts the agent while there is no API server: static pods start, and all other pods keep running.
// Then the API server goes away while the agent runs: containers are restarted. The agent reports all of it as soon as
// the API server answers.
func TestAPIServerAway(t *testing.T) {
	clean(t)
	check := bystander(t)
	apply(t, crashing("far"))
	waitReady(t, "far")
	stopAgent(t, unix.SIGTERM)
	if err := tb.StopAPIServer(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // the other tests need the API server and the scheduler, also if this test fails
		if _, err := tb.Kubectl(context.Background(), "get", "--raw=/readyz"); err != nil {
			_ = tb.StartAPIServer(context.Background())
		}
		if err := tb.RestartScheduler(); err != nil {
			t.Error(err)
		}
	})
	mark := markLog(t)
	startAgent(t)
	sameAgent(t)
	manifest(t, node().ManifestDir, "offline.yaml", staticPod("offline", "one"))
	mark.waitLine(t, "cannot register the node, trying again", "connection refused")
	eventually(t, "the static pod runs", func() (string, bool) {
		n := len(containers(t, map[string]string{"io.kubernetes.pod.name": mirrorName("offline")}, true))
		return fmt.Sprintf("%d containers", n), n == 1
	})
	if err := tb.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	mirrorReady(t, "offline", nil)

	// Once more while the agent runs: it reports afterwards what has happened in the meantime.
	if err := tb.StopAPIServer(); err != nil {
		t.Fatal(err)
	}
	letEnd(t, "far", "app", "/tmp/end")
	eventually(t, "the container is restarted without an API server", func() (string, bool) {
		all := containers(t, map[string]string{"io.kubernetes.pod.name": "far"}, true)
		return fmt.Sprint(all), len(all) == 1 && all[0].Metadata.Attempt == 1
	})
	if err := tb.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	waitPod(t, "far", "shows its restart",
		func(p *corev1.Pod) bool { return ready(p) && containerStatus(p, "app").RestartCount == 1 })
	check()
}
