package kernel

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// machine writes kernel settings below a directory.
func machine(t *testing.T, values map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, value := range values {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(value+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestSettings checks that wrong settings are refused, or set, and that one which cannot be set does not stop the
// others.
func TestSettings(t *testing.T) {
	dir := machine(t, map[string]string{
		"vm/overcommit_memory": "0", "vm/panic_on_oom": "0", "kernel/panic": "0", "kernel/panic_on_oops": "1",
		"kernel/keys/root_maxkeys": "200", "kernel/keys/root_maxbytes": "20000",
	})
	err := Check(dir)
	for _, want := range []string{"vm.overcommit_memory is 0, want 1", "kernel.panic is 0, want 10",
		"kernel.keys.root_maxkeys is 200, want 1000000", "kernel.keys.root_maxbytes is 20000, want 25000000"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	if n := len(strings.Split(err.Error(), "\n")); n != 4 {
		t.Errorf("got %d wrong settings, want 4", n)
	}
	if err := os.Remove(filepath.Join(dir, "vm/panic_on_oom")); err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	apply(dir, slog.New(slog.NewTextHandler(&text, nil)))
	if err := Check(dir); err == nil || !strings.Contains(err.Error(), "read kernel setting vm.panic_on_oom") ||
		strings.Contains(err.Error(), "want") {
		t.Errorf("got %v, want an error about vm.panic_on_oom alone", err)
	}
	if !strings.Contains(text.String(), "cannot change a kernel setting") || strings.Count(text.String(), "changed") != 4 {
		t.Errorf("got log %s, want four changes and one warning", text.String())
	}
}

func TestSwapOn(t *testing.T) {
	dir := machine(t, map[string]string{
		"off": "Filename\tType\tSize", "on": "Filename\tType\tSize\n/dev/sda2 partition 1024",
	})
	for name, want := range map[string]bool{"off": false, "on": true, "none": false} {
		if got := swapOn(filepath.Join(dir, name)); got != want {
			t.Errorf("%s: got %t, want %t", name, got, want)
		}
	}
}
