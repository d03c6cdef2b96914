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
	kills     = 50
	comeAndGo = 20
)

// TestAgentKilled ends the agent with SIGKILL a few times beside pods that have nothing to do with it: they never notice.
func TestAgentKilled(t *testing.T) {
	clean(t)
	calm := steady(t)
	for range 5 {
		killAgent(t)
		time.Sleep(300 * time.Millisecond) // another moment of the agent's start each time
	}
	calm()
}

// TestLongKillStorm ends the agent with SIGKILL 50 times at random moments while 20 pods start and stop all the time. Pods
// that are left alone never notice, every pod that should run runs once, no status steps back, the node stays Ready, and in
// the end nothing is left over.
func TestLongKillStorm(t *testing.T) {
	cleanAfterStorm(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	watched := record("storm")
	calm := steady(t)

	storm := startStorm(t, seed)
	r := rand.New(rand.NewPCG(seed, 0))
	var killed []time.Time
	for range kills {
		time.Sleep(time.Duration(10+r.ExpFloat64()*500) * time.Millisecond)
		killed = append(killed, time.Now())
		killAgent(t)
	}
	lives := storm.settle(t)
	t.Logf("%d pods have lived through %d kills", lives, kills)
	if lives < kills {
		t.Errorf("only %d pods started and stopped during the storm: it was none", lives)
	}
	for i := range comeAndGo {
		waitReady(t, 60*time.Second, churnName(i))
	}
	calm()
	eachRunsOnce(t)
	watched.end(t)
	watched.noRestarts(t, func(p *corev1.Pod, c corev1.ContainerStatus) bool {
		return p.Labels["storm"] == "churn" && cutOff(c, killed)
	})
}

// steady starts the pods that are left alone; the returned function fails the test if one of them has noticed anything.
func steady(t *testing.T) (calm func()) {
	t.Helper()
	names := []string{"steady-plain", "steady-probed", "steady-sidecar"}
	apply(t, steadyPods)
	for _, name := range names {
		waitReady(t, 60*time.Second, name)
	}
	stayed := watchCalm(t, names)
	before := instances(t, "storm=steady")
	return func() {
		t.Helper()
		stayed()
		if after := instances(t, "storm=steady"); after != before {
			t.Errorf("containers of pods that were left alone have changed:\nbefore %s\nafter  %s", before, after)
		}
	}
}

// steadyPods are left alone during the storm. Between them they have what an agent that starts anew could get wrong: hooks,
// probes, an init container, a sidecar, all kinds of volumes.
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

// watchCalm fails the test, when the returned function is called, if one of the pods was seen not Ready.
func watchCalm(t *testing.T, names []string) (end func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	for _, name := range names {
		watching.Go(func() {
			_ = follow(ctx, "pods", named(name), func(e watch.Event) bool {
				if p := e.Object.(*corev1.Pod); !ready(p) {
					t.Errorf("pod %s, which was left alone, turned not Ready: %s", name, describe(p))
				}
				return false
			})
		})
	}
	return func() {
		cancel()
		watching.Wait()
		if hooks := shell(t, "steady-probed", "app", "cat /tmp/hooks"); hooks != "once" {
			t.Errorf("the postStart hook of a pod that was left alone ran more than once: %q", hooks)
		}
	}
}

// storm is 20 pods that come and go, each in its own rhythm.
type storm struct {
	stop  chan struct{}
	group errgroup.Group
	lives [comeAndGo]int
}

func startStorm(t *testing.T, seed uint64) *storm {
	s := &storm{stop: make(chan struct{})}
	t.Cleanup(func() {
		_, _ = tb.Kubectl(context.Background(), "delete", "pod", "-l", "storm=churn", "--ignore-not-found", "--timeout=90s")
	})
	for i := range comeAndGo {
		s.group.Go(func() error { return s.churn(i, rand.New(rand.NewPCG(seed, uint64(i)+1))) })
	}
	return s
}

// settle ends the storm: each pod is made once more, and stays. It returns how many pods have come and gone.
func (s *storm) settle(t *testing.T) (lives int) {
	t.Helper()
	close(s.stop)
	if err := s.group.Wait(); err != nil {
		t.Fatalf("the storm: %v%s", err, agentLogTail())
	}
	for _, n := range s.lives {
		lives += n
	}
	return lives
}

// churn makes a pod, lets it be for a moment, deletes it, and begins again when it is gone.
func (s *storm) churn(i int, r *rand.Rand) error {
	for {
		ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
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
		s.lives[i]++
	}
}

// pause waits, and tells whether the storm is over.
func (s *storm) pause(d time.Duration) (over bool) {
	select {
	case <-s.stop:
		return true
	case <-time.After(d):
		return false
	}
}

func churnName(i int) string { return fmt.Sprintf("churn-%d", i) }

// churnPod is on the node from the start, so that the scheduler has no part in the storm.
func churnPod(i int) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: churnName(i), Namespace: space, Labels: map[string]string{"storm": "churn"}},
		Spec: corev1.PodSpec{
			NodeName:   node().Name,
			Containers: []corev1.Container{{Name: "app", Image: testbed.PauseImage, VolumeMounts: []corev1.VolumeMount{{Name: "scratch", MountPath: "/scratch"}}}},
			Volumes: []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{
				EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}}},
		},
	}
}

// instances names the containers of pods, with their restart counts.
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

// eachRunsOnce: of every container that should run, one instance does. Those of pods that were deleted without grace may still
// be ending: their API objects went first. They must go.
func eachRunsOnce(t *testing.T) {
	t.Helper()
	eventually(t, 30*time.Second, "each container runs once, and no other", func() (string, bool) {
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
					t.Errorf("container %s of pod %s runs %d times, want once", name, p.Name, runs[key])
				}
				delete(runs, key)
			}
		}
		return fmt.Sprintf("containers run that nobody asked for: %v", runs), len(runs) == 0
	})
}
