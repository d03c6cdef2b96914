package cni

import (
	"slices"
	"strings"
	"testing"
)

// TestCheckOfNextSandbox checks that the problem of a pod ends with the check of its next sandbox, and that this is
// reported.
func TestCheckOfNextSandbox(t *testing.T) {
	b := newBench(t)
	b.plugin("first", strings.TrimSuffix(answer, "exit 0\n")+
		`[ "$CNI_COMMAND" = CHECK ] && [ "$CNI_CONTAINERID" = s1 ] && exit 1; exit 0`)
	var passed []bool
	c := NewChecker(CheckerConfig{Driver: b.Driver, Log: discard(), Found: func(_ Pod, err error) {
		passed = append(passed, err == nil)
	}})
	for _, sandbox := range []string{"s1", "s2"} {
		rec := b.record(sandbox)
		rec.Pod.UID = "pod"
		if err := b.Attach(t.Context(), rec, []Wanted{{Network: b.network(chain("first")), IfName: "eth0"}}); err != nil {
			t.Fatal(err)
		}
		c.round(t.Context())
		if got, want := c.Problem("pod") == "", sandbox == "s2"; got != want {
			t.Errorf("sandbox %s passes: got %v, want %v: %s", sandbox, got, want, c.Problem("pod"))
		}
		if err := b.Detach(t.Context(), sandbox, "", nil); err != nil {
			t.Fatal(err)
		}
	}
	if want := []bool{false, true}; !slices.Equal(passed, want) {
		t.Errorf("reported that the check passes: got %v, want %v", passed, want)
	}
}
