package reference_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/nodelet/nodelet/test/reference"
)

func eventReasons(t *testing.T) []reference.EventReason {
	t.Helper()
	table, err := os.ReadFile("testdata/events.txt")
	if err != nil {
		t.Fatal(err)
	}
	all, err := reference.EventReasons(string(table))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestEventReasons checks that nodelet's code has the reasons that the table says it writes, and has those that it
// writes by a literal in the table. The kubelet's side is in "make reference".
func TestEventReasons(t *testing.T) {
	literals, written := productReasons(t)
	written["ResizeDeferred"], written["ResizeInfeasible"] = true, true // put together in agent/resize.go
	written["Denied"] = true                                            // the type of a condition, kube/objects
	listed := map[string]string{}
	for _, e := range eventReasons(t) {
		listed[e.Reason] = e.Support
		here := literals[e.Reason] || written[e.Reason]
		if wants := e.Support == "acts" || e.Support == "own"; wants && !here {
			t.Errorf("%s is %q in events.txt, but no code has this reason", e.Reason, e.Support)
		} else if !wants && written[e.Reason] {
			t.Errorf("%s is %q in events.txt, but it is written", e.Reason, e.Support)
		}
	}
	for reason := range written {
		if listed[reason] == "" {
			t.Errorf("an event has the reason %s: add it to test/reference/testdata/events.txt", reason)
		}
	}
	if len(written) < 20 {
		t.Errorf("got %d reasons that are literals beside a type of event, want more than 20", len(written))
	}
}

// productReasons returns the string literals of the product that could be reasons, and those that follow the type of an
// event in a call or a struct.
func productReasons(t *testing.T) (literals, written map[string]bool) {
	t.Helper()
	literals, written = map[string]bool{}, map[string]bool{}
	eachNode(t, func(n ast.Node) {
		switch n := n.(type) {
		case *ast.BasicLit:
			literals[text(n)] = true
		case *ast.CallExpr:
			addReason(written, n.Args)
		case *ast.CompositeLit:
			addReason(written, n.Elts)
		}
	})
	return literals, written
}

// eachNode calls do with each node of the syntax of the product's source.
func eachNode(t *testing.T, do func(n ast.Node)) {
	t.Helper()
	out, err := exec.Command("git", "ls-files", "--full-name", "-co", "--exclude-standard", "../../*.go").Output()
	if err != nil {
		t.Fatal(err)
	}
	for file := range strings.Lines(string(out)) {
		file = strings.TrimSpace(file)
		if strings.HasSuffix(file, "_test.go") || strings.HasPrefix(file, "test/") {
			continue
		}
		tree, err := parser.ParseFile(token.NewFileSet(), filepath.Join("../..", file), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(tree, func(n ast.Node) bool {
			do(n)
			return true
		})
	}
}

// addReason adds the literal that follows the type of an event.
func addReason(written map[string]bool, values []ast.Expr) {
	isType := func(e ast.Expr) bool {
		s, ok := e.(*ast.SelectorExpr)
		return ok && strings.HasPrefix(s.Sel.Name, "EventType") || text(e) == "Warning" || text(e) == "Normal"
	}
	if i := slices.IndexFunc(values, isType); i >= 0 && i+1 < len(values) {
		if reason := text(values[i+1]); reason != "" {
			written[reason] = true
		}
	}
}

// text returns the text of a string literal, and "" for other expressions.
func text(e ast.Expr) string {
	if l, ok := e.(*ast.BasicLit); ok && l.Kind == token.STRING {
		s, _ := strconv.Unquote(l.Value)
		return s
	}
	return ""
}
