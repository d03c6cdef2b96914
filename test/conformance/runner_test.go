package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nodelet/nodelet/test/waittest"
)

// TestMain plays the programs of a suite if the test's program is called by their names, and one that isolate has
// started.
func TestMain(m *testing.M) {
	if name := os.Getenv(innerName); name != "" {
		playInner(name)
		return
	}
	switch filepath.Base(os.Args[0]) {
	case "ginkgo":
		playRunner()
	case "e2e.test":
		playSpecs()
	default:
		os.Exit(m.Run())
	}
}

// playRunner runs the specs, as the suite's runner does: it does not end for a signal, and passes none on.
func playRunner() {
	signal.Notify(make(chan os.Signal, 1), os.Interrupt)
	var specs []string
	for _, arg := range os.Args {
		if strings.HasPrefix(arg, "--output-dir=") || filepath.Base(arg) == "e2e.test" {
			specs = append([]string{arg}, specs...)
		}
	}
	if err := exec.Command(specs[0], specs[1:]...).Run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// playSpecs works until it is interrupted, and then reports the only spec that has ended. A second interrupt ends it at
// once.
func playSpecs() {
	interrupts := make(chan os.Signal, 2)
	signal.Notify(interrupts, os.Interrupt)
	reports := strings.TrimPrefix(os.Args[1], "--output-dir=")
	if err := os.WriteFile(filepath.Join(reports, "works"), nil, 0o644); err != nil {
		panic(err)
	}
	<-interrupts
	const report = `[{"PreRunStats": {"SpecsThatWillRun": 3}, "SpecReports": [
		{"LeafNodeType": "It", "LeafNodeText": "[sig-node] ends", "State": "passed"},
		{"LeafNodeType": "It", "LeafNodeText": "[sig-node] runs", "State": "interrupted"}]}]`
	if len(interrupts) > 0 {
		os.Exit(1)
	}
	if err := os.WriteFile(filepath.Join(reports, "report.json"), []byte(report), 0o644); err != nil {
		panic(err)
	}
}

// TestInterrupted checks that the report of an interrupted run is kept.
func TestInterrupted(t *testing.T) {
	suite, o := t.TempDir(), options{reports: t.TempDir()}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"ginkgo", "e2e.test"} {
		if err := os.Symlink(program, filepath.Join(suite, name)); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer cancel()
		for limit := time.Now().Add(waittest.Limit); time.Now().Before(limit); time.Sleep(5 * time.Millisecond) {
			if _, err := os.Stat(filepath.Join(o.reports, "works")); err == nil {
				return
			}
		}
	}()
	got, err := run(ctx, o, suite, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(got.specs) != 1 || !got.specs[0].passed() || got.notRun != 2 {
		t.Errorf("got %+v, want one spec that has passed, and two that have not run", got)
	}
}
