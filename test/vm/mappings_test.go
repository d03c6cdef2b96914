package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// played is a limit of mappings in files.
type played struct {
	mappings
	t *testing.T
}

func play(t *testing.T, limit, kept string) played {
	dir := t.TempDir()
	p := played{mappings{filepath.Join(dir, "limit"), filepath.Join(dir, "kept")}, t}
	p.set(p.limit, limit)
	p.set(p.kept, kept)
	return p
}

func (p played) set(file, text string) {
	p.t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

func (p played) begin() (restore func()) {
	p.t.Helper()
	restore, err := p.allow()
	if err != nil {
		p.t.Fatal(err)
	}
	return restore
}

func (p played) want(when, limit string) {
	p.t.Helper()
	got, err := os.ReadFile(p.limit)
	if err != nil || strings.TrimSpace(string(got)) != limit {
		p.t.Errorf("%s: got the limit %q, %v, want %s", when, got, err, limit)
	}
}

// TestMappingsUntilLastRun checks that the limit is high until the last of several runs ends, whichever has raised it.
func TestMappingsUntilLastRun(t *testing.T) {
	p := play(t, "65530\n", "")
	first := p.begin()
	p.want("one run", enoughMappings)
	second := p.begin()
	first()
	first() // as the goroutine of an interrupted run
	p.want("the first has ended", enoughMappings)
	second()
	p.want("both have ended", "65530")
}

// TestMappingsAfterKill checks that a run restores what one that was killed has raised.
func TestMappingsAfterKill(t *testing.T) {
	p := play(t, enoughMappings, "65530\n")
	p.begin()()
	p.want("after a run", "65530")
}

// TestMappingsOfOthers checks that a limit that another program has set stays.
func TestMappingsOfOthers(t *testing.T) {
	p := play(t, enoughMappings, "")
	p.begin()()
	p.want("set before", enoughMappings)
	p = play(t, "65530", "")
	restore := p.begin()
	p.set(p.limit, "262144")
	restore()
	p.want("set during the run", "262144")
}
