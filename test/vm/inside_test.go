package main

import (
	"os/exec"
	"testing"
)

// TestQuote checks that the shell reads a quoted text as it was.
func TestQuote(t *testing.T) {
	for _, text := range []string{"", "a b", `it's $HOME "x" \n`, "^(A|B)$", "'"} {
		got, err := exec.Command("sh", "-c", "printf %s "+quote(text)).Output()
		if err != nil || string(got) != text {
			t.Errorf("quote(%q), read by a shell: got %q, %v, want the same text", text, got, err)
		}
	}
}
