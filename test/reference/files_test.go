package reference_test

import (
	"go/ast"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nodelet/nodelet/test/reference"
)

func files(t *testing.T) []reference.File {
	t.Helper()
	table, err := os.ReadFile("testdata/files.txt")
	if err != nil {
		t.Fatal(err)
	}
	all, err := reference.Files(string(table))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestFilesAreInTheSource checks that the source has the last part of each path in the table that is not a placeholder.
func TestFilesAreInTheSource(t *testing.T) {
	literals, _ := productReasons(t)
	all := strings.Join(slices.Collect(maps.Keys(literals)), "\n")
	for _, f := range files(t) {
		name := f.Path
		for strings.ToUpper(path.Base(name)) == path.Base(name) {
			name = path.Dir(name)
		}
		name = strings.TrimSuffix(strings.TrimSuffix(path.Base(name), "-current.pem"), ".key.tmp")
		if !strings.Contains(all, name) {
			t.Errorf("%s: no string in the source has %s", f.Path, name)
		}
	}
}

// fileConstant is the name of a constant that has the name of a file.
var fileConstant = regexp.MustCompile(`(?i)(file|marker|socket|checkpoint)(name)?$`)

// notListed are the values of such constants that are no files of nodelet.
var notListed = []string{
	"file",                           // a source of pods
	"align-by-socket",                // an option of a policy
	"proc/sys/kernel/random/boot_id", // of the kernel
	"/run/systemd/journal/socket",    // of systemd
}

// TestFilesAreListed checks that the table has each file whose name is a constant of the source.
func TestFilesAreListed(t *testing.T) {
	table, err := os.ReadFile("testdata/files.txt")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	eachNode(t, func(n ast.Node) {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || len(spec.Values) != len(spec.Names) {
			return
		}
		for i, name := range spec.Names {
			file := text(spec.Values[i])
			if file == "" || !fileConstant.MatchString(name.Name) || slices.Contains(notListed, file) {
				continue
			}
			found++
			if !strings.Contains(string(table), file) {
				t.Errorf("%s: got no line of the table with %q, want one", name.Name, file)
			}
		}
	})
	if found < 15 {
		t.Errorf("got %d constants with the names of files, want at least 15", found)
	}
}
