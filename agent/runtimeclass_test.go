package agent_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/kube/objects"
)

// classObjects are the objects of a cluster in which each runtime class has the handler of the same name.
type classObjects struct {
	*objects.Local
	*classReads
}

// classReads are the runtime classes that have been read. While the API server is silent, each read takes half a
// minute.
type classReads struct {
	silent atomic.Bool
	read   sync.Map
}

func (o classObjects) RuntimeHandler(ctx context.Context, class string) (string, error) {
	if o.silent.Load() {
		select {
		case <-ctx.Done():
		case <-time.After(30 * time.Second):
		}
		return "", errors.New("no answer")
	}
	o.read.Store(class, true)
	return class, nil
}

func (o classObjects) KnownHandler(class string) string {
	if _, known := o.read.Load(class); !known {
		return ""
	}
	return class
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

// TestClassOfSilentServer checks that a pod whose runtime class cannot be read does not wait for the API server when it
// has to end, and that its status says nothing of its mounts that turns out to be wrong.
func TestClassOfSilentServer(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.recursive = "other"
		w.classes.silent.Store(true)
		recursive := func(pod *corev1.Pod) {
			pod.Spec.RuntimeClassName = ptr("other")
			m := &pod.Spec.Containers[0].VolumeMounts[0]
			m.ReadOnly, m.RecursiveReadOnly = true, ptr(corev1.RecursiveReadOnlyIfPossible)
		}
		ends, runs := apiPod("ends", withEmptyDir, recursive), apiPod("runs", withEmptyDir, recursive)
		w.run(ends, runs)
		w.sleep(time.Second)
		if st := w.status(ends); len(st.ContainerStatuses) != 1 || st.ContainerStatuses[0].VolumeMounts != nil {
			t.Errorf("got status %+v, want one that says nothing of the mounts", st)
		}
		w.delete(ends, 30*time.Second)
		w.sleep(time.Second)
		w.mu.Lock()
		_, there := w.set.Pods[ends.UID]
		w.mu.Unlock()
		if there {
			t.Error("got the pod waiting for the API server when it ends, want it gone")
		}
		w.classes.silent.Store(false)
		w.sleep(5 * time.Minute)
		mounts := containerStatus(w.status(runs), "app").VolumeMounts
		if len(mounts) != 1 || *mounts[0].RecursiveReadOnly != corev1.RecursiveReadOnlyEnabled {
			t.Errorf("got mounts %v, want them recursively read-only", mounts)
		}
	})
}
