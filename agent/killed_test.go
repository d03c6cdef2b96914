package agent_test

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/test/cri/fake"
)

// withJudge adds a container whose exit with code 42 restarts all containers of the pod.
func withJudge(pod *corev1.Pod) {
	checker := container("checker")
	checker.RestartPolicy = ptr(corev1.ContainerRestartPolicyNever)
	checker.RestartPolicyRules = []corev1.ContainerRestartRule{{
		Action: corev1.ContainerRestartRuleActionRestartAllContainers,
		ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{
			Operator: corev1.ContainerRestartRuleOnExitCodesOpIn,
			Values:   []int32{42},
		},
	}}
	pod.Spec.Containers = append(pod.Spec.Containers, checker)
}

// exit makes the running instance of a container exit.
func (w *world) exit(name string, code int32) {
	all := w.runtime.Containers()
	i := slices.IndexFunc(all,
		func(c *runtimeapi.ContainerStatus) bool { return c.State == running && c.Metadata.Name == name })
	w.runtime.ExitContainer(all[i].Id, code, "")
}

// TestKilledWhileRestartingAll checks that the next run of the agent completes a restart of all containers after a kill
// at any call, although the API server does not know of it: each container restarts once, the init container first.
func TestKilledWhileRestartingAll(t *testing.T) {
	atEachCall(t, []string{"RemoveContainer", "CreateContainer", "StartContainer"},
		func(t *testing.T, w *world, die func(change func())) {
			w.runtime.Script("setup", fake.Script{RunsFor: time.Second})
			w.begin()
			pod := apiPod("web", withInit("setup"), withSidecar("proxy"), withJudge, withRestart(corev1.RestartPolicyNever))
			w.run(pod)
			w.sleep(time.Minute)
			w.publish(w.agent)
			w.amnesia = true
			die(func() { w.exit("checker", 42) })
			w.amnesia = false
			w.begin()
			w.sleep(2 * time.Minute)
			if got := w.running(); len(got) == 0 || got[0] != "web/proxy#1" || !slices.Equal(slices.Sorted(slices.Values(got)),
				[]string{"web/app#1", "web/checker#1", "web/proxy#1"}) {
				t.Errorf("running: got %v, want attempt 1 of proxy, app and checker, proxy first", got)
			}
			st := w.status(pod)
			if !ready(st) || st.Phase != corev1.PodRunning || containerStatus(st, "setup").RestartCount != 1 {
				t.Errorf("status: got %+v, want a ready pod and one restart of setup", st)
			}
			w.delete(pod, 5*time.Second)
			w.sleep(time.Minute)
			w.checkNothingLeft()
		})
}

// TestKilledWhileResizingWithRestart checks that, after a kill at any call of a resize that needs a new instance, the
// next run of the agent creates one instance, and no second.
func TestKilledWhileResizingWithRestart(t *testing.T) {
	atEachCall(t, []string{"StopContainer", "CreateContainer", "StartContainer"},
		func(t *testing.T, w *world, die func(change func())) {
			w.begin()
			pod := apiPod("web", wants("1", "1Gi"), func(pod *corev1.Pod) {
				pod.Spec.Containers[0].ResizePolicy = []corev1.ContainerResizePolicy{{
					ResourceName:  "memory",
					RestartPolicy: corev1.RestartContainer,
				}}
			})
			w.run(pod)
			w.sleep(time.Minute)
			w.publish(w.agent)
			die(func() { w.setResources(pod, "2", "2Gi") })
			w.begin()
			w.sleep(2 * time.Minute)
			w.checkRunning("web/app#1")
			w.checkSize(pod, 2000, "2Gi")
			if st := w.status(pod); !ready(st) || containerStatus(st, "app").RestartCount != 1 {
				t.Errorf("status: got %+v, want a ready pod and one restart of app", st)
			}
			w.restart()
			w.sleep(time.Minute)
			w.checkRunning("web/app#1")
		})
}
