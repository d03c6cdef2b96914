package main

import (
	"os"
	"slices"
	"testing"
)

func TestBlocks(t *testing.T) {
	page := "# T\n## One\ntext\n\n    a\n    b\n\n    c\ntext\n    d\n## Two\n    e\n"
	want := []block{{"One", "a\nb\nc\n"}, {"One", "d\n"}, {"Two", "e\n"}}
	if got := blocks(page); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestRolloutPage checks that the guide has exactly the blocks whose effect the test in the machine knows.
func TestRolloutPage(t *testing.T) {
	page, err := os.ReadFile("../../" + rolloutPage)
	if err != nil {
		t.Fatal(err)
	}
	checks := new(rollout).checks()
	for _, b := range blocks(string(page)) {
		if checks[b.heading] == nil {
			t.Errorf("a code block below %q has no check, or is the second there", b.heading)
		}
		delete(checks, b.heading)
	}
	for heading := range checks {
		t.Errorf("no code block below %q", heading)
	}
}
