package nodelet_test

import (
	"cmp"
	"fmt"
	"go/ast"
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

var namedTest = regexp.MustCompile("`(?:([a-z0-9./]+): )?(Test[A-Za-z0-9]+)(?:/[^`]*)?`")

// namedTests returns the tests that a page names in backticks, without their subtests, as "package: TestName". A name
// alone is in the package of the one before it in its line. If there is none, it is ": TestName".
func namedTests(t *testing.T, page string) (all []string) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		pkg := ""
		for _, n := range namedTest.FindAllStringSubmatch(line, -1) {
			pkg = cmp.Or(n[1], pkg)
			all = append(all, pkg+": "+n[2])
		}
	}
	return all
}

// TestNamedTestsExist checks that the tests that pages name exist.
func TestNamedTestsExist(t *testing.T) {
	exist := map[string]bool{}
	for _, s := range everyGoFile(t) {
		for _, d := range s.syntax.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && strings.HasSuffix(s.file, "_test.go") {
				exist[s.dir+": "+f.Name.Name], exist[": "+f.Name.Name] = true, true
			}
		}
	}
	count := 0
	for _, page := range pages(t) {
		for _, name := range namedTests(t, page) {
			count++
			if !exist[name] {
				t.Errorf("%s names the test %q, which does not exist", page, name)
			}
		}
	}
	if count < 900 {
		t.Errorf("got %d tests that pages name, want 900 or more", count)
	}
}

// pages returns the pages for readers, without those that are generated.
func pages(t *testing.T) (all []string) {
	t.Helper()
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/decisions/*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) < 5 {
			t.Fatalf("list %s: got %d pages, %v", pattern, len(found), err)
		}
		all = append(all, found...)
	}
	return all
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
	list, err := os.ReadFile("test/mutants/mutants.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range namedTests(t, "docs/security.md") {
		pkg, name, _ := strings.Cut(test, ": ")
		if name != "TestNothingDangerous" && !strings.Contains(string(list), "\ntest "+pkg+" "+name+"\n") {
			t.Errorf("no mutant for %s", test)
		}
	}
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
	for _, page := range pages(t) {
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
