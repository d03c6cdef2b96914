//go:build e2e

package e2e

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// TestCommands runs the commands that need no API server against the running agent: status, pods, logs, exec, config,
// check and support. The pod has a secret in its environment and its arguments, which must not be in the archive.
func TestCommands(t *testing.T) {
	clean(t)
	const canary = "c4n4ry-in-a-pod"
	text := strings.Replace(staticPod("local", "one"), "command: [sh, -c, \"",
		"env: [{name: PASSWORD, value: "+canary+"}]\n    command: [sh, -c, \": "+canary+"; echo line one; echo line two; ", 1)
	manifest(t, node().ManifestDir, "local.yaml", text)
	pod := mirrorReady(t, "local", nil).Name
	root := "--root-dir=" + node().RootDir
	ok := func(want string, args ...string) string {
		t.Helper()
		out, code := nodelet(t, args...)
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("nodelet %s: got exit code %d and %q, want 0 and %q", strings.Join(args, " "), code, out, want)
		}
		return out
	}
	ok("True: ", "status", root)
	ok("default/"+pod, "explain", root, "-o", "json")
	ok(pod, "explain", root, "-n", "default")
	if out := ok("", "explain", root, "--not-ready"); strings.Contains(out, pod) {
		t.Errorf("explain --not-ready: got %q with a ready pod", out)
	}
	ok("1/1     Running", "pods", root, "-n", "default")
	var list corev1.PodList
	if err := json.Unmarshal([]byte(ok("", "pods", root, "-o", "json", pod)), &list); err != nil || len(list.Items) != 1 {
		t.Errorf("pods -o json: got %d pods, %v, want one", len(list.Items), err)
	}
	ok("line one\nline two\n", "logs", root, pod)
	if out := ok("line two\n", "logs", root, "--tail=1", pod); strings.Contains(out, "line one") {
		t.Errorf("logs --tail=1: got %q", out)
	}
	ok("hello "+canary, "exec", pod, root, "--", "sh", "-c", "echo hello $PASSWORD")
	out, code := nodelet(t, "exec", root, pod, "--", "sh", "-c", "echo oops >&2; exit 7")
	if code != 7 || out != "oops\n" {
		t.Errorf("exec: got exit code %d and %q, want 7 and oops", code, out)
	}
	out, code = nodelet(t, "exec", root, pod, "--", "/nonexistent")
	if code == 0 || !strings.Contains(out, "nonexistent") {
		t.Errorf("exec of nothing: got exit code %d and %q", code, out)
	}
	ok("cgroupDriver: ", "config", "view", "--running", root)
	ok("valid, with", "config", "validate", "--config="+node().ConfigFile, "--hostname-override=n")
	own := []string{"--config=" + node().ConfigFile, "--hostname-override=n", "-v=2"}
	if out := ok("", append([]string{"config", "diff", "--running", root}, own...)...); out != "" {
		t.Errorf("config diff with the agent's own file: got %q, want nothing", out)
	}
	if out, code := nodelet(t, "check", "--config="+node().ConfigFile, "--hostname-override=n"); code != 2 ||
		!strings.Contains(out, "runtime   "+node().Runtime.Name) || !strings.Contains(out, "is in use by another program") {
		t.Errorf("check: got exit code %d and %q, want the runtime, and 2 because the ports are in use", code, out)
	}
	archive := filepath.Join(t.TempDir(), "support.tar.gz")
	ok("look at it", "support", root, archive)
	checkArchive(t, archive, pod, canary)
}

// checkArchive checks that the archive of nodelet support names the pod and has no secret of it or of the node.
func checkArchive(t *testing.T, file, pod, canary string) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	gz, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for r := tar.NewReader(gz); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		found = found || strings.HasSuffix(h.Name, "/pods.json") && strings.Contains(string(text), pod)
		for _, secret := range []string{canary, "PRIVATE KEY", "client-key-data"} {
			if strings.Contains(string(text), secret) {
				t.Errorf("%s in the archive: got %q in it, want no secret", h.Name, secret)
			}
		}
	}
	if !found {
		t.Errorf("pods.json in the archive: got no pod %s, want it", pod)
	}
}

// TestExplainWithoutRuntime checks that explain and status answer in JSON while the runtime has not answered yet.
func TestExplainWithoutRuntime(t *testing.T) {
	clean(t)
	stopAgent(t, unix.SIGTERM)
	if err := node().Runtime.Stop(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := node().Runtime.Start(context.Background()); err != nil {
			t.Fatal(err)
		}
		if err := node().WaitReady(context.Background(), limit); err != nil {
			t.Fatal(err)
		}
	})
	startAgent(t)
	root := "--root-dir=" + node().RootDir
	eventually(t, "the agent waits for the runtime", func() (string, bool) {
		out, code := nodelet(t, "explain", "-o", "json", root)
		var report struct {
			Pods  []any
			Error string
		}
		return out, code == 1 && json.Unmarshal([]byte(out), &report) == nil && report.Pods != nil &&
			strings.Contains(report.Error, "waiting for the container runtime")
	})
	if out, code := nodelet(t, "status", root); code != 1 || !strings.Contains(out, "waiting for the container runtime") {
		t.Errorf("status: got exit code %d and %q", code, out)
	}
}
