package manifest

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/internal/release"
)

// TestUIDIsTheKubelets checks that the files named after a version of Kubernetes have the UIDs that its kubelet gives
// these manifests at that path. With another UID every static pod is recreated when a node changes between the
// kubelet and nodelet.
func TestUIDIsTheKubelets(t *testing.T) {
	for i, minor := range minors {
		list, err := os.ReadFile("testdata/uid/" + minor + ".txt")
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(list)) {
			file, want, _ := strings.Cut(strings.TrimSpace(line), " ")
			text, err := os.ReadFile(filepath.Join("testdata/uid", file))
			if err != nil {
				t.Fatal(err)
			}
			p := parseOne(t, string(text))
			if got := append([]string{p.Hash}, p.Older...)[i]; got != want {
				t.Errorf("UID of %s in the kubelet %s: got %s, want %s", file, minor, got, want)
			}
			if !p.Gets(types.UID(want)) || p.Gets("0123abcd") {
				t.Errorf("%s: want that it gets the UID %s, and no other", file, want)
			}
		}
	}
	if got, want := minors[0], release.Minor(); got != want {
		t.Errorf("the newest table: got %s, want that of %s: make reference UPDATE=1 writes it", got, want)
	}
}

// TestUIDDoesNotDependOnLaterFields checks that a field that a later version of the API adds does not change the UID
// of a pod that does not set it.
func TestUIDDoesNotDependOnLaterFields(t *testing.T) {
	type Container struct{ Name, Image, Later string }
	known := fields{"manifest.Container": {"Name", "Image"}}
	text := func(c Container) string {
		var b strings.Builder
		dump{w: &b, fieldsOf: known}.value(reflect.ValueOf(c), false)
		return b.String()
	}
	for _, c := range []struct {
		of   Container
		want string
	}{
		{Container{Name: "a", Image: "i"}, "{Name:(string)a Image:(string)i}"},
		{Container{Name: "a", Image: "i", Later: "x"}, "{Name:(string)a Image:(string)i Later:(string)x}"},
	} {
		if got := text(c.of); got != c.want {
			t.Errorf("got %s, want %s", got, c.want)
		}
	}
}

// TestFieldsAreComplete checks that the newest table has every type that a Pod consists of, and no field that exists
// nowhere.
func TestFieldsAreComplete(t *testing.T) {
	seen := map[reflect.Type]bool{}
	var walk func(reflect.Type)
	walk = func(typ reflect.Type) {
		switch typ.Kind() {
		case reflect.Map, reflect.Pointer, reflect.Slice:
			walk(typ.Elem())
		case reflect.Struct:
			if seen[typ] {
				return
			}
			seen[typ] = true
			checkFields(t, typ)
			for f := range typ.Fields() {
				walk(f.Type)
			}
		}
	}
	walk(reflect.TypeFor[corev1.Pod]())
	if got, want := len(seen), len(tables()[minors[0]]); got != want {
		t.Errorf("a Pod consists of %d types, want the %d of the table", got, want)
	}
}

func checkFields(t *testing.T, typ reflect.Type) {
	names, ok := tables()[minors[0]][internalName(typ)]
	if !ok {
		t.Errorf("fields/%s.txt: got no %s, want it", minors[0], internalName(typ))
	}
	for _, name := range names {
		_, own := typ.FieldByName(strings.TrimPrefix(name, "-"))
		_, inSpec := reflect.TypeFor[corev1.PodSpec]().FieldByName(name)
		if !own && !inSpec {
			t.Errorf("%s: got no field %s, which the table names", typ, name)
		}
	}
}
