package reference

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

const (
	program = "github.com/nodelet/nodelet/cmd/nodelet"
	module  = "github.com/nodelet/nodelet/"
)

// libraries decide for the program: about node affinity, about volumes of in-tree kinds that CSI drivers replace, and
// about tolerations, in a method of the API's own.
var libraries = []string{"k8s.io/component-helpers/", "k8s.io/csi-translation-lib/", core}

// listed is a package as `go list -export` describes it.
type listed struct {
	ImportPath string
	Dir        string
	Export     string
	GoFiles    []string
}

// packages returns the packages of the program by path, with their export data.
var packages = sync.OnceValues(func() (map[string]listed, error) {
	cmd := exec.Command("go", "list", "-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles", program)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	all := map[string]listed{}
	for d := json.NewDecoder(out); ; {
		var p listed
		err := d.Decode(&p)
		if errors.Is(err, io.EOF) {
			return all, cmd.Wait()
		}
		if err != nil {
			return nil, err
		}
		all[p.ImportPath] = p
	}
})

// reader finds which fields of structs the program's code reads.
type reader struct {
	files   *token.FileSet
	imports types.Importer
	// found has "path.Type.Field" with the functions that read it, as "path.function".
	found map[string]map[string]bool
}

// reads type-checks the program's own packages and returns, for each field "path.Type.Field" of a named struct, the
// functions "path.function" that read it. A field that is only assigned, or only set in a composite literal, is not
// read.
func reads(t *testing.T) map[string]map[string]bool {
	t.Helper()
	if testing.Short() {
		t.Skip("type-checks the whole program")
	}
	all, err := packages()
	if err != nil {
		t.Fatalf("list the packages of the program: %v", err)
	}
	r := &reader{files: token.NewFileSet(), found: map[string]map[string]bool{}}
	r.imports = importer.ForCompiler(r.files, "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(all[path].Export)
	})
	for path, p := range all {
		if strings.HasPrefix(path, module) ||
			slices.ContainsFunc(libraries, func(l string) bool { return strings.HasPrefix(path, l) }) {
			r.check(t, p)
		}
	}
	return r.found
}

func (r *reader) check(t *testing.T, p listed) {
	t.Helper()
	var files []*ast.File
	for _, name := range p.GoFiles {
		f, err := parser.ParseFile(r.files, filepath.Join(p.Dir, name), nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	info := &types.Info{Selections: map[*ast.SelectorExpr]*types.Selection{}}
	config := types.Config{
		Importer: r.imports,
		Error:    func(err error) { t.Errorf("type-check %s: %v", p.ImportPath, err) },
	}
	_, _ = config.Check(p.ImportPath, r.files, files, info) // Error has recorded it
	for _, f := range files {
		if ast.IsGenerated(f) {
			continue // encoders and copiers read all fields
		}
		written := assigned(f)
		for _, d := range f.Decls {
			function := p.ImportPath + "."
			if d, ok := d.(*ast.FuncDecl); ok {
				function += d.Name.Name
			}
			ast.Inspect(d, func(n ast.Node) bool {
				if e, ok := n.(*ast.SelectorExpr); ok && !written[e] {
					r.add(function, info.Selections[e])
				}
				return true
			})
		}
	}
}

// assigned returns the selectors of a file that are only written.
func assigned(f *ast.File) map[*ast.SelectorExpr]bool {
	all := map[*ast.SelectorExpr]bool{}
	ast.Inspect(f, func(n ast.Node) bool {
		if a, ok := n.(*ast.AssignStmt); ok && (a.Tok == token.ASSIGN || a.Tok == token.DEFINE) {
			for _, left := range a.Lhs {
				if e, ok := left.(*ast.SelectorExpr); ok {
					all[e] = true
				}
			}
		}
		return true
	})
	return all
}

// add records a selection of a field, with the embedded fields on the way to it.
func (r *reader) add(function string, s *types.Selection) {
	if s == nil || s.Kind() != types.FieldVal {
		return
	}
	t := s.Recv()
	for _, i := range s.Index() {
		if p, ok := t.Underlying().(*types.Pointer); ok {
			t = p.Elem()
		}
		named, _ := types.Unalias(t).(*types.Named)
		structure, ok := t.Underlying().(*types.Struct)
		if !ok {
			return
		}
		field := structure.Field(i)
		if named != nil && named.Obj().Pkg() != nil {
			name := named.Obj().Pkg().Path() + "." + named.Obj().Name() + "." + field.Name()
			if r.found[name] == nil {
				r.found[name] = map[string]bool{}
			}
			r.found[name][function] = true
		}
		t = field.Type()
	}
}
