package manifest

import (
	"cmp"
	"embed"
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// uids sets the defaults of the pod of a manifest and returns the UIDs that kubelets give it, that of the version that
// nodelet follows first. With that one, a node can change to this kubelet while its static pods run; the others tell
// that a pod that an older agent has started is of the same manifest.
func (o Origin) uids(pod *corev1.Pod) []string {
	SetDefaults(pod)
	newest := o.uid(pod, "1.37")
	setPodLevelDefaults(pod) // since 1.37, kubelets leave these to the API server
	return []string{newest, o.uid(pod, "1.36")}
}

// uid returns the UID of a static pod in the kubelet of that minor version: 32 hexadecimal digits, the FNV-1a hash of
// the pod, then of the node and the manifest's place.
//
// The pod is the manifest's with defaults set, and not changed in any other way. The kubelet writes it out as
// go-spew's %#v does, with all fields of Kubernetes' internal types. So a version of Kubernetes that adds fields gives
// every pod another UID. A field that the version did not have counts only where it is set.
func (o Origin) uid(pod *corev1.Pod, minor string) string {
	p := *pod
	p.TypeMeta = metav1.TypeMeta{} // objects in memory do not carry it
	h := fnv.New128a()
	d := dump{w: h, spec: reflect.ValueOf(p.Spec), fieldsOf: tables()[minor]}
	d.value(reflect.ValueOf(&p), true)
	if o.Source == podutil.SourceFile {
		fmt.Fprintf(h, "host:%sfile:%s", o.NodeName, o.Where)
	} else {
		fmt.Fprintf(h, "url:%s", o.Where)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// minors are the versions of Kubernetes with a file in the directory fields, the newest first.
var minors = []string{"1.37", "1.36"}

// fieldsText has a file for each version. It lists the fields of the internal types that a Pod consists of, in their
// order, a type in each line. A name that the type of API version v1 lacks is a field of its pod spec. A minus marks a
// field of v1 that the internal type does not have. A type that is not listed is as in the next newer version. "make
// reference" compares the file of the newest one with the kubelet's code.
//
//go:embed fields
var fieldsText embed.FS

// fields are the fields of types, by internalName.
type fields map[string][]string

// tables returns the tables in fieldsText, by minor version.
var tables = sync.OnceValue(func() map[string]fields {
	all := map[string]fields{}
	table := fields{}
	for _, minor := range minors {
		text, err := fieldsText.ReadFile("fields/" + minor + ".txt")
		if err != nil {
			panic(err) // the program was built without it
		}
		table = maps.Clone(table)
		for line := range strings.Lines(string(text)) {
			name, names, _ := strings.Cut(line, ":")
			table[name] = strings.Fields(names)
		}
		all[minor] = table
	}
	return all
})

// dump writes values of API version v1 as go-spew would write those of the internal types.
type dump struct {
	w        io.Writer
	spec     reflect.Value
	fieldsOf fields
}

func (d dump) text(s string) { _, _ = io.WriteString(d.w, s) } // a hash never fails

// value writes v, after its type if typed is true: elements of slices and maps, and values of pointers, are written
// without.
func (d dump) value(v reflect.Value, typed bool) {
	if typed {
		d.text("(" + internalName(v.Type()) + ")")
	}
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			d.text("<nil>")
			return
		}
		d.value(v.Elem(), false)
	case reflect.Struct:
		d.structure(v)
	case reflect.Map:
		d.entries(v)
	case reflect.Slice:
		if v.IsNil() {
			d.text("<nil>")
			return
		}
		d.text("[")
		for i := range v.Len() {
			d.text(separator(i))
			d.value(v.Index(i), false)
		}
		d.text("]")
	case reflect.String:
		d.text(v.String())
	case reflect.Bool:
		d.text(strconv.FormatBool(v.Bool()))
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		d.text(strconv.FormatInt(v.Int(), 10))
	default: // bytes, and the words of large numbers
		d.text(strconv.FormatUint(v.Uint(), 10))
	}
}

func (d dump) structure(v reflect.Value) {
	known := d.fieldsOf[internalName(v.Type())]
	written := 0
	write := func(name string, f reflect.Value) {
		d.text(separator(written) + name + ":")
		d.value(f, true)
		written++
	}
	d.text("{")
	for _, name := range known {
		f := v.FieldByName(name)
		if !f.IsValid() {
			f = d.spec.FieldByName(name)
		}
		if !strings.HasPrefix(name, "-") {
			write(name, f)
		}
	}
	for i := range v.NumField() {
		name := v.Type().Field(i).Name
		later := !slices.Contains(known, name) && !slices.Contains(known, "-"+name)
		if later && !v.Field(i).IsZero() {
			write(name, v.Field(i))
		}
	}
	d.text("}")
}

func (d dump) entries(v reflect.Value) {
	if v.IsNil() {
		d.text("<nil>")
		return
	}
	d.text("map[")
	byName := func(a, b reflect.Value) int { return cmp.Compare(a.String(), b.String()) }
	for i, key := range slices.SortedFunc(slices.Values(v.MapKeys()), byName) {
		d.text(separator(i) + key.String() + ":")
		d.value(v.MapIndex(key), false)
	}
	d.text("]")
}

func separator(i int) string {
	if i > 0 {
		return " "
	}
	return ""
}

// internalName returns the name of the internal type. The types of API group core are in a package of another name.
func internalName(t reflect.Type) string {
	switch {
	case t.PkgPath() == "k8s.io/api/core/v1":
		return "core." + t.Name()
	case t.Name() != "":
		return t.String()
	case t.Kind() == reflect.Pointer:
		return "*" + internalName(t.Elem())
	case t.Kind() == reflect.Slice:
		return "[]" + internalName(t.Elem())
	case t.Kind() == reflect.Map:
		return "map[" + internalName(t.Key()) + "]" + internalName(t.Elem())
	default:
		return t.String()
	}
}
