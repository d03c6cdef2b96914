//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodelet/nodelet/kube/client"
	"github.com/nodelet/nodelet/test/testbed"
)

const (
	upgradePods = 110
	newVersion  = "9.9.9-upgraded"
)

// TestLongUpgrade replaces the nodelet binary while 110 pods run whose readiness is probed every one or two seconds,
// once with SIGTERM and once with SIGKILL. No container starts or exits, no pod or endpoint turns not Ready, and the
// node stays Ready.
func TestLongUpgrade(t *testing.T) {
	clean(t)
	dir := t.TempDir()
	place, next := filepath.Join(dir, "nodelet"), filepath.Join(dir, "next")
	t.Cleanup(func() { // the next test needs the usual program
		stopAgent(t, unix.SIGTERM)
		tb.SetNodelet(program)
		startAgent(t)
	})
	tb.SetNodelet(place)
	build := exec.Command("go", "build", "-tags", "grpcnotrace", "-trimpath",
		"-ldflags", "-s -w -X github.com/nodelet/nodelet/config.Version="+newVersion, "-o", next, "../../cmd/nodelet")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the next version: %v\n%s", err, out)
	}
	apply(t, `{apiVersion: v1, kind: Service, metadata: {name: upgrade}, spec: {selector: {upgrade: "yes"},
		ports: [{port: 80}]}}`)
	p := startProbed(t)
	t.Cleanup(func() { // this waits until the pods are gone, unlike a deletion with a grace period of zero
		if _, err := tb.Kubectl(context.Background(), "delete", "pods", "-l", "upgrade", "--timeout=300s"); err != nil {
			t.Error(err)
		}
	})
	for i := range upgradePods {
		p.createPod(t, i)
	}
	eventually(t, "all pods are Ready", func() (string, bool) {
		n := 0
		for _, pod := range listPods(t, "upgrade") {
			if ready(&pod) {
				n++
			}
		}
		time.Sleep(time.Second) // listing all pods costs the API server something
		return fmt.Sprintf("%d of %d", n, upgradePods), n == upgradePods
	})
	p.replace(t, unix.SIGTERM, next, place, newVersion)
	p.replace(t, unix.SIGKILL, program, place, "")
}

// replace stops the agent, replaces its program with another version, starts that, and logs how long each step took.
func (p *probed) replace(t *testing.T, sig unix.Signal, program, place, version string) {
	t.Helper()
	watched := beginWitness(t)
	signalled := time.Now()
	stopAgent(t, sig)
	ended := time.Since(signalled)
	copyProgram(t, program, place)
	p.forget()
	startAgent(t)
	started := time.Since(signalled)
	healthy := make(chan time.Duration, 1)
	go func() {
		for watched.ctx.Err() == nil && !answers("http://"+node().IP+":10248/healthz") {
			time.Sleep(5 * time.Millisecond)
		}
		healthy <- time.Since(signalled)
	}()
	time.Sleep(settling)
	watched.check(t, sig.String())
	t.Logf("%s: the agent had exited after %s, the next was started after "+
		"%s and healthy after %s; its first probe came after %s, "+
		"and after %s each of %d pods had been probed", unix.SignalName(sig), ms(ended), ms(started), ms(<-healthy),
		ms(p.first(t).Sub(signalled)), ms(p.all(t).Sub(signalled)), p.pods)
	n := &corev1.Node{}
	if err := api.Core.Get().Resource("nodes").Name(node().Name).Do(t.Context()).Into(n); err != nil {
		t.Fatal(err)
	}
	if v := n.Status.NodeInfo.KubeletVersion; strings.Contains(v, newVersion) != (version == newVersion) {
		t.Errorf("version of the node: got %s, want %q", v, version)
	}
}

func ms(d time.Duration) time.Duration { return d.Round(time.Millisecond) }

func answers(url string) bool {
	h := http.Client{Timeout: time.Second}
	resp, err := h.Get(url)
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// copyProgram replaces a program as a package manager does: a running process keeps the old file.
func copyProgram(t *testing.T, from, to string) {
	t.Helper()
	text, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to+".new", text, 0o755)
	}
	if err == nil {
		err = os.Rename(to+".new", to)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// probed is a server of the test that the agent probes instead of the pods. It records when the first probe for each
// pod comes.
type probed struct {
	host string
	port int
	pods int // number of pods that are probed over HTTP

	mu   sync.Mutex
	seen map[string]time.Time // first probe since forget, by path
}

func startProbed(t *testing.T) *probed {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(tb.HostIP(), "0"))
	if err != nil {
		t.Fatal(err)
	}
	host, port, _ := net.SplitHostPort(l.Addr().String())
	p := &probed{host: host, seen: map[string]time.Time{}}
	if p.port, err = strconv.Atoi(port); err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: p}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Shutdown(context.Background()) })
	return p
}

func (p *probed) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, before := p.seen[r.URL.Path]; !before {
		p.seen[r.URL.Path] = time.Now()
	}
}

func (p *probed) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.seen)
}

// first returns the time of the first probe of any pod since forget.
func (p *probed) first(t *testing.T) time.Time { return p.pick(t, time.Time.Before) }

// all returns the time when each pod had been probed since forget.
func (p *probed) all(t *testing.T) time.Time { return p.pick(t, time.Time.After) }

func (p *probed) pick(t *testing.T, better func(a, b time.Time) bool) (best time.Time) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.seen) != p.pods {
		t.Errorf("probed pods: got %d, want %d", len(p.seen), p.pods)
	}
	for _, at := range p.seen {
		if best.IsZero() || better(at, best) {
			best = at
		}
	}
	return best
}

// createPod creates a small pod. Most are probed over HTTP each second, some over TCP or with exec every two seconds.
func (p *probed) createPod(t *testing.T, i int) {
	t.Helper()
	app := corev1.Container{
		Name:           "app",
		Image:          testbed.PauseImage,
		ReadinessProbe: &corev1.Probe{PeriodSeconds: 2, TimeoutSeconds: 20},
	}
	switch probe := app.ReadinessProbe; {
	case i%11 == 0:
		app.Image, app.Command = testbed.BusyboxImage, []string{"sleep", "100000"}
		probe.Exec = &corev1.ExecAction{Command: []string{"true"}}
	case i%5 == 0:
		probe.TCPSocket = &corev1.TCPSocketAction{Host: p.host}
		probe.TCPSocket.Port.IntVal = int32(p.port)
	default:
		p.pods++
		probe.PeriodSeconds = 1
		probe.HTTPGet = &corev1.HTTPGetAction{Host: p.host, Path: fmt.Sprintf("/%d", i)}
		probe.HTTPGet.Port.IntVal = int32(p.port)
	}
	grace := int64(1)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:      fmt.Sprintf("small-%d", i),
			Namespace: space,
			Labels:    map[string]string{"upgrade": "yes"},
		},
		Spec: corev1.PodSpec{
			NodeName:                      node().Name,
			TerminationGracePeriodSeconds: &grace,
			Containers:                    []corev1.Container{app},
		},
	}
	if err := api.Core.Post().Namespace(space).Resource("pods").VersionedParams(&metav1.CreateOptions{},
		client.Parameters).
		Body(pod).Do(t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
}
