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

// TestCertificates checks that an expired certificate is named as such, also while the agent does not answer.
func TestCertificates(t *testing.T) {
	now := time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)
	for problem, last := range map[string]string{"": "pods          0 of 0 ready\n", "no answer": ""} {
		r := &Report{Error: problem, Certificates: []certificate{
			{"client", now.Add(-time.Hour)}, {"server", now.Add(90 * 24 * time.Hour)},
		}}
		var out strings.Builder
		if err := r.write(&out, now); err != nil {
			t.Fatal(err)
		}
		want := "certificate   client, expired at 2026-01-01T23:00:00Z\ncertificate   server, valid for 90d\n" + last
		if got := out.String(); !strings.HasSuffix(got, want) {
			t.Errorf("got\n%s\nwant it to end with\n%s", got, want)
		}
	}
}
