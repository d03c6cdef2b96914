package userns

import (
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"testing"
)

// TestSubordinateIDs checks what a node makes of the answers of getsubids: pods get no user or group IDs but those that
// both files reserve.
func TestSubordinateIDs(t *testing.T) {
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		user   string
		script string // of getsubids; empty: there is none
		want   Range
		err    string
	}{
		"no user":    {"nodelet-no-such-user", "echo '0: x 65536 65536'", Range{}, ""},
		"no program": {me.Username, "", Range{}, ""},
		"range":      {me.Username, "echo '0: x 65536 131072'", Range{65536, 131072}, ""},
		"no range":   {me.Username, "exit 1", Range{}, "in /etc/subuid"},
		"no range of groups": {
			me.Username, "[ $# = 1 ] && echo '0: x 65536 131072'", Range{}, "in /etc/subgid",
		},
		"other groups": {
			me.Username, "[ $1 = -g ] && echo '0: x 131072 131072' || echo '0: x 65536 131072'", Range{}, "make them the same",
		},
		"two ranges": {me.Username, "echo '0: x 65536 65536'; echo '1: x 262144 65536'", Range{}, "more than one range"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			t.Setenv("PATH", dir)
			if c.script != "" {
				text := "#!/bin/sh\n" + c.script + "\n"
				if err := os.WriteFile(filepath.Join(dir, "getsubids"), []byte(text), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			got, err := subordinateIDs(c.user)
			if got != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("got %v, %v, want %v, %q", got, err, c.want, c.err)
			}
		})
	}
}
