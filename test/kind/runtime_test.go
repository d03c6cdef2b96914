package main

import (
	"os"
	"path/filepath"
	"testing"
)

// TestShedCapability checks that what Docker asks runc for loses one capability and nothing else, large numbers
// included.
func TestShedCapability(t *testing.T) {
	with := func(extra string) string {
		return `{"capabilities":{"bounding":["CAP_CHOWN",` + extra + `"CAP_KILL"]},"rlimits":[{"hard":18446744073709551615}]}`
	}
	for _, c := range []struct {
		name, file, before, after string
		args                      []string
	}{
		{"create", "config.json", `{"process":` + with(`"CAP_SYS_RESOURCE",`) + `}`, `{"process":` + with("") + `}`,
			[]string{"--root", "/run", "create", "--bundle", "DIR", "id"}},
		{"exec", "process.json", with(`"CAP_SYS_RESOURCE",`), with(""),
			[]string{"exec", "--process", "DIR/process.json", "id"}},
		{"state", "config.json", "{}", "{}", []string{"state", "id"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			file := filepath.Join(dir, c.file)
			if err := os.WriteFile(file, []byte(c.before), 0o600); err != nil {
				t.Fatal(err)
			}
			for i, a := range c.args {
				if len(a) >= 3 && a[:3] == "DIR" {
					c.args[i] = dir + a[3:]
				}
			}
			if err := shedCapability(c.args); err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(file)
			if err != nil || string(got) != c.after {
				t.Errorf("got %s, %v, want %s", got, err, c.after)
			}
		})
	}
}
