package nodelet_test

import (
	"go/ast"
	"go/token"
	"go/types"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
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

// TestMainStaysSmall checks that the main package, which only connects the others, has at most maxMain lines.
func TestMainStaysSmall(t *testing.T) {
	const maxMain = 1200
	lines := 0
	for _, s := range product(t) {
		if path.Dir(s.file) == "cmd/nodelet" {
			lines += strings.Count(s.text, "\n")
		}
	}
	if lines == 0 || lines > maxMain {
		t.Errorf("the main package: got %d lines, want at most %d", lines, maxMain)
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

// TestLinesStayShort checks that neither the Makefile nor a Go file, tests included, has a line over maxColumns.
func TestLinesStayShort(t *testing.T) {
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range append(slices.Clone(everyGoFile(t)), source{file: "Makefile", text: string(makefile)}) {
		if lines := long(s.text); len(lines) > 0 {
			t.Errorf("%s: lines %s have more than %d columns", s.file, strings.Join(lines, ", "), maxColumns)
		}
	}
}

// TestDocFilesHoldNoCode checks that a doc.go holds the package comment only.
func TestDocFilesHoldNoCode(t *testing.T) {
	for _, s := range product(t) {
		if path.Base(s.file) == "doc.go" && len(s.syntax.Decls) > 0 {
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
		for _, use := range s.usesOfTime("Sleep") {
			t.Errorf("%s; use a timer and the context", use)
		}
	}
}

// usesOfTime returns where a file uses one of these functions of package time.
func (s source) usesOfTime(names ...string) (all []string) {
	ast.Inspect(s.syntax, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok || !slices.Contains(names, sel.Sel.Name) {
			return true
		}
		if x, ok := sel.X.(*ast.Ident); ok && x.Name == "time" {
			all = append(all, s.at(sel)+": time."+sel.Sel.Name)
		}
		return true
	})
	return all
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

// TestOneAssignmentAStatement checks that no statement makes three or more assignments: a reader would have to count.
func TestOneAssignmentAStatement(t *testing.T) {
	for _, s := range everyGoFile(t) {
		ast.Inspect(s.syntax, func(n ast.Node) bool {
			if a, ok := n.(*ast.AssignStmt); ok && len(a.Rhs) > 2 {
				t.Errorf("%s: got %d assignments in one statement, want at most 2", s.at(a), len(a.Rhs))
			}
			return true
		})
	}
}

// TestBuiltinsKeepTheirMeaning checks that nothing is declared with the name of a type or function of the language.
func TestBuiltinsKeepTheirMeaning(t *testing.T) {
	for _, s := range everyGoFile(t) {
		ast.Inspect(s.syntax, func(n ast.Node) bool {
			for _, name := range declared(n) {
				if id, ok := name.(*ast.Ident); ok && types.Universe.Lookup(id.Name) != nil {
					t.Errorf("%s: %s is a name of the language, choose another one", s.at(id), id.Name)
				}
			}
			return true
		})
	}
}

// declared returns the names that a node declares in a scope, which may also be no names but expressions. Fields and
// methods shadow nothing.
func declared(n ast.Node) (names []ast.Expr) {
	switch n := n.(type) {
	case *ast.FuncType:
		for _, list := range []*ast.FieldList{n.TypeParams, n.Params, n.Results} {
			names = append(names, fieldNames(list)...)
		}
	case *ast.FuncDecl:
		if names = fieldNames(n.Recv); n.Recv == nil {
			names = append(names, n.Name)
		}
	case *ast.ValueSpec:
		for _, name := range n.Names {
			names = append(names, name)
		}
	case *ast.TypeSpec:
		names = append(names, n.Name)
	case *ast.AssignStmt:
		if n.Tok == token.DEFINE {
			names = n.Lhs
		}
	case *ast.RangeStmt:
		names = append(names, n.Key, n.Value)
	}
	return names
}

func fieldNames(list *ast.FieldList) (names []ast.Expr) {
	if list == nil {
		return nil
	}
	for _, field := range list.List {
		for _, name := range field.Names {
			names = append(names, name)
		}
	}
	return names
}

// TestOneLoopOverInitContainers checks that only kube/pod loops over the init containers of a spec: its iterator
// forgets no kind of containers. The validation of a manifest goes through each list by itself, as the API server does.
func TestOneLoopOverInitContainers(t *testing.T) {
	for _, s := range product(t) {
		if s.dir == "kube/pod" || s.dir == "kube/pods/manifest" || s.isTest() {
			continue
		}
		ast.Inspect(s.syntax, func(n ast.Node) bool {
			if loop, ok := n.(*ast.RangeStmt); ok {
				if x, ok := loop.X.(*ast.SelectorExpr); ok && x.Sel.Name == "InitContainers" {
					t.Errorf("%s: a loop over the init containers; use Containers of kube/pod", s.at(loop))
				}
			}
			return true
		})
	}
}

const (
	// maxExported and maxFields are the most exported methods and fields that a type may have: a type has one job.
	// Unexported methods do not count: they are how the work of a type is divided.
	maxExported = 36
	maxFields   = 20
)

// kubernetesTypes have as many fields as the types of the Kubernetes API that they stand for.
var kubernetesTypes = []string{"config.KubeletConfiguration"}

// TestTypesHaveOneJob checks that no type has more than maxExported exported methods or maxFields fields.
func TestTypesHaveOneJob(t *testing.T) {
	methods, fields := map[string]int{}, map[string]int{}
	for _, s := range product(t) {
		for _, d := range s.syntax.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if name := receiver(d); name != "" && d.Name.IsExported() {
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
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		large := methods[name] > maxExported || fields[name] > maxFields
		if large && !slices.Contains(kubernetesTypes, name) {
			t.Errorf("%s: got %d exported methods and %d fields, want at most %d and %d: it has more than one job, "+
				"move the methods and fields of one to a type of their own (a method made a function is no split)",
				name, methods[name], fields[name], maxExported, maxFields)
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

// privateWords are metaphors and old words for which Kubernetes, CRI, CSI, CNI, systemd or Go have a term, or plain
// English has a better word.
var privateWords = regexp.MustCompile(`(?i)\b(anew|calm|census|deeds?|desks?|doors?|knobs?|newcomers?|` +
	`rooms?|strangers?|told|whoever|wherefore|wish(es|ed)?|by the word of|the likes of)\b`)

// TestWordsArePlain checks that neither code nor pages use privateWords.
func TestWordsArePlain(t *testing.T) {
	texts := map[string]string{}
	for _, s := range everyGoFile(t) {
		if s.file != "style_test.go" {
			texts[s.file] = s.text
		}
	}
	for _, pattern := range []string{
		"*.md", "docs/*.md", "docs/*/*.md", "Makefile", "packaging/*", "agent/plan/testdata/*", "test/vm/guest/*",
		"test/kind/files/*",
	} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: got %d files, %v", pattern, len(files), err)
		}
		for _, file := range files {
			if text, err := os.ReadFile(file); err == nil { // directories cannot be read
				texts[file] = string(text)
			}
		}
	}
	for _, file := range slices.Sorted(maps.Keys(texts)) {
		for _, word := range privateWords.FindAllString(texts[file], -1) {
			t.Errorf("%s: use a standard term for %q", file, word)
		}
	}
}
