package nodelet_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestNamedTestsExist checks that the tests that a page names exist.
func TestNamedTestsExist(t *testing.T) {
	for _, page := range []string{"docs/security.md", "docs/robustness.md"} {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		named := regexp.MustCompile("`([a-z0-9./]+): (Test[A-Za-z0-9]+)`").FindAllStringSubmatch(string(text), -1)
		if len(named) < 20 {
			t.Fatalf("got %d tests named in %s, want at least 20", len(named), page)
		}
		for _, n := range named {
			files, err := filepath.Glob(filepath.Join(n[1], "*_test.go"))
			if err != nil {
				t.Fatal(err)
			}
			if !anyContains(t, files, "func "+n[2]+"(") {
				t.Errorf("%s names %s in %s, which does not exist", page, n[2], n[1])
			}
		}
	}
}

func anyContains(t *testing.T, files []string, want string) bool {
	t.Helper()
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), want) {
			return true
		}
	}
	return false
}

// TestNothingDangerous: what once opened a node has no place in the source. Each is a word of a flaw in
// docs/security.md.
func TestNothingDangerous(t *testing.T) {
	for _, s := range product(t) {
		if s.isTest() {
			continue
		}
		text, err := os.ReadFile(s.file)
		if err != nil {
			t.Fatal(err)
		}
		for word, why := range map[string]string{
			"route_localnet":     "it opens 127.0.0.1 of the node to its neighbours (CVE-2020-8558)",
			"/proc/sys/net":      "the node's own network settings are not the agent's",
			`"git"`:              "a repository's hooks run as root on the node (CVE-2024-10220)",
			`_ "net/http/pprof"`: "it puts profiles on every port (CVE-2019-11248)",
			`"expvar"`:           "it puts variables on every port (CVE-2019-11248)",
		} {
			if strings.Contains(string(text), word) {
				t.Errorf("%s has %s: %s", s.file, word, why)
			}
		}
	}
}
