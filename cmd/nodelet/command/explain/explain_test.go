package explain

import (
	"bytes"
	"testing"
	"time"

	"github.com/nodelet/nodelet/agent"
)

// TestChosen checks that pods can be chosen by name, with or without namespace, and by UID, which is all that is known
// of some.
func TestChosen(t *testing.T) {
	all := []*agent.Explanation{
		{Pod: "default/web", UID: "1"}, {Pod: "default/db", UID: "2"}, {Pod: "pod with UID 3", UID: "3"},
	}
	o := options{namespace: new("")}
	for name, want := range map[string]string{"web": "1", "default/web": "1", "2": "2", "3": "3"} {
		if got := o.chosen(all, []string{name}); len(got) != 1 || got[0].UID != want {
			t.Errorf("%s: got %d pods, want the one with UID %s", name, len(got), want)
		}
	}
	if got := names(all); len(got) != 2 {
		t.Errorf("got names %q, want those of two pods", got)
	}
}

// TestWatchIgnoresTimes checks that --watch does not print pods again of which only the times have changed.
func TestWatchIgnoresTimes(t *testing.T) {
	now := time.Now()
	all := []*agent.Explanation{{Pod: "default/web", Waits: []agent.Wait{
		{For: "mount volume data", Why: "in progress", Since: &now},
		{For: "prepare", Why: "full", Next: new(now.Add(time.Hour))},
	}}}
	var first, later bytes.Buffer
	agent.WriteExplanations(&first, all, now)
	agent.WriteExplanations(&later, all, now.Add(10*time.Minute))
	if !bytes.Contains(later.Bytes(), []byte("in progress (running for 10m0s)\n")) {
		t.Errorf("got %s, want how long the mount has run", later.Bytes())
	}
	if !bytes.Equal(shape(first.Bytes()), shape(later.Bytes())) {
		t.Errorf("got %s and %s, want the same shape", shape(first.Bytes()), shape(later.Bytes()))
	}
}
