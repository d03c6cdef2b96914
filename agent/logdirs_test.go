package agent_test

import (
	"os"
	"testing"
	"time"
)

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
