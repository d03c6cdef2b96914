package status

import (
	"strings"
	"testing"
	"time"
)

// TestProblems checks that the text has a line for each problem with a manifest.
func TestProblems(t *testing.T) {
	r := &Report{Node: "n", Problems: []string{"web.yaml: not a pod", "db.yaml: empty"}}
	var out strings.Builder
	if err := r.write(&out, time.Now()); err != nil {
		t.Fatal(err)
	}
	want := "problem       web.yaml: not a pod\nproblem       db.yaml: empty\n"
	if got := out.String(); !strings.HasSuffix(got, want) {
		t.Errorf("got\n%s\nwant it to end with\n%s", got, want)
	}
}
