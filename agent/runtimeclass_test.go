package agent_test

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/kube/objects"
)

// classObjects are the objects of a cluster in which each runtime class has the handler of the same name.
type classObjects struct{ *objects.Local }

func (classObjects) RuntimeHandler(_ context.Context, class string) (string, error) {
	return class, nil
}

// TestRecursiveReadOnlyOfClass checks that the status says of a mount that may be recursively read-only what the
// handler of the pod's runtime class makes of it, although the first status is older than the sandbox.
func TestRecursiveReadOnlyOfClass(t *testing.T) {
	for _, able := range []string{"", "other"} {
		t.Run("handler that can: "+able, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.recursive = able
				w.restart()
				for _, class := range []string{"", "other"} {
					pod := apiPod("class-"+class, withEmptyDir, func(pod *corev1.Pod) {
						if class != "" {
							pod.Spec.RuntimeClassName = &class
						}
						m := &pod.Spec.Containers[0].VolumeMounts[0]
						m.ReadOnly, m.RecursiveReadOnly = true, ptr(corev1.RecursiveReadOnlyIfPossible)
					})
					w.run(pod)
					w.sleep(time.Second)
					want := corev1.RecursiveReadOnlyDisabled
					if class == able {
						want = corev1.RecursiveReadOnlyEnabled
					}
					mounts := containerStatus(w.status(pod), "app").VolumeMounts
					if len(mounts) != 1 || *mounts[0].RecursiveReadOnly != want {
						t.Errorf("class %q: got %v, want %s", class, mounts, want)
					}
				}
			})
		})
	}
}
