//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/nodelet/nodelet/test/testbed"
)

const (
	kills  = 50 // how often TestLongKillStorm kills the agent
	churns = 20 // how many pods start and stop meanwhile
)

// TestAgentKilled kills the agent with SIGKILL a few times. Running pods are not disturbed.
func TestAgentKilled(t *testing.T) {
	clean(t)
	checkSteady := startSteady(t)
	for i := range 5 {
		mark := markLog(t)
		killAgent(t)
		if i == 2 { // one agent works when it is killed
			mark.waitLine(t, "node is registered")
		}
		time.Sleep(300 * time.Millisecond) // the agent is killed at different moments of its start
	}
	apply(t, crashing("after-kills"))
	waitReady(t, "after-kills") // so the last agent has seen the other pods
	checkSteady()
}

// TestLongKillStorm kills the agent with SIGKILL 50 times at random moments while 20 pods start and stop all the
// time. Steady pods are not disturbed, every container that should run runs once, no status goes back, the node stays
// Ready, and in the end nothing is left over.
func TestLongKillStorm(t *testing.T) {
	cleanAfterStorm(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	watched := record("storm")
	checkSteady := startSteady(t)

	storm := startStorm(t, seed)
	r := rand.New(rand.NewPCG(seed, 0))
	var killed []time.Time
	for range kills {
		time.Sleep(time.Duration(10+r.ExpFloat64()*500) * time.Millisecond)
		killed = append(killed, time.Now())
		killAgent(t)
	}
	finished := storm.settle(t)
	t.Logf("%d pods have started and stopped during %d kills", finished, kills)
	if finished < kills {
		t.Errorf("pods that started and stopped during the storm: got %d, want at least %d", finished, kills)
	}
	for i := range churns {
		waitReady(t, churnName(i))
	}
	checkSteady()
	eachRunsOnce(t)
	watched.end(t)
	watched.noRestarts(t, func(p *corev1.Pod, c corev1.ContainerStatus) bool {
		return p.Labels["storm"] == "churn" && cutOff(c, killed)
	})
}

// startSteady starts the steady pods. The returned function fails the test if one of them was disturbed.
func startSteady(t *testing.T) (check func()) {
	t.Helper()
	names := []string{"steady-plain", "steady-probed", "steady-sidecar"}
	apply(t, steadyPods)
	for _, name := range names {
		waitReady(t, name)
	}
	endWatch := watchSteady(t, names)
	before := instances(t, "storm=steady")
	return func() {
		t.Helper()
		endWatch()
		if after := instances(t, "storm=steady"); after != before {
			t.Errorf("containers of the steady pods:\ngot  %s\nwant %s", after, before)
		}
	}
}

// steadyPods are the pods that no test changes. Together they have what a restarted agent could get wrong: hooks,
// probes, an init container, a sidecar, and all kinds of volumes.
var steadyPods = `
apiVersion: v1
kind: ConfigMap
metadata: {name: steady}
data: {key: value}
---
apiVersion: v1
kind: Pod
metadata: {name: steady-plain, labels: {storm: steady}}
spec:
  terminationGracePeriodSeconds: 2
  containers:
  - name: app
    image: ` + testbed.PauseImage + `
    envFrom: [{configMapRef: {name: steady}}]
    volumeMounts:
    - {name: memory, mountPath: /memory}
    - {name: config, mountPath: /config}
    - {name: config, mountPath: /config-key, subPath: key}
  volumes:
  - {name: memory, emptyDir: {medium: Memory}}
  - {name: config, configMap: {name: steady}}
---
apiVersion: v1
kind: Pod
metadata: {name: steady-probed, labels: {storm: steady}}
spec:
  terminationGracePeriodSeconds: 2
  containers:
  - name: app
    image: ` + testbed.AgnhostImage + `
    command: [/agnhost, netexec, --http-port=8080]
    startupProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1, failureThreshold: 30}
    readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1, timeoutSeconds: 5, failureThreshold: 10}
    livenessProbe: {exec: {command: ["true"]}, periodSeconds: 5, timeoutSeconds: 10, failureThreshold: 10}
    lifecycle: {postStart: {exec: {command: [sh, -c, "echo once >>/tmp/hooks"]}}}
---
apiVersion: v1
kind: Pod
metadata: {name: steady-sidecar, labels: {storm: steady}}
spec:
  terminationGracePeriodSeconds: 2
  initContainers:
  - {name: init, image: "` + testbed.BusyboxImage + `", command: ["true"]}
  - {name: sidecar, image: "` + testbed.PauseImage + `", restartPolicy: Always}
  containers:
  - {name: app, image: "` + testbed.PauseImage + `"}
`

// watchSteady watches pods until end is called, and fails the test if one of them is not Ready or has run its hook
// twice. When it returns, each pod has been seen.
func watchSteady(t *testing.T, names []string) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	begun := make(chan struct{}, len(names))
	for _, name := range names {
		first := sync.OnceFunc(func() { begun <- struct{}{} })
		watching.Go(func() {
			_ = follow(ctx, "pods", named(name), func(e watch.Event) bool {
				first()
				if p := e.Object.(*corev1.Pod); !ready(p) {
					t.Errorf("steady pod %s: got it not Ready, want it Ready all the time: %s", name, describe(p))
				}
				return false
			})
		})
	}
	for range names {
		select {
		case <-begun:
		case <-time.After(limit):
			t.Fatal("a watch of a steady pod: got no update, want the pod as it is")
		}
	}
	return func() {
		cancel()
		watching.Wait()
		if hooks := shell(t, "steady-probed", "app", "cat /tmp/hooks"); hooks != "once" {
			t.Errorf("runs of the postStart hook of a steady pod: got %q, want %q", hooks, "once")
		}
	}
}

// storm starts and stops 20 pods, each at times of its own.
type storm struct {
	stop     chan struct{}
	group    errgroup.Group
	finished [churns]int // how many pods of each name have started and stopped
}

func startStorm(t *testing.T, seed uint64) *storm {
	s := &storm{stop: make(chan struct{})}
	t.Cleanup(func() {
		_, _ = tb.Kubectl(context.Background(), "delete", "pod", "-l", "storm=churn", "--ignore-not-found", "--timeout=90s")
	})
	for i := range churns {
		s.group.Go(func() error { return s.churn(i, rand.New(rand.NewPCG(seed, uint64(i)+1))) })
	}
	return s
}

// settle ends the storm: each pod is created once more, and stays. It returns how many pods have started and stopped.
func (s *storm) settle(t *testing.T) (finished int) {
	t.Helper()
	close(s.stop)
	if err := s.group.Wait(); err != nil {
		t.Fatalf("the storm: %v%s", err, agentLogTail())
	}
	for _, n := range s.finished {
		finished += n
	}
	return finished
}

// churn creates a pod, waits for a moment, deletes it, and starts again when it is gone.
func (s *storm) churn(i int, r *rand.Rand) error {
	for {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		err := api.Core.Post().Namespace(space).Resource("pods").Body(churnPod(i)).Do(ctx).Error()
		if err == nil && s.pause(time.Duration(r.IntN(3000))*time.Millisecond) {
			cancel()
			return nil
		}
		if err == nil {
			grace := int64(r.IntN(2))
			err = api.Core.Delete().Namespace(space).Resource("pods").Name(churnName(i)).
				Body(&metav1.DeleteOptions{GracePeriodSeconds: &grace}).Do(ctx).Error()
		}
		if err == nil {
			err = gone(ctx, churnName(i))
		}
		cancel()
		if err != nil {
			return fmt.Errorf("pod %s: %w", churnName(i), err)
		}
		s.finished[i]++
	}
}

// pause waits, and reports whether the storm is over.
func (s *storm) pause(d time.Duration) (over bool) {
	select {
	case <-s.stop:
		return true
	case <-time.After(d):
		return false
	}
}

func churnName(i int) string { return fmt.Sprintf("churn-%d", i) }

// churnPod is bound to the node when it is created, so that the storm does not depend on the scheduler.
func churnPod(i int) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: churnName(i), Namespace: space, Labels: map[string]string{"storm": "churn"}},
		Spec: corev1.PodSpec{
			NodeName: node().Name,
			Containers: []corev1.Container{{Name: "app", Image: testbed.PauseImage,
				VolumeMounts: []corev1.VolumeMount{{Name: "scratch", MountPath: "/scratch"}}}},
			Volumes: []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{
				EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}}},
		},
	}
}

// instances lists the containers of pods with their restart counts.
func instances(t *testing.T, selector string) string {
	t.Helper()
	all := ""
	for _, p := range listPods(t, selector) {
		for _, c := range append(p.Status.InitContainerStatuses, p.Status.ContainerStatuses...) {
			all += fmt.Sprintf("%s/%s=%s,%d ", p.Name, c.Name, c.ContainerID, c.RestartCount)
		}
	}
	return all
}

// eachRunsOnce checks that each container that should run has one running instance. Instances of pods that were
// deleted with a grace period of zero may still be stopping, because their API objects are deleted first. It waits
// for their end.
func eachRunsOnce(t *testing.T) {
	t.Helper()
	eventually(t, "each container runs once, and no other runs", func() (string, bool) {
		runs := map[string]int{}
		for _, c := range containers(t, nil, true) {
			runs[c.Labels["io.kubernetes.pod.uid"]+"/"+c.Labels["io.kubernetes.container.name"]]++
		}
		for _, p := range listPods(t, "storm") {
			wanted := []string{"app"}
			if p.Name == "steady-sidecar" {
				wanted = append(wanted, "sidecar")
			}
			for _, name := range wanted {
				key := string(p.UID) + "/" + name
				if runs[key] != 1 {
					t.Errorf("running instances of container %s of pod %s: got %d, want 1", name, p.Name, runs[key])
				}
				delete(runs, key)
			}
		}
		return fmt.Sprintf("running containers of no known pod: %v", runs), len(runs) == 0
	})
}
