package agent_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestOrphanedLogs checks that the logs of pods that no source knows are removed, also if nothing else of these pods is
// left. The kubelet leaves them when it is replaced, because it removes them later than the rest.
func TestOrphanedLogs(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		web := apiPod("web")
		w.run(web)
		w.sleep(10 * time.Second)
		w.checkRunning("web/app#0")
		for _, dir := range []string{"default_gone_1234/app", "default_gone_5678", "of-something-else"} {
			if err := os.MkdirAll(w.path("logs/"+dir), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		w.restart()
		w.sleep(2 * time.Minute)
		var got []string
		all, err := os.ReadDir(w.path("logs"))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range all {
			got = append(got, e.Name())
		}
		if want := []string{"default_web_" + string(web.UID), "of-something-else"}; !slices.Equal(got, want) {
			t.Errorf("log directories: got %q, want %q", got, want)
		}
	})
}

// TestDirectoriesOfNoPod checks that a directory whose name is no UID does not count as that of a pod. The cgroup tree
// has no name for such a pod, so that its worker could never end.
func TestDirectoriesOfNoPod(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		dirs := []string{"pods/lost+found", "pods/.snapshot", "logs/default_web_..", "logs/default_web_copy of 1234"}
		for _, dir := range dirs {
			if err := os.MkdirAll(w.path(dir), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		w.sleep(2 * time.Minute)
		for _, dir := range dirs {
			if _, err := os.Stat(w.path(dir)); err != nil {
				t.Errorf("got a directory of no pod removed, want it left alone: %v", err)
			}
		}
		if strings.Contains(w.everythingLogged(), "orphaned pod found") {
			t.Error("got a worker for a directory of no pod, want none")
		}
	})
}

// TestLogDirectoriesAreNotFollowed checks that the agent makes, links and removes nothing at the targets of links. A
// pod that can write to /var/log can replace directories there by links.
func TestLogDirectoriesAreNotFollowed(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		first := apiPod("first")
		w.run(first)
		w.sleep(10 * time.Second)
		w.checkRunning("first/app#0")
		outside := t.TempDir()
		for _, dir := range []string{"logs", "links"} {
			if err := os.Rename(w.path(dir), w.path(dir)+".moved"); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(outside, w.path(dir)); err != nil {
				t.Fatal(err)
			}
		}
		w.run(first, apiPod("second"))
		w.sleep(10 * time.Second)
		found, err := os.ReadDir(outside)
		if err != nil || len(found) > 0 {
			t.Errorf("outside of the log directories: got %v, %v, want nothing", found, err)
		}
	})
}

// TestManyOrphanedLogs checks that a great many directories of logs are all removed, but few of them at a time.
func TestManyOrphanedLogs(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.sleep(10 * time.Second)
		const dirs = 200
		for i := range dirs {
			if err := os.MkdirAll(w.path(fmt.Sprintf("logs/default_gone_%08d", i)), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		w.sleep(2 * time.Minute)
		w.checkNothingLeft()
		var begun, ended, most int
		for line := range strings.Lines(w.logged.String()) {
			switch strings.TrimSpace(line) {
			case "orphaned pod found, removing it":
				begun++
				most = max(most, begun-ended)
			case "step=remove pod directory":
				ended++
			}
		}
		if begun != dirs || ended != dirs || most > 32 {
			t.Errorf("got %d pods found and %d removed, at most %d at a time; want %d, at most 32 at a time",
				begun, ended, most, dirs)
		}
	})
}
