package agent_test

import (
	"os"
	"slices"
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
