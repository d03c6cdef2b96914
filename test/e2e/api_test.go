//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/test/testbed"
)

// talker is a pod with every kind of container: one that has terminated, one that serves HTTP, one that echoes its
// input, and one that has restarted.
const talker = `
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: default}
spec:
  terminationGracePeriodSeconds: 0
  initContainers:
  - {name: first, image: "` + testbed.BusyboxImage + `", command: [sh, -c, "echo first is done"]}
  - {name: side, image: "` + testbed.BusyboxImage +
	`", restartPolicy: Always, command: [sh, -c, "echo at your side; sleep 100000"]}
  containers:
  - {name: app, image: "` + testbed.AgnhostImage + `", args: [netexec, --http-port=8080]}
  - name: talk
    image: "` + testbed.BusyboxImage + `"
    stdin: true
    command:
    - sh
    - -c
    - for i in 1 2 3 4 5; do echo out $i; done; sleep 1; echo oops >&2; touch /tmp/said;
      while read line; do echo heard $line; done
    readinessProbe: {exec: {command: [test, -f, /tmp/said]}, periodSeconds: 1}
  - name: again
    image: "` + testbed.BusyboxImage + `"
    command: [sh, -c, "test -f /data/x && { echo second run; sleep 100000; }; touch /data/x; echo first run; exit 1"]
    volumeMounts: [{name: data, mountPath: /data}]
  volumes: [{name: data, emptyDir: {}}]
`

func startTalker(t *testing.T, name string) {
	t.Helper()
	apply(t, fmt.Sprintf(talker, name))
	waitReady(t, name)
}

// kubectlIn runs kubectl with standard input and returns its standard output, standard error and exit code.
func kubectlIn(t *testing.T, in io.Reader, args ...string) (out, errs string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := kubectlCommand(ctx, args...)
	var o, e bytes.Buffer
	cmd.Stdin = in
	cmd.Stdout, cmd.Stderr = &o, &e
	err := cmd.Run()
	if err != nil && cmd.ProcessState == nil {
		t.Fatalf("kubectl %q: %v", args, err)
	}
	return o.String(), e.String(), cmd.ProcessState.ExitCode()
}

func kubectlCommand(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "kubectl", args...)
	for _, dir := range filepath.SplitList(tb.Path()) {
		if p := filepath.Join(dir, "kubectl"); unix.Access(p, unix.X_OK) == nil {
			cmd = exec.CommandContext(ctx, p, args...)
			break
		}
	}
	cmd.Env = tb.Env()
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// TestKubectlLogsExec is the short check that kubectl logs and kubectl exec reach a container.
func TestKubectlLogsExec(t *testing.T) {
	startTalker(t, "talker")
	if got := kubectl(t, "logs", "talker", "-c", "first"); got != "first is done" {
		t.Errorf("logs of an init container: got %q, want %q", got, "first is done")
	}
	out, errs, code := kubectlIn(t, strings.NewReader("to and fro"),
		"exec", "-i", "talker", "-c", "app", "--", "sh", "-c", "cat; echo to stderr >&2; exit 7")
	if out != "to and fro" || !strings.Contains(errs, "to stderr") || code != 7 {
		t.Errorf("exec: got output %q, errors %q, exit code %d; want %q, %q, 7", out, errs, code, "to and fro", "to stderr")
	}
}

// TestLongKubectl checks kubectl logs, exec, attach, debug, cp and port-forward: over WebSockets, which reach the node
// (KEP-4006), and over SPDY.
func TestLongKubectl(t *testing.T) {
	startTalker(t, "talker")
	t.Run("logs", checkLogs)
	before := webSockets(t)
	t.Run("exec", checkExec)
	t.Run("cp", checkCopy)
	t.Run("port-forward", checkForward)
	t.Run("debug", checkDebug)
	after := webSockets(t)
	for _, kind := range []string{"exec", "attach", "portforward"} {
		if after[kind] <= before[kind] {
			t.Errorf("%s: got %d WebSockets at the node before and %d after, want more", kind, before[kind], after[kind])
		}
	}
	t.Run("over SPDY", func(t *testing.T) {
		t.Setenv("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "false")
		t.Setenv("KUBECTL_PORT_FORWARD_WEBSOCKETS", "false")
		checkExec(t)
		checkForward(t)
		if got := webSockets(t); !maps.Equal(got, after) {
			t.Errorf("WebSockets at the node: got %v, want %v as before", got, after)
		}
	})
}

var webSocketSeries = regexp.MustCompile(
	`(?m)^kubelet_websocket_streaming_requests_total\{subresource="(\w+)"\} (\d+)$`)

// webSockets returns how many streams have reached the node as WebSockets, by their kind.
func webSockets(t *testing.T) map[string]int {
	t.Helper()
	out := map[string]int{}
	for _, m := range webSocketSeries.FindAllStringSubmatch(scrape(t, "metrics"), -1) {
		out[m[1]], _ = strconv.Atoi(m[2])
	}
	return out
}

func checkLogs(t *testing.T) {
	lines := "out 1\nout 2\nout 3\nout 4\nout 5\noops"
	for _, c := range []struct{ args, want string }{
		{"-c talk", lines},
		{"-c talk --tail=2", "out 5\noops"},
		{"-c talk --tail=0", ""},
		{"-c talk --limit-bytes=8", "out 1\nou"},
		{"-c talk --since=1h", lines},
		{"-c talk --since-time=2100-01-01T00:00:00Z", ""},
		{"-c side", "at your side"},
		{"-c again -p", "first run"},
		{"-c again", "second run"},
		{"--all-containers --prefix -l none=none", ""},
		{"-c first -f", "first is done"},
	} {
		args := append([]string{"logs"}, strings.Fields(c.args)...)
		if !strings.Contains(c.args, "-l ") {
			args = append(args, "talker")
		}
		out, errs, code := kubectlIn(t, nil, args...)
		if strings.TrimSuffix(out, "\n") != c.want || code != 0 {
			t.Errorf("logs %s: got output %q, errors %q, exit code %d; want output %q", c.args, out, errs, code, c.want)
		}
	}
	stamped := kubectl(t, "logs", "talker", "-c", "talk", "--timestamps", "--tail=1")
	if at, line, _ := strings.Cut(stamped, " "); line != "oops" {
		t.Errorf("logs with timestamps: got %q, want a timestamp and %q", stamped, "oops")
	} else if when, err := time.Parse(time.RFC3339Nano, at); err != nil || time.Since(when) > time.Hour ||
		len(at) != len("2006-01-02T15:04:05.000000000Z") {
		t.Errorf("timestamp of a log line: got %q, want RFC 3339 with nine digits, at most an hour old", at)
	}
	for args, want := range map[string]string{
		"logs talker -c talk -p":   "previous terminated container \"talk\" in pod \"talker\" not found",
		"logs talker -c missing":   "container missing is not valid",
		"logs missing -c whatever": "not found",
	} {
		if _, errs, code := kubectlIn(t, nil, strings.Fields(args)...); code == 0 || !strings.Contains(errs, want) {
			t.Errorf("%s: got errors %q, exit code %d; want %q", args, errs, code, want)
		}
	}
}

func checkExec(t *testing.T) {
	for _, c := range []struct {
		in, args, out, errs string
		code                int
	}{
		{"", "talker -c app -- echo hello", "hello\n", "", 0},
		{"", "talker -c side -- echo hello", "hello\n", "", 0},
		{"", "talker -c app -- sh -c exit${IFS}42", "", "exit code 42", 42},
		{"", "talker -c app -- /no/such/thing", "", "no such file", 126},
		{"", "talker -c first -- true", "", "container not found", 1},
		{"a b c", "-i talker -c app -- wc -w", "3\n", "", 0},
	} {
		out, errs, code := kubectlIn(t, strings.NewReader(c.in), append([]string{"exec"}, strings.Fields(c.args)...)...)
		if out != c.out || !strings.Contains(errs, c.errs) || (code == 0) != (c.code == 0) {
			t.Errorf("exec %s: got %q %q %d, want %q %q %d", c.args, out, errs, code, c.out, c.errs, c.code)
		}
	}
	// With a terminal, its size reaches the container. kubectl sends the size after the start. Ctrl-C becomes a signal.
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := kubectlCommand(ctx, "exec", "-it", "talker", "-c", "side", "--", "sh", "-c",
		"until stty size 2>/dev/null | grep .; do sleep 0.1; done; tty; sleep 1000; echo not reached")
	script := exec.CommandContext(ctx, "script", "-qec", "stty rows 33 cols 77; "+quoted(cmd.Args), "/dev/null")
	script.Env, script.WaitDelay = cmd.Env, time.Second
	in, w := pipe(t)
	script.Stdin = in
	// Ctrl-C when the shell has begun to sleep
	out := &waited{want: "/dev/pts", found: func() { _, _ = w.Write([]byte{3}) }}
	script.Stdout = out
	err := script.Run()
	w.Close()
	if got := out.String(); err == nil || !strings.Contains(got, "33 77") || strings.Contains(got, "not reached") {
		t.Errorf("exec -it: got %q, %v; want the terminal size 33 77 and an end by Ctrl-C", got, err)
	}
	// kubectl attach sends input to the running container and returns its output.
	cmd = kubectlCommand(ctx, "attach", "-i", "talker", "-c", "talk")
	in, w = pipe(t)
	answer := &waited{want: "heard you", found: func() { w.Close(); _ = cmd.Process.Kill() }}
	cmd.Stdin, cmd.Stdout = in, answer
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte("you\n")); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait()
	if !strings.Contains(answer.String(), "heard you") {
		t.Errorf("attach: got %q, want %q", answer, "heard you")
	}
}

// pipe returns a kernel pipe. Unlike with an io.Pipe, exec.Cmd does not wait until a copy of its input has ended.
func pipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	return r, w
}

func quoted(args []string) string {
	var b strings.Builder
	for _, a := range args {
		b.WriteString("'" + strings.ReplaceAll(a, "'", `'\''`) + "' ")
	}
	return b.String()
}

// waited collects output and calls found once, as soon as the output contains want.
type waited struct {
	mu    sync.Mutex
	buf   bytes.Buffer
	want  string
	found func()
}

func (w *waited) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.buf.Write(b)
	if w.found != nil && strings.Contains(w.buf.String(), w.want) {
		go w.found()
		w.found = nil
	}
	return len(b), nil
}

func (w *waited) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.String()
}

func checkCopy(t *testing.T) {
	const size = 200 << 20
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	f, err := os.Create(from)
	if err != nil {
		t.Fatal(err)
	}
	h := sha256.New()
	_, err = io.CopyN(io.MultiWriter(f, h), rand.NewChaCha8([32]byte{1}), size)
	if err != nil || f.Close() != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("%x", h.Sum(nil))
	began := time.Now()
	kubectl(t, "cp", from, "talker:/tmp/big", "-c", "app")
	sent := time.Since(began)
	if got := kubectl(t, "exec", "talker", "-c", "app", "--", "sha256sum", "/tmp/big"); !strings.HasPrefix(got, want) {
		t.Errorf("checksum of the file in the container: got %s, want %s", got, want)
	}
	began = time.Now()
	kubectl(t, "cp", "talker:/tmp/big", to, "-c", "app")
	t.Logf("copying 200 MiB took %s to the container and %s back", sent.Round(time.Millisecond),
		time.Since(began).Round(time.Millisecond))
	if got := sumOf(t, to); got != want {
		t.Errorf("checksum of the file copied back: got %s, want %s", got, want)
	}
}

func sumOf(t *testing.T, file string) string {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}

// checkForward sends many concurrent requests through one port-forward.
func checkForward(t *testing.T) {
	cmd := kubectlCommand(t.Context(), "port-forward", "pod/talker", ":8080", "--address=127.0.0.1")
	ready := make(chan struct{})
	out := &waited{want: "Forwarding from", found: func() { close(ready) }}
	cmd.Stdout = out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	select {
	case <-ready:
	case <-time.After(limit):
		t.Fatalf("port-forward: %s", out)
	}
	port, _, _ := strings.Cut(strings.SplitN(out.String(), "127.0.0.1:", 2)[1], " ")
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}
	var all sync.WaitGroup
	for i := range 100 {
		all.Go(func() {
			msg := strconv.Itoa(i) + strings.Repeat("x", 10_000)
			resp, err := client.Get("http://" + net.JoinHostPort("127.0.0.1", port) + "/echo?msg=" + msg)
			if err != nil {
				t.Errorf("request %d: %v", i, err)
				return
			}
			defer resp.Body.Close()
			if got, err := io.ReadAll(resp.Body); err != nil || string(got) != msg {
				t.Errorf("request %d: got %d bytes, %v; want the %d bytes that were sent", i, len(got), err, len(msg))
			}
		})
	}
	all.Wait()
}

func checkDebug(t *testing.T) {
	kubectl(t, "debug", "talker", "--image="+testbed.BusyboxImage, "-c", "dbg", "--target=app", "--",
		"sh", "-c", "echo debugging; sleep 100000")
	waitPod(t, "talker", "its debug container runs", ephemeralRuns)
	if got := kubectl(t, "logs", "talker", "-c", "dbg"); got != "debugging" {
		t.Errorf("logs of the debug container: got %q, want %q", got, "debugging")
	}
	if got := kubectl(t, "exec", "talker", "-c", "dbg", "--", "ps"); !strings.Contains(got, "netexec") {
		t.Errorf("processes that the debug container sees: got\n%s\nwant also netexec, which runs in its target", got)
	}
}

func ephemeralRuns(p *corev1.Pod) bool {
	for _, c := range p.Status.EphemeralContainerStatuses {
		if c.State.Running != nil {
			return true
		}
	}
	return false
}

// setVerbosity sets the verbosity of the agent's log and expects want in the answer or in the error.
func setVerbosity(t *testing.T, to, want string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "verbosity")
	if err := os.WriteFile(file, []byte(to), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := tb.Kubectl(context.Background(), "replace", "--raw",
		"/api/v1/nodes/"+node().Name+"/proxy/debug/flags/v", "-f", file)
	if !strings.Contains(fmt.Sprint(out, err), want) {
		t.Errorf("set verbosity %q: got %s, %v; want %q", to, out, err, want)
	}
}

// TestLogVerbosity changes the log verbosity through the API server while the agent runs.
func TestLogVerbosity(t *testing.T) {
	clean(t)
	sameAgent(t)
	setVerbosity(t, "much", "BadRequest")
	setVerbosity(t, "4", "successfully set klog.logging.verbosity to 4")
	t.Cleanup(func() { setVerbosity(t, "2", "successfully set klog.logging.verbosity to 2") })
	mark := markLog(t)
	apply(t, fmt.Sprintf(talker, "talker"))
	mark.waitLine(t, "level=DEBUG", "talker")
}
