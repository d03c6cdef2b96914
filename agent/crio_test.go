package agent_test

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/test/cri/fake"
)

// TestCreateFails checks that a container that the runtime does not create, as CRI-O does if the command is missing, is
// tried again with back-off, and that its status has the error.
func TestCreateFails(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.runtime.CRIO = true
		w.runtime.Script("app", fake.Script{StartErr: "exec: no such file"})
		pod := apiPod("web")
		w.run(pod)
		w.sleep(time.Minute)
		c := containerStatus(w.status(pod), "app")
		if wait := c.State.Waiting; wait == nil || wait.Reason != "CreateContainerError" ||
			!strings.HasSuffix(wait.Message, "exec: no such file") {
			t.Errorf("got %+v, want CreateContainerError with the runtime's message", c)
		}
		w.runtime.Script("app", fake.Script{})
		w.sleep(5 * time.Minute)
		w.checkRunning("web/app#0")
	})
}

// TestSlowProbe checks that a probe that takes too long has failed, both on runtimes that return an error for it, such
// as containerd, and on CRI-O, which returns an exit code.
func TestSlowProbe(t *testing.T) {
	for name, crio := range map[string]bool{"containerd": false, "CRI-O": true} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.runtime.CRIO = crio
				w.commandsEnd(fake.ExecOutcome{Takes: time.Minute})
				probed := func(pod *corev1.Pod) { pod.Spec.Containers[0].LivenessProbe = execProbe("healthy") }
				w.run(apiPod("web", probed))
				w.sleep(2 * time.Minute)
				if got := w.eventsWith("Liveness probe failed"); len(got) < 3 {
					t.Errorf("got events %q, want three or more failures", got)
				}
				w.commandsEnd(fake.ExecOutcome{})
				w.sleep(5 * time.Minute)
				if got := w.running(); len(got) != 1 || got[0] == "web/app#0" {
					t.Errorf("running: got %q, want another instance of app", got)
				}
			})
		})
	}
}
