package record

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRunsSurvive writes two runs and checks what a reader gets of them.
func TestRunsSurvive(t *testing.T) {
	file := filepath.Join(t.TempDir(), "runs.jsonl")
	for _, r := range []Run{
		{Date: "2026-01-31", Commit: "abc", Profile: "dense", Seed: 1, Minutes: 30, Pods: 10,
			Killed: map[string]int{"agent": 3, "runtime": 1}, Faults: map[string]int{"api-slow": 2}},
		{Date: "2026-02-01", Commit: "def", Profile: "kill", Network: "agent", Seed: 2, Minutes: 60, Pods: 5,
			Killed: map[string]int{"agent": 4}, Faults: map[string]int{"api-slow": 1, "none": 1}, Violations: 1, Note: "why"},
	} {
		if err := Append(file, r); err != nil {
			t.Fatal(err)
		}
	}
	runs, err := Read(file)
	if err != nil || len(runs) != 2 || runs[1].Kills() != 4 || runs[0].Faults["api-slow"] != 2 {
		t.Fatalf("got %+v, %v; want the two runs", runs, err)
	}
	page, err := Replace("before\n"+Begin+"old\n"+End+"after\n", runs)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"before\n" + Begin, End + "after\n",
		"2 runs, 1.5 hours, 15 pods, 8 processes killed (agent 7, runtime 1)",
		"| 2026-01-31 | abc | dense | runtime | 1 | 0 | 30 | 10 | 4 | 2 | 0 |",
		"| 2026-02-01 | def | kill | agent | 2 | 0 | 60 | 5 | 4 | 2 | 1: why |",
		"api-slow 3, none 1",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("got no %q in\n%s", want, page)
		}
	}
	if strings.Contains(page, "old") {
		t.Errorf("got the old part still in\n%s", page)
	}
	if _, err := Replace("a page without the part", runs); err == nil {
		t.Error("page without the part: got no error")
	}
}

// TestCutLine reads a file whose writer was killed.
func TestCutLine(t *testing.T) {
	file := filepath.Join(t.TempDir(), "runs.jsonl")
	if err := os.WriteFile(file, []byte("{\"date\":\"2026-01-31\"}\n{\"date\":\"20"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(file); err == nil || !strings.Contains(err.Error(), "line 2") {
		t.Errorf("got %v, want an error about line 2", err)
	}
}
