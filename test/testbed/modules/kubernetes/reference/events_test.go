package reference

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// byVariable are reasons that the kubelet keeps in variables and constants elsewhere.
var byVariable = []string{"Evicted", "SystemOOM", "DeadlineExceeded", "Denied"}

// TestEventReasons checks that the table of events lists each reason of the kubelet, and says of no other that the
// kubelet has it.
func TestEventReasons(t *testing.T) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes").Output()
	if err != nil {
		t.Fatal(err)
	}
	dir := strings.TrimSpace(string(out))
	kubelet := eventConstants(t, filepath.Join(dir, "pkg/kubelet/events/event.go"))
	if len(kubelet) < 50 {
		t.Errorf("got %d constants of the kubelet, want more than 50", len(kubelet))
	}
	call := regexp.MustCompile(`(?:Event|Eventf|EventFunc)\([^"\n]*EventType\w+, "(\w+)"`)
	all := sources(t, filepath.Join(dir, "pkg/kubelet"))
	for _, source := range all {
		for _, found := range call.FindAllStringSubmatch(source, -1) {
			kubelet[found[1]] = true
		}
	}
	for _, reason := range byVariable {
		names := func(source string) bool { return strings.Contains(source, strconv.Quote(reason)) }
		if reason != "Denied" && !slices.ContainsFunc(all, names) { // that one is of the API of certificates
			t.Errorf("the kubelet does not have %s any more", reason)
		}
		kubelet[reason] = true
	}
	table, err := os.ReadFile(filepath.Join(root, "test/reference/testdata/events.txt"))
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for line := range strings.Lines(string(table)) {
		f := strings.Fields(line)
		if f[0] == "#" {
			continue
		}
		listed[f[0]] = true
		if own := strings.TrimSuffix(f[1], ":") == "own"; own == kubelet[f[0]] {
			t.Errorf("events.txt: got %q; the kubelet has this reason: %v", strings.TrimSpace(line), kubelet[f[0]])
		}
	}
	for _, reason := range slices.Sorted(maps.Keys(kubelet)) {
		if !listed[reason] {
			t.Errorf("the kubelet has events with the reason %s: add it to events.txt", reason)
		}
	}
}

// eventConstants returns the values of the constants in a file.
func eventConstants(t *testing.T, file string) map[string]bool {
	t.Helper()
	tree, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]bool{}
	ast.Inspect(tree, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok {
			for _, v := range spec.Values {
				value, err := strconv.Unquote(v.(*ast.BasicLit).Value)
				if err != nil {
					t.Error(err)
				}
				values[value] = true
			}
		}
		return true
	})
	return values
}
