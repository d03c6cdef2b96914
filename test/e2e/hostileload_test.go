//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/nodelet/nodelet/kube/client"
	"github.com/nodelet/nodelet/test/testbed"
)

// probePeriod is that of the neighbour's probe, the shortest that there is.
const probePeriod = time.Second

// TestLongHostileLoad measures the probes and starts of well-behaved pods, alone and then beside pods that do what
// costs a node agent most: 10,000 ConfigMap updates a minute, floods of execs and logs, probes that never answer,
// termination messages of 1 GiB, and a volume with a million files. Both figures of one run are compared, because the
// machine is slower or faster each time.
func TestLongHostileLoad(t *testing.T) {
	clean(t)
	sameAgent(t)
	bystander(t)
	n := startNeighbour(t)
	startOnce(t, "warm")
	idle := n.measure(t, 90*time.Second)
	memoryBefore := memory(t)

	cfg, err := client.LoadConfig(tb.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	apply(t, hostilePods())
	files := waitReady(t, 2*time.Minute, "hostile-files")
	waitReady(t, time.Minute, "hostile-exec")
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	var updates, execs atomic.Int64
	all.Go(func() { flood(ctx, &updates) })
	for range 4 {
		all.Go(func() { execFlood(ctx, cfg, &execs) })
	}
	all.Go(func() { millionFiles(t, ctx, files) })
	began := time.Now()
	hostile := n.measure(t, 2*time.Minute)
	took := time.Since(began)
	memoryUnder := memory(t)
	cancel()
	all.Wait()

	removing := startWhileRemoving(t)

	perMinute := float64(updates.Load()) / took.Minutes()
	t.Logf("%.0f ConfigMap updates a minute, %d execs, termination messages of %d restarts, memory %d then %d KiB",
		perMinute, execs.Load(), restarts(getPod(t, "hostile-message")), memoryBefore, memoryUnder)
	t.Logf("idle:    %s", idle)
	t.Logf("hostile: %s", hostile)
	t.Logf("start while the files are removed: %s", removing)
	t.Logf("ratios: median time between probes %.2f, 99th percentile %.2f, median start %.2f",
		ratio(hostile.gap(50), idle.gap(50)), ratio(hostile.gap(99), idle.gap(99)),
		ratio(hostile.start(50), idle.start(50)))
	if perMinute < 1000 || execs.Load() < 20 || restarts(getPod(t, "hostile-message")) < 1 {
		t.Errorf("load: got %.0f updates a minute, %d execs; this is too little to have tested anything",
			perMinute, execs.Load())
	}
	if got := hostile.gap(50); got > probePeriod*11/10 {
		t.Errorf("median time between the neighbour's probes: got %s, want at most 10%% more than %s", got, probePeriod)
	}
	if got, limit := hostile.gap(99), 2*idle.gap(99)+probePeriod; got > limit {
		t.Errorf("99th percentile of the time between the neighbour's probes: got %s, want at most %s", got, limit)
	}
	if got, limit := hostile.start(50), 3*idle.start(50)+time.Second; got > limit {
		t.Errorf("median start of a pod: got %s, want at most %s", got, limit)
	}
	if limit := 3*idle.start(50) + time.Second; removing > limit {
		t.Errorf("start of a pod while a million files are removed: got %s, want at most %s", removing, limit)
	}
	if p := getPod(t, "neighbour"); restarts(p) > 0 || !ready(p) {
		t.Errorf("the neighbour at the end: got %s, want it Ready and never restarted", describe(p))
	}
}

// startWhileRemoving deletes the pod with the many files and returns how long another takes to start meanwhile.
func startWhileRemoving(t *testing.T) time.Duration {
	t.Helper()
	remove := api.Core.Delete().Namespace(space).Resource("pods").Name("hostile-files")
	if err := remove.Do(t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
	took := startOnce(t, "beside-removal")
	waitGone(t, 5*time.Minute, "hostile-files")
	return took
}

// neighbour is a pod with an HTTP probe that the test answers and counts.
type neighbour struct {
	mu     sync.Mutex
	probed []time.Time
}

func startNeighbour(t *testing.T) *neighbour {
	t.Helper()
	l, err := testbed.Listen(node())
	if err != nil {
		t.Fatal(err)
	}
	n := &neighbour{}
	server := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.probed = append(n.probed, time.Now())
	})}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { server.Close() })
	_, port, _ := strings.Cut(l.Addr().String(), ":")
	apply(t, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: neighbour}
spec:
  terminationGracePeriodSeconds: 1
  nodeName: %s
  hostNetwork: true
  containers:
  - name: app
    image: %s
    livenessProbe:
      httpGet: {host: 127.0.0.1, port: %s, path: /}
      periodSeconds: 1
      timeoutSeconds: 1
      failureThreshold: 3
`, node().Name, testbed.PauseImage, port))
	waitReady(t, time.Minute, "neighbour")
	return n
}

// figures are sorted times between probes, and sorted times from the creation of a pod until it is Ready.
type figures struct{ gaps, starts []time.Duration }

func (f figures) gap(percent int) time.Duration   { return at(f.gaps, percent) }
func (f figures) start(percent int) time.Duration { return at(f.starts, percent) }

// at returns a percentile of sorted values.
func at(sorted []time.Duration, percent int) time.Duration {
	return sorted[min(len(sorted)-1, len(sorted)*percent/100)].Round(time.Millisecond)
}

func (f figures) String() string {
	return fmt.Sprintf("%d probes, between them median %s, 99th percentile %s, longest %s; "+
		"%d starts, median %s, longest %s", len(f.gaps), f.gap(50), f.gap(99), f.gap(100), len(f.starts),
		f.start(50), f.start(100))
}

func ratio(a, b time.Duration) float64 { return float64(a) / float64(b) }

// measure starts one pod after the other for a while, and counts the probes meanwhile.
func (n *neighbour) measure(t *testing.T, during time.Duration) (f figures) {
	t.Helper()
	n.mu.Lock()
	n.probed = nil
	n.mu.Unlock()
	for i, began := 0, time.Now(); time.Since(began) < during; i++ {
		f.starts = append(f.starts, startOnce(t, fmt.Sprintf("measured-%d", i)))
		time.Sleep(time.Second)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for i := 1; i < len(n.probed); i++ {
		f.gaps = append(f.gaps, n.probed[i].Sub(n.probed[i-1]))
	}
	slices.Sort(f.gaps)
	slices.Sort(f.starts)
	if len(f.gaps) < 10 || len(f.starts) < 3 {
		t.Fatalf("got %d probes and %d starts in %s, want more", len(f.gaps), len(f.starts), during)
	}
	return f
}

// startOnce returns how long a pod takes from its creation until it is Ready. The pod is deleted.
func startOnce(t *testing.T, name string) time.Duration {
	t.Helper()
	zero := int64(0)
	p := &corev1.Pod{}
	p.Name, p.Namespace = name, space
	p.Spec.NodeName, p.Spec.TerminationGracePeriodSeconds = node().Name, &zero
	p.Spec.Containers = []corev1.Container{{Name: "app", Image: testbed.PauseImage}}
	began := time.Now()
	if err := api.Core.Post().Namespace(space).Resource("pods").Body(p).Do(t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
	waitReady(t, 2*time.Minute, name)
	took := time.Since(began)
	if err := api.Core.Delete().Namespace(space).Resource("pods").Name(name).Do(t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
	waitGone(t, 2*time.Minute, name)
	return took
}

// hostilePods are the pods of the load. Their CPU is limited, so that they do not simply take the machine's.
func hostilePods() string {
	pod := func(name, container string) string {
		return fmt.Sprintf(`
---
apiVersion: v1
kind: Pod
metadata: {name: hostile-%s}
spec:
  terminationGracePeriodSeconds: 0
  nodeName: %s
  volumes: [{name: config, configMap: {name: hostile}}, {name: scratch, emptyDir: {}}]
  containers:
  - name: app
    image: %s
    resources: {limits: {cpu: 100m, memory: 64Mi}}
    volumeMounts: [{name: config, mountPath: /config}, {name: scratch, mountPath: /scratch}]
    %s
`, name, node().Name, testbed.BusyboxImage, strings.ReplaceAll(strings.TrimSpace(container), "\n", "\n    "))
	}
	all := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: hostile}\ndata: {key: value}\n" +
		pod("exec", "command: [sleep, '3600']") +
		pod("files", "command: [sleep, '3600']") +
		pod("log", "command: [sh, -c, 'yes a line of a flood']") +
		pod("line", "command: [sh, -c, 'cat /dev/zero | tr \"\\0\" x']") +
		pod("message", "command: [sh, -c, 'truncate -s 1G /dev/termination-log; exit 1']\n"+
			"terminationMessagePolicy: FallbackToLogsOnError")
	for i := range 5 {
		all += pod(fmt.Sprint("silent-", i), `
command: [sleep, '3600']
readinessProbe: {exec: {command: [sleep, '3600']}, periodSeconds: 1, timeoutSeconds: 1}
livenessProbe: {tcpSocket: {host: 192.0.2.1, port: 9}, periodSeconds: 1, timeoutSeconds: 1, failureThreshold: 100000}`)
	}
	return all
}

// flood updates the ConfigMap that all hostile pods mount, 10,000 times a minute if the API server can.
func flood(ctx context.Context, updates *atomic.Int64) {
	tick := time.NewTicker(time.Minute / 10_000)
	defer tick.Stop()
	var workers sync.WaitGroup
	defer workers.Wait()
	for range 4 {
		workers.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case now := <-tick.C:
					patch := fmt.Appendf(nil, `{"data":{"key":"%d"}}`, now.UnixNano())
					err := api.Core.Patch(types.MergePatchType).Namespace(space).Resource("configmaps").Name("hostile").
						Body(patch).Do(ctx).Error()
					if err == nil {
						updates.Add(1)
					}
				}
			}
		})
	}
}

// execFlood opens one exec session after the other.
func execFlood(ctx context.Context, cfg *rest.Config, execs *atomic.Int64) {
	for ctx.Err() == nil {
		if err := echoSession(cfg, "hostile-exec"); err == nil {
			execs.Add(1)
		}
	}
}

// millionFiles fills the emptyDir of a pod, as a process in it could.
func millionFiles(t *testing.T, ctx context.Context, p *corev1.Pod) {
	volume := filepath.Join(node().RootDir, "pods", string(p.UID), "volumes/kubernetes.io~empty-dir/scratch")
	for d := range 1000 {
		dir := filepath.Join(volume, fmt.Sprint(d))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Error(err)
			return
		}
		for f := range 1000 {
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(f)), nil, 0o644); err != nil {
				t.Error(err)
				return
			}
		}
		if ctx.Err() != nil {
			t.Logf("%d files", (d+1)*1000)
			return
		}
	}
	t.Log("a million files")
}
