//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
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

// attack is one kind of load. It goes on until ctx ends.
type attack struct {
	name string
	run  func(t *testing.T, ctx context.Context, done *atomic.Int64)
}

// TestLongHostileLoad measures the probes and starts of well-behaved pods: alone, beside each thing that costs a node
// agent most, and beside all of them at once. Figures of one run are compared, because the machine is slower or faster
// each time; of a start, the time of the runtime and that of the agent are measured separately.
func TestLongHostileLoad(t *testing.T) {
	clean(t)
	setVerbosity(t, "4", "successfully set")
	t.Cleanup(func() { setVerbosity(t, "2", "successfully set") })
	sameAgent(t)
	bystander(t)
	cfg, err := client.LoadConfig(tb.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	n := startNeighbour(t)
	apply(t, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: hostile}\ndata: {key: value}\n"+
		hostilePod("quiet", "command: [sleep, '3600']"))
	quiet := waitReady(t, "hostile-quiet")
	startOnce(t, "warm")
	idle := n.measure(t, "idle", 40*time.Second)
	memoryBefore := memory(t)
	attacks := []attack{
		{"updates", func(_ *testing.T, ctx context.Context, done *atomic.Int64) { flood(ctx, done) }},
		{"execs", func(_ *testing.T, ctx context.Context, done *atomic.Int64) { execFlood(ctx, cfg, done) }},
		{"files", func(t *testing.T, ctx context.Context, done *atomic.Int64) { millionFiles(t, ctx, quiet, done) }},
		{"logs", pods("log", "command: [sh, -c, 'yes a line of a flood']")},
		{"line", pods("line", "command: [sh, -c, 'cat /dev/zero | tr \"\\0\" x']")},
		{"messages", pods("message", "command: [sh, -c, 'truncate -s 1G /dev/termination-log; exit 1']\n"+
			"terminationMessagePolicy: FallbackToLogsOnError")},
		{"probes", pods("silent", `
command: [sleep, '3600']
readinessProbe: {exec: {command: [sleep, '3600']}, periodSeconds: 1, timeoutSeconds: 1}
livenessProbe: {tcpSocket: {host: 192.0.2.1, port: 9}, periodSeconds: 1, failureThreshold: 100000}`)},
	}
	for _, a := range attacks {
		t.Run(a.name, func(t *testing.T) { n.beside(t, idle, 30*time.Second, a) })
	}
	t.Run("all", func(t *testing.T) { n.beside(t, idle, 45*time.Second, attacks...) })
	memoryAfter := memory(t)
	t.Logf("memory %d KiB before, %d KiB after", memoryBefore, memoryAfter)
	if memoryAfter > 3*memoryBefore {
		t.Errorf("memory: got %d KiB, want at most three times %d KiB", memoryAfter, memoryBefore)
	}
	startWhileRemoving(t, idle)
	if p := getPod(t, "neighbour"); restarts(p) > 0 || !ready(p) {
		t.Errorf("the neighbour at the end: got %s, want it Ready and never restarted", describe(p))
	}
}

// beside measures while the attacks go on, and compares with the idle node.
func (n *neighbour) beside(t *testing.T, idle figures, during time.Duration, attacks ...attack) {
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	done := make([]atomic.Int64, len(attacks))
	for i, a := range attacks {
		all.Go(func() { a.run(t, ctx, &done[i]) })
	}
	began := time.Now()
	f := n.measure(t, strings.ReplaceAll(t.Name()[strings.LastIndex(t.Name(), "/")+1:], "_", "-"), during)
	took := time.Since(began)
	cancel()
	all.Wait()
	for i, a := range attacks {
		t.Logf("%s: %.0f a minute", a.name, float64(done[i].Load())/took.Minutes())
		if done[i].Load() == 0 {
			t.Errorf("%s: got no rounds, want at least one", a.name)
		}
	}
	t.Logf("idle:    %s", idle)
	t.Logf("hostile: %s", f)
	t.Logf("ratios: time between probes %.2f (99th percentile %.2f), starts %.2f, the agent's part of them %.2f",
		ratio(at(f.gaps, 50), at(idle.gaps, 50)), ratio(at(f.gaps, 99), at(idle.gaps, 99)),
		ratio(f.total(50), idle.total(50)), ratio(at(f.agent, 50), at(idle.agent, 50)))
	if got := at(f.gaps, 50); got > probePeriod*11/10 {
		t.Errorf("median time between the neighbour's probes: got %s, want at most 10%% more than %s", got, probePeriod)
	}
	if got, limit := at(f.gaps, 99), 2*at(idle.gaps, 99)+probePeriod; got > limit {
		t.Errorf("99th percentile of the time between the neighbour's probes: got %s, want at most %s", got, limit)
	}
	if got, limit := at(f.agent, 50), idle.limit(f); got > limit {
		t.Errorf("the agent's part of a start, median: got %s, want at most %s", got, limit)
	}
}

// startWhileRemoving deletes the pod with the many files, and starts another meanwhile.
func startWhileRemoving(t *testing.T, idle figures) {
	t.Helper()
	remove := api.Core.Delete().Namespace(space).Resource("pods").Name("hostile-quiet")
	if err := remove.Do(t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
	total, create := startOnce(t, "beside-removal")
	agent := total - create - runtimeSteps(t, "beside-removal")
	t.Logf("a start while the files are removed took %s, the agent's part of it %s", total, agent)
	if limit := idle.limit(figures{creates: []time.Duration{create}, starts: []time.Duration{total}}); agent > limit {
		t.Errorf("the agent's part of a start while files are removed: got %s, want at most %s", agent, limit)
	}
	waitGone(t, "hostile-quiet")
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
	waitReady(t, "neighbour")
	return n
}

// figures are sorted times: between probes, from the creation of a pod until it is Ready, and of that what neither the
// runtime's steps took nor the API server for the creation.
type figures struct{ gaps, starts, creates, agent []time.Duration }

func (f figures) total(percent int) time.Duration { return at(f.starts, percent) }

// at returns a percentile of sorted values.
func at(sorted []time.Duration, percent int) time.Duration {
	return sorted[min(len(sorted)-1, len(sorted)*percent/100)].Round(time.Millisecond)
}

// limit returns how long the agent's part of a start may be beside a load. It contains waiting for the API server, for
// the pod and for two statuses; a busy machine and its API server are slow for every client. A machine that is
// exhausted delays all parts of a start alike: then a third of it is the limit.
func (f figures) limit(beside figures) time.Duration {
	return max(3*at(f.agent, 50)+3*at(beside.creates, 50)+time.Second, at(beside.starts, 50)/3)
}

func (f figures) String() string {
	return fmt.Sprintf("%d probes, between them median %s, 99th percentile %s; %d starts, median %s, longest %s, "+
		"created in %s, the agent's part %s, %s", len(f.gaps), at(f.gaps, 50), at(f.gaps, 99), len(f.starts), f.total(50),
		f.total(100), at(f.creates, 50), at(f.agent, 50), at(f.agent, 100))
}

func ratio(a, b time.Duration) float64 { return float64(a) / float64(b) }

// measure starts one pod after the other for a while, and counts the probes meanwhile.
func (n *neighbour) measure(t *testing.T, phase string, during time.Duration) (f figures) {
	t.Helper()
	n.mu.Lock()
	n.probed = nil
	n.mu.Unlock()
	for i, began := 0, time.Now(); time.Since(began) < during; i++ {
		name := fmt.Sprintf("measured-%s-%d", phase, i)
		total, create := startOnce(t, name)
		f.starts = append(f.starts, total)
		f.creates = append(f.creates, create)
		f.agent = append(f.agent, total-create-runtimeSteps(t, name))
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for i := 1; i < len(n.probed); i++ {
		f.gaps = append(f.gaps, n.probed[i].Sub(n.probed[i-1]))
	}
	slices.Sort(f.gaps)
	slices.Sort(f.starts)
	slices.Sort(f.creates)
	slices.Sort(f.agent)
	if len(f.gaps) < 10 || len(f.starts) < 2 {
		t.Fatalf("got %d probes and %d starts in %s, want more", len(f.gaps), len(f.starts), during)
	}
	return f
}

// stepDone is a line of the agent's log about a step of a pod.
var stepDone = regexp.MustCompile(
	`msg="step done" .*step="(create sandbox|create container|start container)[^"]*" took=(\S+)`)

// runtimeSteps returns how long the steps that call the runtime took when a pod started, from the agent's log.
func runtimeSteps(t *testing.T, pod string) (sum time.Duration) {
	t.Helper()
	log, err := os.ReadFile(node().AgentLog())
	if err != nil {
		t.Fatal(err)
	}
	steps := 0
	for line := range strings.Lines(string(log)) {
		m := stepDone.FindStringSubmatch(line)
		if m == nil || !strings.Contains(line, " pod=default/"+pod+" ") {
			continue
		}
		d, err := time.ParseDuration(m[2])
		if err != nil {
			t.Fatal(err)
		}
		sum += d
		steps++
	}
	if steps < 2 {
		t.Fatalf("the agent's log has %d steps of pod %s, want those of sandbox and container", steps, pod)
	}
	return sum
}

// startOnce returns how long a pod takes from its creation until it is Ready, and how long the API server takes to
// create it. The pod is deleted.
func startOnce(t *testing.T, name string) (total, create time.Duration) {
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
	create = time.Since(began)
	waitReady(t, name)
	total = time.Since(began)
	if err := api.Core.Delete().Namespace(space).Resource("pods").Name(name).Do(t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
	waitGone(t, name)
	return total, create
}

// hostilePod is a pod of the load. Its CPU is limited, so that it does not simply take the machine's.
func hostilePod(name, container string) string {
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

// pods returns an attack by three pods with the container.
func pods(name, container string) func(*testing.T, context.Context, *atomic.Int64) {
	return func(t *testing.T, ctx context.Context, done *atomic.Int64) {
		for i := range 3 {
			file := filepath.Join(t.TempDir(), "pod.yaml")
			text := hostilePod(fmt.Sprintf("%s-%d", name, i), container)
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Error(err)
				return
			}
			if _, err := tb.Kubectl(ctx, "apply", "-f", file); err != nil {
				t.Error(err)
				return
			}
			defer func() { _, _ = tb.Kubectl(context.Background(), "delete", "-f", file, "--timeout=120s") }()
			done.Add(1)
		}
		<-ctx.Done()
	}
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

// execFlood opens four exec sessions at a time, one after the other.
func execFlood(ctx context.Context, cfg *rest.Config, execs *atomic.Int64) {
	var workers sync.WaitGroup
	defer workers.Wait()
	for range 4 {
		workers.Go(func() {
			for ctx.Err() == nil {
				if err := echoSession(cfg, "hostile-quiet"); err == nil {
					execs.Add(1)
				}
			}
		})
	}
}

// millionFiles fills the emptyDir of a pod with up to a million files, as a process in it could. A second call goes on
// where the first has ended.
func millionFiles(t *testing.T, ctx context.Context, p *corev1.Pod, made *atomic.Int64) {
	volume := filepath.Join(node().RootDir, "pods", string(p.UID), "volumes/kubernetes.io~empty-dir/scratch")
	for d := range 1000 {
		dir := filepath.Join(volume, fmt.Sprint(d))
		if ctx.Err() != nil {
			return
		}
		err := os.Mkdir(dir, 0o755)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		for f := 0; f < 1000 && err == nil && ctx.Err() == nil; f++ {
			err = os.WriteFile(filepath.Join(dir, fmt.Sprint(f)), nil, 0o644)
			made.Add(1)
		}
		if err != nil {
			t.Error(err)
			return
		}
	}
	<-ctx.Done()
}
