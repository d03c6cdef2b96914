package reference_test

import (
	"bytes"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/nodelet/nodelet/cmd/nodelet/command/app"
	"github.com/nodelet/nodelet/test/programs"
	"github.com/nodelet/nodelet/test/reference"
)

var update = flag.Bool("update", false, "rewrite the reference pages and the man pages")

// TestReference checks that the reference pages and the man pages are those of the tables; -update writes them.
func TestReference(t *testing.T) {
	differences, err := os.ReadFile("../e2e/testdata/metrics/differences.txt")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"reference/commands.md": reference.Commands(app.Root()),
		"reference/settings.md": reference.Settings(),
		"reference/gates.md":    reference.Gates(),
		"reference/pods.md":     reference.PodFields(),
		"reference/events.md":   reference.Events(eventReasons(t)),
		"reference/metrics.md":  reference.Metrics(string(differences)),
		"reference/files.md":    reference.FilesPage(files(t)),
		"man/nodelet.8":         reference.Man(app.Root(), files(t)),
		"man/nodelet-config.5":  reference.ConfigMan(),
	} {
		path := filepath.Join("../../docs", name)
		if *update {
			if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, err := os.ReadFile(path)
		if err != nil || string(got) != want {
			t.Errorf("docs/%s is not current (%v): go test ./test/reference -update", name, err)
		}
	}
}

// TestManPagesAreWellFormed lets man-db read the pages, if it is there.
func TestManPagesAreWellFormed(t *testing.T) {
	man := programs.Find(t, "man")
	for _, page := range []string{"nodelet.8", "nodelet-config.5"} {
		var warnings bytes.Buffer
		c := exec.Command(man, "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", filepath.Join("../../docs/man", page))
		c.Env = append(os.Environ(), "MANROFFSEQ=", "MANWIDTH=80")
		c.Stderr = &warnings
		if err := c.Run(); err != nil || warnings.Len() > 0 {
			t.Errorf("%s: got %v and %s, want no warning", page, err, &warnings)
		}
	}
}
