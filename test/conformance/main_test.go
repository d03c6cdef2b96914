package main

import (
	"os"
	"path/filepath"
	"slices"
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
