package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const reportJSON = `[{"SpecReports": [
 {"LeafNodeType": "SynchronizedBeforeSuite", "State": "passed"},
 {"ContainerHierarchyTexts": ["[sig-node] Pods"], "LeafNodeType": "It", "LeafNodeText": "should run",
   "State": "passed", "RunTime": 2000000000},
 {"ContainerHierarchyTexts": ["[sig-node] Pods", "that fail"], "LeafNodeType": "It", "LeafNodeText": "should tell",
"State": "failed",
  "Failure": {"Message": "no word of it\nat all"}},
 {"ContainerHierarchyTexts": ["[sig-apps] Job"], "LeafNodeType": "It", "LeafNodeText": "should end", "State": "skipped"}
]}]`

func outcome(t *testing.T, list string) (string, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "report.json")
	if err := os.WriteFile(file, []byte(reportJSON), 0o600); err != nil {
		t.Fatal(err)
	}
	report, err := readReport(file)
	if err != nil {
		t.Fatal(err)
	}
	known, err := parseKnown(strings.NewReader(list))
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	err = judge(&out, report, known["nodelet"])
	return out.String(), err
}

func TestUnknownFailureFails(t *testing.T) {
	out, err := outcome(t, "")
	if err == nil || !strings.Contains(out,
		"FAILED: [sig-node] Pods that fail should tell\n    no word of it\n    at all\n") {
		t.Errorf("got %v, want an error and the whole name of the failed spec:\n%s", err, out)
	}
	if strings.Contains(out, "Job") || !strings.Contains(out, "all              1       2   2s") {
		t.Errorf("got table\n%s\nwant one of 2 specs in 2 s, without Job", out)
	}
}

func TestKnownFailureIsExplained(t *testing.T) {
	out, err := outcome(t, "# nothing\n\n# It is dumb.\n# Really.\nboth [sig-node] Pods that fail should tell\n")
	if err != nil || !strings.Contains(out,
		"failed, as known.txt says: [sig-node] Pods that fail should tell\n    It is dumb. Really.\n") {
		t.Errorf("got %v, want no error and the reason of known.txt:\n%s", err, out)
	}
}

func TestStaleLineIsTold(t *testing.T) {
	out, err := outcome(t, "# It fails.\nboth [sig-node] Pods should run\nnodelet [sig-node] Pods that fail should tell\n")
	if err != nil || !strings.Contains(out, "take it out there: [sig-node] Pods should run") {
		t.Errorf("got %v, want no error and the advice to take the spec out:\n%s", err, out)
	}
}

func TestKnownNeedsReason(t *testing.T) {
	for _, list := range []string{"nodelet [sig-node] Pods", "# why\n\nnodelet [sig-node] Pods",
		"# why\nnobody [sig-node] Pods", "# why\nnodelet"} {
		if _, err := parseKnown(strings.NewReader(list)); err == nil {
			t.Errorf("parse %q: got no error, want one", list)
		}
	}
}

func TestKnownFileIsRead(t *testing.T) {
	if _, err := readKnown("known.txt"); err != nil {
		t.Error(err)
	}
}

// TestReportCounts checks that specs that skipped themselves are distinguished from those that the time limit left out.
func TestReportCounts(t *testing.T) {
	file := filepath.Join(t.TempDir(), "report.json")
	text := `[{"PreRunStats": {"SpecsThatWillRun": 4}, "SpecReports": [
 {"LeafNodeType": "It", "LeafNodeText": "passes", "State": "passed"},
 {"LeafNodeType": "It", "LeafNodeText": "needs a GPU", "State": "skipped", "Failure": {"Message": "no GPU"}},
 {"LeafNodeType": "It", "LeafNodeText": "is running", "State": "timedout",
  "Failure": {"Message": "A suite timeout occurred"}},
 {"LeafNodeType": "It", "LeafNodeText": "comes later", "State": "skipped"},
 {"LeafNodeType": "It", "LeafNodeText": "is of another suite", "State": "skipped"}
]}]`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := readReport(file)
	if err != nil {
		t.Fatal(err)
	}
	if len(got.specs) != 1 || len(got.skipped) != 1 || got.notRun != 2 {
		t.Errorf("got %d specs, %d skipped, %d not run, want 1, 1 and 2", len(got.specs), len(got.skipped), got.notRun)
	}
	if err := judge(&strings.Builder{}, got, nil); err == nil || !strings.Contains(err.Error(), "2 specs did not run") {
		t.Errorf("got %v, want an error with the number of specs that did not run", err)
	}
}
