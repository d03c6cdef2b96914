package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const list = `
- testname: Pods, run
  codename: '[sig-node] Pods should run
    [Conformance]'
- testname: Jobs, end
  codename: '[sig-apps] Job should end [Conformance]'
`

// submission is a directory that is accepted; replaced are the contents of files in it that differ.
func submission(t *testing.T, release string, replaced map[string]string) (dir string, required []string) {
	t.Helper()
	required, err := parseSpecs([]byte(list))
	if err != nil {
		t.Fatal(err)
	}
	dir = filepath.Join(t.TempDir(), release, "product")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	files := map[string]string{
		readmeFile: "# How to run it\n",
		productFile: "vendor: A\nname: B\nversion: v1\ntype: distribution\ndescription: C\nwebsite_url: https://a.example\n" +
			"documentation_url: https://a.example/docs\ncontact_email_address: a@a.example\n",
		logFile: "e2e.go:153] kube-apiserver version: v1.37.2\n",
		junitFile: `<testsuites><testsuite>
 <testcase name="[It] [sig-node] Pods should run [Conformance]" status="passed"></testcase>
 <testcase name="[It] [sig-apps] Job should end [Conformance]" status="passed"></testcase>
 <testcase name="[It] [sig-apps] Job of another kind" status="skipped"></testcase>
 <testcase name="[SynchronizedBeforeSuite]" status="passed"></testcase>
</testsuite></testsuites>`,
	}
	for name, text := range replaced {
		files[name] = text
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir, required
}

// TestCheck checks that a complete submission is accepted, and that each rule refuses one that breaks it.
func TestCheck(t *testing.T) {
	dir, required := submission(t, "v1.37", nil)
	if err := check(dir, required); err != nil {
		t.Errorf("a complete submission: got %v, want no error", err)
	}
	for name, c := range map[string]struct {
		release  string
		replaced map[string]string
		want     string
	}{
		"no release":    {"latest", nil, "want vX.Y/PRODUCT"},
		"other release": {"v1.36", nil, "the kube-apiserver is of v1.37, the directory of v1.36"},
		"other file":    {"v1.37", map[string]string{"notes": "x"}, `want ["PRODUCT.yaml"`},
		"empty file":    {"v1.37", map[string]string{readmeFile: ""}, "file README.md: it is empty"},
		"no field":      {"v1.37", map[string]string{productFile: "vendor: A\n"}, "field contact_email_address is missing"},
		"bad URL":       {"v1.37", map[string]string{productFile: "website_url: here\n"}, `website_url: "here" is no URL`},
		"bad type":      {"v1.37", map[string]string{productFile: "type: agent\n"}, `field type: got "agent"`},
		"bad address": {
			"v1.37",
			map[string]string{productFile: "contact_email_address: a\n"},
			"contact_email_address: mail",
		},
		"no version": {"v1.37", map[string]string{logFile: "log\n"}, "does not say the version"},
		"missing spec": {"v1.37", map[string]string{junitFile: `<testsuites><testsuite>
 <testcase name="[It] [sig-node] Pods should run [Conformance]" status="passed"/></testsuite></testsuites>`},
			"has not passed: [sig-apps] Job should end"},
		"failed spec": {"v1.37", map[string]string{junitFile: `<testsuites><testsuite>
 <testcase name="[It] [sig-node] Pods should run [Conformance]" status="failed"/></testsuite></testsuites>`},
			"failed: [sig-node] Pods should run"},
		"no report": {"v1.37", map[string]string{junitFile: "log"}, "junit_01.xml: "},
	} {
		dir, required := submission(t, c.release, c.replaced)
		if err := check(dir, required); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q in it", name, err, c.want)
		}
	}
}

// TestParseSpecs checks that names that the list breaks into lines are put together; an empty list is an error.
func TestParseSpecs(t *testing.T) {
	names, err := parseSpecs([]byte(list))
	if err != nil || len(names) != 2 || names[0] != "[sig-node] Pods should run [Conformance]" {
		t.Errorf("got %q, %v, want two names", names, err)
	}
	if _, err := parseSpecs([]byte("[]")); err == nil {
		t.Error("an empty list: got no error, want one")
	}
}
