//go:build e2e

package e2e

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/websocket"
	"k8s.io/client-go/rest"

	"github.com/nodelet/nodelet/kube/client"
	"github.com/nodelet/nodelet/test/testbed"
)

// TestLongFollowRotation follows a log that is rotated several times. No line is lost and none is repeated.
func TestLongFollowRotation(t *testing.T) {
	const lines = 600_000
	apply(t, `
apiVersion: v1
kind: Pod
metadata: {name: chatty, namespace: default}
spec:
  terminationGracePeriodSeconds: 0
  restartPolicy: Never
  containers:
  - name: app
    image: `+testbed.BusyboxImage+`
    command:
    - sh
    - -c
    - |
      sleep 5
      for part in 0 1 2 3 4 5 6 7 8 9; do
        awk -v p=$part 'BEGIN{for(i=0;i<60000;i++)printf "%d %080d\n",p*60000+i,0}'
        sleep 6
      done
`)
	waitReady(t, "chatty")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	cmd := kubectlCommand(ctx, "logs", "-f", "chatty")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	n := 0
	for s := bufio.NewScanner(out); s.Scan(); n++ {
		if want := fmt.Sprintf("%d %080d", n, 0); s.Text() != want {
			t.Fatalf("line %d: got %.100q, want %.100q", n, s.Text(), want)
		}
	}
	if err := cmd.Wait(); err != nil || n != lines {
		t.Errorf("lines: got %d, %v; want %d", n, err, lines)
	}
	pod := getPod(t, "chatty")
	files, err := os.ReadDir(node().PodLogsDir + "/default_chatty_" + string(pod.UID) + "/app")
	if err != nil || len(files) < 3 {
		t.Errorf("log files: got %v, %v; want at least 3", files, err)
	}
	for _, f := range files {
		info, _ := f.Info()
		t.Logf("%s %d", f.Name(), info.Size())
	}
}

// TestLongAuthorization checks authentication and authorization of the kubelet API with real tokens and roles.
func TestLongAuthorization(t *testing.T) {
	apply(t, `
apiVersion: v1
kind: ServiceAccount
metadata: {name: reader, namespace: default}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: no-rights, namespace: default}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: e2e-node-reader}
rules: [{apiGroups: [""], resources: [nodes/metrics, nodes/proxy], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: e2e-node-reader}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: e2e-node-reader}
subjects: [{kind: ServiceAccount, name: reader, namespace: default}]
`)
	reader, noRights := kubectl(t, "create", "token", "reader"), kubectl(t, "create", "token", "no-rights")
	h := &http.Client{
		Timeout:   30 * time.Second,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}},
	}
	mark := markLog(t)
	for _, c := range []struct {
		token, path string
		upgrade     bool
		code        int
	}{
		{"", "/pods", false, 401},
		{"", "/exec/default/x/y?output=1", true, 401},
		{"rubbish", "/metrics", false, 401},
		{"", "/nowhere", false, 401},
		{noRights, "/metrics", false, 403},
		{noRights, "/pods", false, 403},
		{noRights, "/healthz", false, 403},
		{reader, "/metrics", false, 200},
		{reader, "/pods", false, 200},
		{reader, "/stats/summary", false, 403},
		{reader, "/logs/", false, 403},
		{reader, "/exec/default/x/y?output=1&command=id", true, 403},
		{reader, "/portForward/default/x", true, 403},
		{reader, "/nowhere", false, 404},
		{reader, "/metrics/../exec/default/x/y", false, 404},
		{reader, "//pods", false, 404},
	} {
		req, err := http.NewRequestWithContext(t.Context(), "GET", "https://"+node().IP+":10250", nil)
		if err != nil {
			t.Fatal(err)
		}
		path, query, _ := strings.Cut(c.path, "?")
		req.URL = &url.URL{
			Scheme:   "https",
			Host:     node().IP + ":10250",
			Opaque:   "//" + node().IP + ":10250" + path,
			RawQuery: query,
		}
		if c.token != "" {
			req.Header.Set("Authorization", "Bearer "+c.token)
		}
		if c.upgrade {
			req.Header.Set("Connection", "Upgrade")
			req.Header.Set("Upgrade", "websocket")
			req.Header.Set("Sec-WebSocket-Version", "13")
			req.Header.Set("Sec-WebSocket-Key", "x3JJHMbDL1EzLkh9GBhXDw==")
		}
		resp, err := h.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != c.code || resp.Header.Get("Location") != "" {
			t.Errorf("%s: got %s %.200q, want %d", c.path, resp.Status, body, c.code)
		}
	}
	mark.waitLine(t, "request refused")
	log, err := os.ReadFile(node().AgentLog())
	if err != nil || strings.Contains(string(log), reader) || strings.Contains(string(log), noRights) {
		t.Errorf("log of the agent: got a token in it or an error, want neither: %v", err)
	}
}

// TestLongLoad runs 200 concurrent exec sessions while 500 clients follow a log for a minute. No session fails, and
// afterwards the agent needs no more memory than before. A load of the same size runs first: the pages of the program
// for such sessions stay resident, and Go keeps the descriptors of goroutines and of memory for the next ones.
func TestLongLoad(t *testing.T) {
	const execs, follows = 200, 500
	apply(t, `
apiVersion: v1
kind: Pod
metadata: {name: busy, namespace: default}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {name: app, image: "`+testbed.BusyboxImage+`", command: [sh, -c, "while true; do date; sleep 1; done"]}
`)
	waitReady(t, "busy")
	load(t, "busy", execs, follows, 15*time.Second)
	before := settledMemory(t)
	during := load(t, "busy", execs, follows, time.Minute)
	after := settledMemory(t)
	t.Logf("memory before %d KiB, during %d KiB, after %d KiB", before, during, after)
	if after > before*105/100 {
		t.Errorf("memory after the load: got %d KiB, want at most %d KiB, 105%% of that before", after, before*105/100)
	}
}

// load follows the log of a pod many times for a while, and runs many exec sessions at the same time. It returns the
// agent's memory during the load.
func load(t *testing.T, pod string, execs, follows int, during time.Duration) (kib int64) {
	t.Helper()
	cfg, err := client.LoadConfig(tb.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), during)
	defer cancel()
	var all, sessions sync.WaitGroup
	var lines atomic.Int64
	for i := range follows {
		all.Go(func() {
			n, err := followFor(ctx, pod)
			lines.Add(n)
			if err != nil {
				t.Errorf("follow %d: %v", i, err)
			}
		})
	}
	began := time.Now()
	for i := range execs {
		sessions.Go(func() {
			if err := echoSession(cfg, pod); err != nil {
				t.Errorf("exec %d: %v", i, err)
			}
		})
	}
	sessions.Wait()
	took := time.Since(began)
	kib = memory(t)
	all.Wait()
	t.Logf("%d exec sessions took %s during %d followed logs with %d lines", execs, took.Round(time.Millisecond), follows,
		lines.Load())
	return kib
}

// followFor follows a pod's log until ctx ends, and counts its lines.
func followFor(ctx context.Context, pod string) (lines int64, err error) {
	s, err := api.Core.Get().Namespace(space).Resource("pods").Name(pod).SubResource("log").Param("follow",
		"true").Stream(ctx)
	if err != nil {
		return 0, err
	}
	defer s.Close()
	scan := bufio.NewScanner(s)
	for scan.Scan() {
		lines++
	}
	if ctx.Err() == nil || lines < 5 {
		return lines, fmt.Errorf("ended after %d lines: %w", lines, cmp.Or(scan.Err(), io.EOF))
	}
	return lines, nil
}

// echoSession runs cat over a WebSocket, sends a line, and waits until the line comes back.
func echoSession(cfg *rest.Config, pod string) error {
	t, err := rest.TLSConfigFor(cfg)
	if err != nil {
		return err
	}
	u, err := url.Parse(strings.Replace(cfg.Host, "https://", "wss://", 1) +
		"/api/v1/namespaces/" + space + "/pods/" + pod + "/exec?command=cat&stdin=true&stdout=true")
	if err != nil {
		return err
	}
	c, err := websocket.DialConfig(&websocket.Config{
		Location:  u,
		Origin:    u,
		Protocol:  []string{"v4.channel.k8s.io"},
		Version:   13,
		TlsConfig: t,
	})
	if err != nil {
		return err
	}
	defer c.Close()
	c.PayloadType = websocket.BinaryFrame
	_ = c.SetDeadline(time.Now().Add(3 * time.Minute))
	if _, err := c.Write([]byte("\x00hello\n")); err != nil {
		return err
	}
	got := ""
	for !strings.Contains(got, "hello") {
		var frame []byte
		if err := websocket.Message.Receive(c, &frame); err != nil {
			return fmt.Errorf("after %q: %w", got, err)
		}
		if len(frame) > 1 && frame[0] == 1 {
			got += string(frame[1:])
		}
	}
	return nil
}

// memory returns the agent's resident memory in KiB.
func memory(t *testing.T) (kib int64) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", node().AgentPID()))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "VmRSS:")
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		t.Fatal(err)
	}
	return kib
}

// settledMemory returns the smallest value of a minute: the agent returns memory to the kernel every 20 s.
func settledMemory(t *testing.T) int64 {
	t.Helper()
	least := memory(t)
	for range 12 {
		time.Sleep(5 * time.Second)
		least = min(least, memory(t))
	}
	return least
}
