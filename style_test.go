package nodelet_test

import (
	"go/ast"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

const (
	// maxLines is the length of a file at which it has to be split.
	maxLines = 500
	// maxFunction is the most lines of a function of the product.
	maxFunction = 60
	// maxColumns is the length of a line in characters; a tab counts as one.
	maxColumns = 120
)

// longLines has the number of lines over maxColumns that a directory still has. It must never grow: shorten lines, also
// those of files that you move to another directory, and lower the number. maxLongTestLines is the same for all tests
// together.
const longLines = `
test/bench: 2
test/kind: 5
test/testbed: 2
test/vm: 25
`

const maxLongTestLines = 125

// docWithCode lists the doc.go files that still hold more than the package comment. Move the code to a file with its
// name.
var docWithCode = []string{}

// TestEveryPackageIsDocumented checks that each package has a comment.
func TestEveryPackageIsDocumented(t *testing.T) {
	documented := map[string]bool{}
	for _, s := range product(t) {
		documented[s.dir] = documented[s.dir] || s.syntax.Doc != nil && len(s.syntax.Doc.Text()) > 40
	}
	for dir, ok := range documented {
		if !ok {
			t.Errorf("package %s has no package comment: what does it own, what does it never do, who calls it, "+
				"what does a crash leave behind?", dir)
		}
	}
}

// TestFilesStaySmall checks that no file has more than maxLines.
func TestFilesStaySmall(t *testing.T) {
	for _, s := range product(t) {
		if n := strings.Count(s.text, "\n"); n > maxLines {
			t.Errorf("%s has %d lines, more than %d: split it", s.file, n, maxLines)
		}
	}
}

// TestFunctionsStayShort checks that no function of the product has more than maxFunction lines.
func TestFunctionsStayShort(t *testing.T) {
	for _, s := range product(t) {
		for _, d := range s.syntax.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || s.isTest() {
				continue
			}
			start := int(s.syntax.FileStart)
			text := s.text[int(f.Pos())-start : int(f.End())-start]
			if n := strings.Count(text, "\n") + 1; n > maxFunction {
				t.Errorf("%s: %s has %d lines, more than %d: split it", s.file, f.Name.Name, n, maxFunction)
			}
		}
	}
}

// long returns the numbers of the lines over maxColumns.
func long(text string) []string {
	var all []string
	number := 0
	for line := range strings.Lines(text) {
		number++
		if utf8.RuneCountInString(strings.TrimSuffix(line, "\n")) > maxColumns {
			all = append(all, strconv.Itoa(number))
		}
	}
	return all
}

// TestLinesStayShort checks that the number of long lines does not grow in any directory.
func TestLinesStayShort(t *testing.T) {
	allowed := map[string]int{}
	for line := range strings.Lines(longLines) {
		if dir, n, ok := strings.Cut(strings.TrimSpace(line), ": "); ok {
			allowed[dir], _ = strconv.Atoi(n)
		}
	}
	found, where := map[string]int{}, map[string][]string{}
	for _, s := range product(t) {
		if lines := long(s.text); len(lines) > 0 {
			found[s.dir] += len(lines)
			where[s.dir] = append(where[s.dir], path.Base(s.file)+":"+strings.Join(lines, ","))
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(found)) {
		if found[dir] > allowed[dir] {
			t.Errorf("%s: got %d lines over %d columns, want at most %d: %s",
				dir, found[dir], maxColumns, allowed[dir], strings.Join(where[dir], " "))
		}
	}
}

// TestLinesOfTestsStayShort checks that the number of long lines in tests does not grow.
func TestLinesOfTestsStayShort(t *testing.T) {
	found := 0
	err := filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(p, "_test.go") {
			return err
		}
		text, err := os.ReadFile(p)
		found += len(long(string(text)))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if found > maxLongTestLines {
		t.Errorf("got %d lines over %d columns in tests, want at most %d", found, maxColumns, maxLongTestLines)
	}
}

// TestDocFilesHoldNoCode checks that a doc.go holds the package comment only.
func TestDocFilesHoldNoCode(t *testing.T) {
	for _, s := range product(t) {
		if path.Base(s.file) == "doc.go" && len(s.syntax.Decls) > 0 && !slices.Contains(docWithCode, s.file) {
			t.Errorf("%s holds more than the package comment", s.file)
		}
	}
}

// TestNothingSleeps checks that no product code calls time.Sleep: it ignores the end of its context.
func TestNothingSleeps(t *testing.T) {
	for _, s := range product(t) {
		if s.isTest() {
			continue
		}
		ast.Inspect(s.syntax, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok || sel.Sel.Name != "Sleep" {
				return true
			}
			if x, ok := sel.X.(*ast.Ident); ok && x.Name == "time" {
				t.Errorf("%s calls time.Sleep; use a timer and the context", s.file)
			}
			return true
		})
	}
}

// TestBoolFunctionsReport checks that the doc comments of functions of the product with one boolean result say "reports
// whether".
func TestBoolFunctionsReport(t *testing.T) {
	for _, s := range product(t) {
		if s.isTest() {
			continue
		}
		for _, d := range s.syntax.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Doc == nil || f.Type.Results.NumFields() != 1 {
				continue
			}
			result, ok := f.Type.Results.List[0].Type.(*ast.Ident)
			if ok && result.Name == "bool" && !strings.Contains(strings.ReplaceAll(f.Doc.Text(), "\n", " "), "reports whether") {
				t.Errorf("%s: the comment of %s does not say what it \"reports whether\"", s.file, f.Name.Name)
			}
		}
	}
}

const (
	// maxMethods and maxFields are the most that a type may have: a type has one job.
	maxMethods = 40
	maxFields  = 20
)

// largeTypes lists the types that still have more, with their numbers of methods and fields. The numbers must never
// grow. KubeletConfiguration has the fields of the Kubernetes API.
const largeTypes = `
config.KubeletConfiguration     1 127
test/testbed.Cache             41   3
test/testbed.Node              50  16
`

// TestTypesHaveOneJob checks that no type has more than maxMethods methods or maxFields fields.
func TestTypesHaveOneJob(t *testing.T) {
	methods, fields := map[string]int{}, map[string]int{}
	for _, s := range product(t) {
		for _, d := range s.syntax.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if name := receiver(d); name != "" {
					methods[s.dir+"."+name]++
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if ts, ok := spec.(*ast.TypeSpec); ok {
						fields[s.dir+"."+ts.Name.Name] = countFields(ts.Type)
					}
				}
			}
		}
	}
	allowed := map[string][2]int{}
	for line := range strings.Lines(largeTypes) {
		if f := strings.Fields(line); len(f) == 3 {
			m, _ := strconv.Atoi(f[1])
			n, _ := strconv.Atoi(f[2])
			allowed[f[0]] = [2]int{m, n}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		m, f := max(maxMethods, allowed[name][0]), max(maxFields, allowed[name][1])
		if methods[name] > m || fields[name] > f {
			t.Errorf("%s: got %d methods and %d fields, want at most %d and %d: split it by job",
				name, methods[name], fields[name], m, f)
		}
	}
}

// receiver returns the name of the type of a method, empty for a function.
func receiver(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return ""
	}
	x := d.Recv.List[0].Type
	if star, ok := x.(*ast.StarExpr); ok {
		x = star.X
	}
	switch generic := x.(type) {
	case *ast.IndexExpr:
		x = generic.X
	case *ast.IndexListExpr:
		x = generic.X
	}
	return x.(*ast.Ident).Name
}

// countFields returns the number of fields of a struct, embedded ones included, and zero for other types.
func countFields(x ast.Expr) (n int) {
	s, ok := x.(*ast.StructType)
	if !ok {
		return 0
	}
	for _, f := range s.Fields.List {
		n += max(1, len(f.Names))
	}
	return n
}
