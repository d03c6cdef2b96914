package agent_test

import (
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/agent"
	"github.com/nodelet/nodelet/kube/pods"
	"github.com/nodelet/nodelet/test/cri/fake"
)

// unreadableDirs are pod directories on a disk that answers with an I/O error while broken is true.
type unreadableDirs struct {
	agent.PodFiles
	broken *atomic.Bool
}

func (d unreadableDirs) HasPodDir(pod types.UID) (bool, error) {
	if d.broken.Load() {
		return false, syscall.EIO
	}
	return d.PodFiles.HasPodDir(pod)
}

// TestUnreadablePodDir checks that a pod is not taken as gone while it is not known whether its directory exists: the
// directory would stay on the disk.
func TestUnreadablePodDir(t *testing.T) {
	var broken atomic.Bool
	inWorld(t, func(t *testing.T, w *world) {
		w.podFiles = func(disk agent.PodFiles) agent.PodFiles { return unreadableDirs{disk, &broken} }
		w.restart()
		pod := apiPod("web")
		w.run(pod)
		w.sleep(time.Second)
		w.checkRunning("web/app#0")
		broken.Store(true)
		w.delete(pod, 0)
		w.sleep(time.Minute)
		w.checkNothingLeft() // the step that removes the directory was tried
		if all, err := w.agent.SyncedPods(t.Context()); len(all) != 1 || err != nil {
			t.Errorf("while it is unknown whether the directory exists: got %d workers, %v, want one", len(all), err)
		}
		broken.Store(false)
		w.sleep(time.Minute)
		if all, err := w.agent.SyncedPods(t.Context()); len(all) != 0 || err != nil {
			t.Errorf("after the disk answers again: got %d workers, %v, want none", len(all), err)
		}
	})
}

// TestUnfinishedAfterRestart checks that an agent which has just started does not pass off the pods that it knows as
// all, and then has them all before it has synced them.
func TestUnfinishedAfterRestart(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		ended := apiPod("ended")
		ended.Status.Phase = corev1.PodSucceeded
		w.run(apiPod("web"), ended)
		w.sleep(time.Second)
		w.set.Synced = false
		w.restart()
		w.sleep(time.Second)
		if all, _, err := w.agent.Unfinished(t.Context()); err == nil {
			t.Errorf("before a source has delivered: got %d pods, want an error", len(all))
		}
		w.change(func(set *pods.Set) { set.Synced = true })
		all, _, err := w.agent.Unfinished(t.Context())
		if err != nil || len(all) != 1 || all[0].Name != "web" {
			t.Errorf("right after it: got %d pods, %v, want web", len(all), err)
		}
	})
}

// uids returns the UIDs of pods, with blanks between them.
func uids(pods []*corev1.Pod) string {
	var all []string
	for _, pod := range pods {
		all = append(all, string(pod.UID))
	}
	return strings.Join(all, " ")
}

// TestUnfinishedOfOneName checks that of two pods with one name only the one that a source has counts. One that was
// deleted by force and still ends counts as gone until there is another one of its name.
func TestUnfinishedOfOneName(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.runtime.Script("app", fake.Script{IgnoresTerm: true})
		old, next := apiPod("web"), apiPod("web")
		old.UID, next.UID = "0", "1"
		check := func(wantKnown, wantGone string) {
			t.Helper()
			w.sleep(time.Second)
			known, gone, err := w.agent.Unfinished(t.Context())
			if err != nil || uids(known) != wantKnown || uids(gone) != wantGone {
				t.Errorf("got pods %q, gone %q, error %v, want %q, %q", uids(known), uids(gone), err, wantKnown, wantGone)
			}
		}
		w.run(old)
		check("0", "")
		w.remove(old.UID)
		check("", "0")
		w.run(next)
		check("1", "")
		w.checkRunning("web/app#0", "web/app#0")
	})
}
