package main

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// TestPoll checks that the shell command ends with its check, and shows something if the check never succeeds.
func TestPoll(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	third := `n=$(wc -l < "` + file + `"); [ $n = 3 ] || { echo more >> "` + file + `"; false; }`
	for name, test := range map[string]struct {
		check, want string
		succeeds    bool
	}{
		"at once":          {"true", "", true},
		"at the third try": {third, "", true},
		"never":            {"false", "shown\n", false},
	} {
		if out, err := exec.Command("sh", "-c", ": > "+file).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v", out, err)
		}
		got, err := exec.Command("sh", "-c", poll(5, "0", test.check, "echo shown")).Output()
		if string(got) != test.want || (err == nil) != test.succeeds {
			t.Errorf("%s: got %q, %v, want %q, success %t", name, got, err, test.want, test.succeeds)
		}
	}
}
