package agent_test

import (
	"context"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nodelet/nodelet/agent"
	"github.com/nodelet/nodelet/test/cri/fake"
)

// TestExplain prints what three pods do: one runs, one waits for an object, one ends slowly.
func TestExplain(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.runtime.Script("slow", fake.Script{IgnoresTerm: true})
		slow := apiPod("slow")
		slow.Spec.Containers[0].Name = "slow"
		w.run(slow, apiPod("web"), apiPod("waits", withConfigMap("settings")))
		w.sleep(20 * time.Second)
		w.delete(slow, 30*time.Second)
		w.sleep(0)
		all, err := w.agent.Explain(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		agent.WriteExplanations(&out, all, time.Now())
		want := `default/slow  stopping, deleted
    waits for: stop container slow (ID): Stopping container slow: in progress
default/waits  Pending
    waits for: mount volume data: MountVolume.SetUp failed for volume "data" : ` +
			`configmap "settings" not found (again in 11s)
default/web  Running, ready
`
		if got := regexp.MustCompile("c0de[0-9a-f]+").ReplaceAllString(out.String(), "ID"); got != want {
			t.Errorf("got:\n%s\nwant:\n%s", got, want)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for range 100 {
			if all, err := w.agent.Explain(ctx); err == nil && len(all) != 3 {
				t.Errorf("got %d pods explained, want 3", len(all))
			}
		}
	})
}
