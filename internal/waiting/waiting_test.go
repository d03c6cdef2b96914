package waiting_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/internal/waiting"
)

func TestPods(t *testing.T) {
	var w waiting.Pods[string]
	if got := w.Take("a"); len(got) != 0 {
		t.Errorf("take from the zero value: got %v, want none", got)
	}
	for _, key := range []string{"a1", "a1", "a2", "b"} {
		w.Add(key, types.UID("pod-"+key))
	}
	w.Add("a1", "other")
	for _, step := range []struct {
		name string
		take func() []types.UID
		want []types.UID
	}{
		{"one key, each pod once", func() []types.UID { return w.Take("a1") }, []types.UID{"other", "pod-a1"}},
		{"the same key again", func() []types.UID { return w.Take("a1") }, nil},
		{"those with a prefix", func() []types.UID {
			return w.TakeIf(func(key string) bool { return strings.HasPrefix(key, "a") })
		}, []types.UID{"pod-a2"}},
		{"what is left", func() []types.UID { return w.Take("b") }, []types.UID{"pod-b"}},
	} {
		got := step.take()
		slices.Sort(got)
		if !slices.Equal(got, step.want) {
			t.Errorf("%s: got %v, want %v", step.name, got, step.want)
		}
	}
}

// TestGonePodsAreForgotten checks that a pod is not kept for ever that waits for something that never comes.
func TestGonePodsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w waiting.Pods[string]
		w.Add("driver", "gone")
		w.Add("volume", "gone")
		w.Add("driver", "waits")
		for range 100 {
			time.Sleep(time.Minute)
			w.Add("driver", "waits")
		}
		if got := w.TakeIf(func(string) bool { return true }); len(got) != 1 || got[0] != "waits" {
			t.Errorf("got %v, want the pod that still waits", got)
		}
	})
}
