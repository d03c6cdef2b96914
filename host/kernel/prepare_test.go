package kernel

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPrepare checks that a machine is refused only if the configuration says so, and that a kernel whose
// settings are protected is not changed.
func TestPrepare(t *testing.T) {
	dir := t.TempDir()
	swaps, panics := filepath.Join(dir, "swaps"), filepath.Join(dir, "kernel/panic")
	if err := os.Mkdir(filepath.Dir(panics), 0o755); err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string]string{swaps: "Filename Type\n/dev/sda2 partition\n", panics: "0\n"} {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name      string
		config    Config
		err, want string
	}{
		{"refuses swap", Config{RefuseSwap: true}, "swap is on", "0"},
		{"protects", Config{Protect: true}, "kernel.panic is 0, want 10", "0"},
		{"sets", Config{}, "", "10"},
	} {
		c.config.Log = slog.New(slog.DiscardHandler)
		err := c.config.prepare(dir, swaps)
		if (c.err == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.err)
		}
		got, err := os.ReadFile(panics)
		if err != nil || strings.TrimSpace(string(got)) != c.want {
			t.Errorf("%s: got kernel.panic %q, %v, want %s", c.name, got, err, c.want)
		}
	}
}
