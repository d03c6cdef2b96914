package manifest

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// The UIDs are those that the kubelet v1.36.3 gives these manifests at that path. With another UID every static pod is
// recreated when a node changes from the kubelet to nodelet.
func TestUIDIsTheKubelets(t *testing.T) {
	for file, want := range map[string]string{
		"plain.yaml":         "17b4587a402a1fa8f0647f9453727f30",
		"control-plane.yaml": "fe8d33914e6eb5e4867de49af3b72410",
		"much.yaml":          "97c4d7493e1ed8fa33a53f1bd0b78faa",
	} {
		text, err := os.ReadFile(filepath.Join("testdata/uid", file))
		if err != nil {
			t.Fatal(err)
		}
		if got := parseOne(t, string(text)).Hash; got != want {
			t.Errorf("%s: the UID is %s, and the kubelet's is %s", file, got, want)
		}
	}
}

// A field that a later version of the API adds does not change the UID of a pod that does not set it.
func TestUIDDoesNotDependOnLaterFields(t *testing.T) {
	type Container struct{ Name, Image, Later string }
	fieldsOf()["manifest.Container"] = []string{"Name", "Image"}
	defer delete(fieldsOf(), "manifest.Container")
	text := func(c Container) string {
		var b strings.Builder
		dump{w: &b}.value(reflect.ValueOf(c), false)
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

// The table has every type that a Pod consists of, and no field that exists nowhere.
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
			for i := range typ.NumField() {
				walk(typ.Field(i).Type)
			}
		}
	}
	walk(reflect.TypeFor[corev1.Pod]())
	if got, want := len(seen), len(fieldsOf()); got < want {
		t.Errorf("a Pod consists of %d types, want the %d of fields.txt", got, want)
	}
}

func checkFields(t *testing.T, typ reflect.Type) {
	names, ok := fieldsOf()[internalName(typ)]
	if !ok {
		t.Errorf("fields.txt lacks %s: add it with the fields that it has now", internalName(typ))
	}
	for _, name := range names {
		_, own := typ.FieldByName(strings.TrimPrefix(name, "-"))
		_, inSpec := reflect.TypeFor[corev1.PodSpec]().FieldByName(name)
		if !own && !inSpec {
			t.Errorf("%s has no field %s any more, which fields.txt names", typ, name)
		}
	}
}
