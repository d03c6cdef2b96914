package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nodelet/nodelet/test/bench/figures"
)

func record() *figures.Record {
	r := &figures.Record{
		Run:     "pods",
		Began:   time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC),
		Version: "v1",
		Sides:   figures.Sides{},
	}
	r.Sides.Note("floor", "create to Ready, one at a time, ms", 100)
	r.Sides.Note("nodelet", "create to Ready, one at a time, ms", 110)
	return r
}

func promise(bound float64) figures.Promise {
	return figures.Promise{
		Text:      "soon Ready",
		Run:       "pods",
		Side:      "nodelet",
		Against:   "floor",
		Measure:   "create to Ready, one at a time, ms",
		Statistic: "p50",
		Bound:     bound,
	}
}

func TestCheck(t *testing.T) {
	other := promise(2)
	other.Run = "storage"
	missing := promise(2)
	missing.Measure = "no such measure"
	for _, c := range []struct {
		p    figures.Promise
		want string
		ok   bool
	}{
		{promise(1.2), "kept ", true},
		{promise(1.05), "BROKEN ", false},
		{other, "NOT MEASURED ", false},
		{missing, "NOT MEASURED ", false},
	} {
		var out bytes.Buffer
		err := check(&out, []figures.Promise{c.p}, []*figures.Record{record()})
		if (err == nil) != c.ok || !strings.Contains(out.String(), "\n"+c.want) {
			t.Errorf("%+v: got error %v and\n%s\nwant a line that begins with %q", c.p, err, out.String(), c.want)
		}
	}
}

// TestPromisesOfTheProject checks that SPECIFICATION.md can be read, and names only runs that exist.
func TestPromisesOfTheProject(t *testing.T) {
	text, err := os.ReadFile(repository + "/SPECIFICATION.md")
	if err != nil {
		t.Fatal(err)
	}
	promises, err := figures.ParsePromises(text)
	if err != nil || len(promises) == 0 {
		t.Fatalf("got %d promises, error %v", len(promises), err)
	}
	runs := map[string]bool{}
	for _, c := range charted {
		runs[c.run] = true
	}
	for _, p := range promises {
		if !runs[p.Run] {
			t.Errorf("promise %q: got run %q, want one of %v", p.Text, p.Run, runs)
		}
	}
}

func TestWritePage(t *testing.T) {
	page := filepath.Join(t.TempDir(), "performance.md")
	first, second := record(), record()
	second.Began = second.Began.Add(24 * time.Hour)
	if err := writePage(page, []*figures.Record{second, first}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"2026-01-03", "| 100 (1) | 110 (1) | 1.10 |", "performance/pods.svg", "110, 1.10 × floor",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("page has no %q:\n%s", want, text)
		}
	}
	picture, err := os.ReadFile(filepath.Join(filepath.Dir(page), "performance", "pods.svg"))
	if err != nil {
		t.Fatal(err)
	}
	for d := xml.NewDecoder(bytes.NewReader(picture)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("picture is no XML: %v\n%s", err, picture)
		}
	}
}
