// Package nodelet_test guards the house itself: which room may import which, and what every package owes its readers.
package nodelet_test

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/nodelet/nodelet/"

// maxLines is how long a file of the product may grow before it must be asked whether it still holds one thing.
const maxLines = 500

// pure rooms decide and build values. They see API types and small helpers, and nothing that reaches the world.
var pure = []string{"agent/plan", "agent/spec", "agent/eviction", "podspec"}

var pureMayImport = []string{
	"k8s.io/api/", "k8s.io/apimachinery/", "k8s.io/component-helpers/", "k8s.io/cri-api/", "k8s.io/utils/",
	"google.golang.org/protobuf/", module + "podspec",
}

// pureMustNot are the parts of the standard library through which a pure room could reach the world.
var pureMustNot = []string{"os", "net", "net/http", "os/exec", "syscall", "log", "log/slog", "context", "io/ioutil", "math/rand"}

// roomMayImport lists, for each room, the other rooms it may see. A room that is missing here sees none.
var roomMayImport = map[string][]string{
	"cmd":     {"*"},
	"agent":   {"*"},
	"kube":    {"kube/client", "kube/watch", "kube/pods/manifest", "inotify", "atomicfile", "podspec"},
	"cni":     {"inotify", "atomicfile"},
	"csi":     {"plugins", "locks"},
	"devices": {"plugins", "atomicfile", "podspec"},
	"dra":     {"plugins", "atomicfile"},
	"plugins": {"inotify"},
	"logs":    {"inotify"},
	"volumes": {"locks", "atomicfile"},
	"cgroups": {"systemd"},
	"images":  {"cri"},
	"stats":   {"metrics"},
	"test":    {"*"},
}

// nobodyMayImport are modules whose weight or nature has no place in the product.
var nobodyMayImport = []string{
	"k8s.io/kubernetes", "k8s.io/component-base", "k8s.io/client-go/kubernetes", "k8s.io/client-go/informers", "k8s.io/cri-client",
	"github.com/google/cadvisor", "github.com/spf13/cobra",
}

type source struct {
	room, dir, file string
	syntax          *ast.File
	lines           int
}

func product(t *testing.T) []source {
	t.Helper()
	var all []source
	fset := token.NewFileSet()
	err := filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (p != "." && strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || p == "test/testbed/modules") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(p, ".go") || strings.HasSuffix(p, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		f, err := parser.ParseFile(fset, p, text, parser.ParseComments)
		if err != nil {
			return err
		}
		dir := path.Dir(p)
		all = append(all, source{room: strings.SplitN(dir, "/", 2)[0], dir: dir, file: p, syntax: f, lines: bytes.Count(text, []byte("\n"))})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 20 {
		t.Fatalf("found %d source files; is the test run from the root of the module?", len(all))
	}
	return all
}

func imports(s source) []string {
	var all []string
	for _, i := range s.syntax.Imports {
		all = append(all, strings.Trim(i.Path.Value, `"`))
	}
	return all
}

// TestImportDirection: cmd → agent → everything; hands see few other rooms; pure rooms see API types, and what is asked of them.
func TestImportDirection(t *testing.T) {
	for _, s := range product(t) {
		for _, imp := range imports(s) {
			checkRoom(t, s, imp)
			if slices.Contains(pure, s.dir) {
				checkPure(t, s, imp)
			}
			for _, never := range nobodyMayImport {
				if s.room != "test" && (imp == never || strings.HasPrefix(imp, never+"/")) {
					t.Errorf("%s imports %s, which has no place in the product", s.file, imp)
				}
			}
		}
	}
}

func checkRoom(t *testing.T, s source, imp string) {
	t.Helper()
	other, ours := strings.CutPrefix(imp, module)
	if !ours {
		return
	}
	room := strings.SplitN(other, "/", 2)[0]
	may := roomMayImport[s.room]
	switch {
	case room == s.room && (room != "kube" || other == s.dir || slices.Contains(may, other)):
	case slices.Contains(may, "*") && room != "cmd" && (room != "test" || s.room == "test"):
	case slices.Contains(may, room), slices.Contains(may, other):
	default:
		t.Errorf("%s: room %s must not import %s", s.file, s.room, other)
	}
}

func checkPure(t *testing.T, s source, imp string) {
	t.Helper()
	if slices.Contains(pureMustNot, imp) {
		t.Errorf("%s: a pure room must not import %s", s.file, imp)
	}
	if !strings.Contains(strings.SplitN(imp, "/", 2)[0], ".") {
		return // standard library
	}
	if !slices.ContainsFunc(pureMayImport, func(p string) bool { return strings.HasPrefix(imp, p) }) {
		t.Errorf("%s: a pure room must not import %s", s.file, imp)
	}
}

// TestShimStaysQuick: what the CNI plugin imports is initialised before it can end the process; see package shim.
func TestShimStaysQuick(t *testing.T) {
	for _, s := range product(t) {
		for _, imp := range imports(s) {
			if s.dir == "cni/shim" && imp != "os" && imp != "syscall" {
				t.Errorf("%s imports %s; os and syscall alone are initialised early", s.file, imp)
			}
		}
	}
}

// TestEveryPackageIsDocumented: a package comment says what it owns, never does, who calls it and what a crash leaves.
func TestEveryPackageIsDocumented(t *testing.T) {
	documented := map[string]bool{}
	for _, s := range product(t) {
		documented[s.dir] = documented[s.dir] || s.syntax.Doc != nil && len(s.syntax.Doc.Text()) > 40
	}
	for dir, ok := range documented {
		if !ok {
			t.Errorf("package %s has no package comment worth reading", dir)
		}
	}
}

// TestFilesStaySmall: a file holds one thing.
func TestFilesStaySmall(t *testing.T) {
	for _, s := range product(t) {
		if s.lines > maxLines {
			t.Errorf("%s has %d lines, more than %d: does it still hold one thing?", s.file, s.lines, maxLines)
		}
	}
}
