package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestArchivesIn checks that the archives of a directory are found, and that a directory without archives is an error.
func TestArchivesIn(t *testing.T) {
	dir := t.TempDir()
	if found, err := archivesIn(""); found != nil || err != nil {
		t.Errorf("without a directory: got %v, %v; want nothing", found, err)
	}
	if found, err := archivesIn(dir); err == nil {
		t.Errorf("an empty directory: got %v, want an error", found)
	}
	want := []string{filepath.Join(dir, "driver.tar"), filepath.Join(dir, "helper.tar")}
	for _, file := range append(want, filepath.Join(dir, "README")) {
		if err := os.WriteFile(file, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if found, err := archivesIn(dir); err != nil || !slices.Equal(found, want) {
		t.Errorf("got %v, %v, want %v", found, err, want)
	}
}

// TestRunnerArgs checks that no empty expression is among several: the runner joins them with "|", and an empty
// alternative matches, and so leaves out, every spec.
func TestRunnerArgs(t *testing.T) {
	o := options{focus: "f", more: (&result{Passed: []string{"a"}}).others()}
	skips := func() (all []string) {
		for _, arg := range o.runnerArgs() {
			if text, ok := strings.CutPrefix(arg, "--skip="); ok {
				all = append(all, text)
			}
		}
		return all
	}
	if got, want := skips(), []string{" a$"}; !slices.Equal(got, want) {
		t.Errorf("a resumed run: got %q, want %q", got, want)
	}
	o.skip = "Slow"
	if got, want := skips(), []string{"Slow", " a$"}; !slices.Equal(got, want) {
		t.Errorf("a resumed run with SKIP: got %q, want %q", got, want)
	}
}
