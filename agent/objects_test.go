package agent_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/kube/objects"
	"github.com/nodelet/nodelet/test/cri/fake"
)

// useLog notes whether something may be missing in the objects of a pod.
type useLog struct {
	*objects.Local
	w *world
}

func (l useLog) UsePod(pod *corev1.Pod, lacking bool) {
	l.w.lacking.Store(lacking)
	l.Local.UsePod(pod, lacking)
}

// TestPullSecretWatchedAtOnce checks that the pull secrets of a pod are watched as soon as a pull has failed without
// one, before the API server shows the new status of the pod, and no longer than until the image is there.
func TestPullSecretWatchedAtOnce(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		pod := apiPod("web", withLogin("private:1"))
		w.run(pod)
		w.sleep(0)
		if got := containerStatus(w.status(pod), "app").State.Waiting; got == nil || !w.lacking.Load() {
			t.Errorf("after the pull: got waiting %+v, lacking %v, want it failed, lacking true", got, w.lacking.Load())
		}
		w.runtime.AddImage(fake.RemoteImage{Name: "private:1"})
		w.sleep(time.Minute)
		w.checkRunning("web/app#0")
		if w.lacking.Load() {
			t.Error("while the container runs: got lacking, want not")
		}
	})
}
