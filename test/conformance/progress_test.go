package main

import (
	"strings"
	"testing"
)

// TestProgress checks the lines for specs that ran in parallel (outcome first) and one after the other (name first).
func TestProgress(t *testing.T) {
	var out strings.Builder
	p := progress{to: &out}
	for line := range strings.Lines(`Will run 4 of 3206 specs
` + separator + `
[SynchronizedBeforeSuite] PASSED [0.1 seconds]
` + separator + `
• [5.1 seconds]
[sig-node] Pods should run
test/e2e/pods.go:1
[sig-node] is in its log as well
` + separator + `
• [FAILED] [2.0 seconds]
[sig-node] Pods [It] should end
` + separator + `
S [SKIPPED] [0.0 seconds]
[sig-node] Pods [It] needs a GPU
` + separator + `
[sig-node] Pods by itself
test/e2e/pods.go:2
• [0.3 seconds]
` + separator + "\n") {
		p.line(line)
	}
	want := `Will run 4 of 3206 specs
1 of 4, 0 failed: • [5.1 seconds] [sig-node] Pods should run
2 of 4, 1 failed: • [FAILED] [2.0 seconds] [sig-node] Pods [It] should end
3 of 4, 1 failed: S [SKIPPED] [0.0 seconds] [sig-node] Pods [It] needs a GPU
4 of 4, 1 failed: • [0.3 seconds] [sig-node] Pods by itself
`
	if out.String() != want {
		t.Errorf("got:\n%s\nwant:\n%s", out.String(), want)
	}
}
