package nodelet_test

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nodelet/nodelet/test/soak/record"
)

// namedTest is how a page names a test and its package.
var namedTest = regexp.MustCompile("`([a-z0-9./]+): (Test[A-Za-z0-9]+)`")

// TestNamedTestsExist checks that the tests that a page names exist.
func TestNamedTestsExist(t *testing.T) {
	for page, least := range map[string]int{
		"docs/security.md":   20,
		"docs/robustness.md": 20,
		"docs/faults.md":     400,
		"docs/mistakes.md":   8,
		"docs/commands.md":   1,
	} {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		named := namedTest.FindAllStringSubmatch(string(text), -1)
		if len(named) < least {
			t.Fatalf("got %d tests named in %s, want at least %d", len(named), page, least)
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

// TestSoakRunsAreShown checks that docs/robustness.md shows the recorded runs of the soak test.
func TestSoakRunsAreShown(t *testing.T) {
	runs, err := record.Read("test/soak/runs.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("docs/robustness.md")
	if err != nil {
		t.Fatal(err)
	}
	want, err := record.Replace(string(page), runs)
	if err != nil {
		t.Fatal(err)
	}
	if string(page) != want {
		t.Error(
			"docs/robustness.md does not show the runs of test/soak/runs.jsonl; write it with `go run ./test/soak -table`",
		)
	}
}

// TestEveryRuleHasAMutant checks that `make mutants` looks for a defence with each test that docs/security.md names. A
// rule that only a search of the source guards needs none.
func TestEveryRuleHasAMutant(t *testing.T) {
	page, err := os.ReadFile("docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	list, err := os.ReadFile("test/mutants/mutants.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range namedTest.FindAllStringSubmatch(string(page), -1) {
		if test[2] != "TestNothingDangerous" && !strings.Contains(string(list), "\ntest "+test[1]+" "+test[2]+"\n") {
			t.Errorf("no mutant for %s in %s", test[2], test[1])
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

// TestNothingDangerous checks that what once opened a node has no place in the source. Each is a word of a flaw in
// docs/security.md.
func TestNothingDangerous(t *testing.T) {
	for _, s := range product(t) {
		if s.isTest() || within(s.dir, "packaging") { // programs that never run on a node
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

var pageLink = regexp.MustCompile(`\]\(([^)#: ]+)(#[^)]*)?\)`)

// TestLinksExist checks that each relative link of a page leads to a file.
func TestLinksExist(t *testing.T) {
	pages, err := filepath.Glob("docs/*.md")
	more, err2 := filepath.Glob("docs/decisions/*.md")
	if err != nil || err2 != nil || len(pages) < 8 {
		t.Fatalf("list pages: got %d, %v, %v", len(pages), err, err2)
	}
	for _, page := range append(append(pages, more...), "README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, link := range pageLink.FindAllStringSubmatch(string(text), -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(page), link[1])); err != nil {
				t.Errorf("%s: the link %s leads nowhere", page, link[1])
			}
		}
	}
}

// separator stands between the cells of a table; it ends a cell in code, too, unless it is escaped.
var separator = regexp.MustCompile(`(?:^|[^\\])\|`)

// TestTablesAreWhole checks that each row of a table has as many cells as its first one: others would not be shown.
func TestTablesAreWhole(t *testing.T) {
	err := filepath.WalkDir("docs", func(page string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(page) != ".md" {
			return err
		}
		text, err := os.ReadFile(page)
		cells := 0
		for line := range strings.Lines(string(text)) {
			switch n := len(separator.FindAllString(line, -1)); {
			case !strings.HasPrefix(line, "|"):
				cells = 0
			case cells == 0:
				cells = n
			case n != cells:
				t.Errorf("%s: got %d cells, want %d: %s", page, n-1, cells-1, line)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestDecisionsAreListed checks that the list of decisions has each page with its title, by number.
func TestDecisionsAreListed(t *testing.T) {
	list, err := os.ReadFile("docs/decisions/README.md")
	if err != nil {
		t.Fatal(err)
	}
	pages, err := filepath.Glob("docs/decisions/0*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("list decisions: got %d, %v", len(pages), err)
	}
	for i, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		title, _, _ := strings.Cut(strings.TrimPrefix(string(text), "# "), "\n")
		line := fmt.Sprintf("%d. [%s](%s)\n", i+1, title, filepath.Base(page))
		if !strings.Contains(string(list), line) {
			t.Errorf("docs/decisions/README.md: want the line %q", line)
		}
	}
}

// TestPagesAreTwoClicksAway checks that each page is at most two links away from docs/README.md.
func TestPagesAreTwoClicksAway(t *testing.T) {
	reached := map[string]bool{"docs/README.md": true}
	for range 2 {
		for page := range maps.Clone(reached) {
			text, err := os.ReadFile(page)
			if err != nil || filepath.Ext(page) != ".md" {
				continue
			}
			for _, link := range pageLink.FindAllStringSubmatch(string(text), -1) {
				reached[filepath.Join(filepath.Dir(page), link[1])] = true
			}
		}
	}
	err := filepath.WalkDir("docs", func(page string, _ fs.DirEntry, err error) error {
		if filepath.Ext(page) == ".md" && !reached[page] {
			t.Errorf("%s is more than two links away from docs/README.md", page)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestTheLineIsShort checks that what docs/architecture.md links on the way from the watch to the status can be read in
// one sitting.
func TestTheLineIsShort(t *testing.T) {
	text, err := os.ReadFile("docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	total := 0
	for _, link := range pageLink.FindAllStringSubmatch(string(text), -1) {
		if !strings.HasSuffix(link[1], ".go") {
			continue
		}
		source, err := os.ReadFile(filepath.Join("docs", link[1]))
		if err != nil {
			t.Error(err)
		}
		total += strings.Count(string(source), "\n")
	}
	if total < 1000 || total > 2500 {
		t.Errorf("got %d lines on the way from the watch to the status, want at most 2500", total)
	}
}

// TestWalkthroughsAreShort checks that no walkthrough has more than 15 lines.
func TestWalkthroughsAreShort(t *testing.T) {
	text, err := os.ReadFile("docs/walkthroughs.md")
	if err != nil {
		t.Fatal(err)
	}
	walks := strings.Split(string(text), "\n## ")[1:]
	if len(walks) < 5 {
		t.Errorf("got %d walkthroughs, want at least 5", len(walks))
	}
	for _, walk := range walks {
		if n := strings.Count(strings.TrimSpace(walk), "\n"); n > 15 {
			title, _, _ := strings.Cut(walk, "\n")
			t.Errorf("%q: got %d lines, want at most 15", title, n)
		}
	}
}

// TestEveryPackageHasARow checks that docs/architecture.md lists each package, or a directory above it. The row of
// agent stands for that package alone.
func TestEveryPackageHasARow(t *testing.T) {
	text, err := os.ReadFile("docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range product(t) {
		dir := s.dir
		for dir != "." && !strings.Contains(string(text), "`"+dir+"`") {
			if dir = path.Dir(dir); dir == "agent" {
				break
			}
		}
		if dir == "." || dir == "agent" && s.dir != "agent" {
			t.Errorf("docs/architecture.md: got no row for package %s", s.dir)
		}
	}
}
