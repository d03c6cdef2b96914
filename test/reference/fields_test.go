package reference

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/config"
)

const core = "k8s.io/api/core/v1"

// podTypes returns the types of which PodSpec consists.
func podTypes() []reflect.Type {
	var all []reflect.Type
	var walk func(reflect.Type)
	walk = func(t reflect.Type) {
		for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Map {
			t = t.Elem()
		}
		if t.Kind() != reflect.Struct || t.PkgPath() != core || slices.Contains(all, t) {
			return
		}
		all = append(all, t)
		for f := range t.Fields() {
			walk(f.Type)
		}
	}
	walk(reflect.TypeFor[corev1.PodSpec]())
	return all
}

func jsonName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

// TestEveryPodFieldHasOneEntry compares podFields with the types of Kubernetes: a field that a new version adds fails
// until a maintainer has decided about it.
func TestEveryPodFieldHasOneEntry(t *testing.T) {
	rows := map[string]int{} // by "Type.field"
	for _, row := range podFields {
		for field := range strings.FieldsSeq(row.fields) {
			rows[row.typ+"."+field]++
		}
		if nothing := row.support == config.Refused || row.support == elsewhere; row.fields == "*" && !nothing {
			t.Errorf("%s: all fields are %q, also future ones", row.typ, row.support)
		}
		if row.support != config.Acts && row.note == "" {
			t.Errorf("%s %s: %q has no note", row.typ, row.fields, row.support)
		}
	}
	for _, typ := range podTypes() {
		if rows[typ.Name()+".*"] == 1 {
			delete(rows, typ.Name()+".*")
			continue
		}
		for f := range typ.Fields() {
			if f.Anonymous {
				continue // its fields have rows
			}
			name := typ.Name() + "." + jsonName(f)
			if rows[name] != 1 {
				t.Errorf("%s: got %d entries, want one in podFields", name, rows[name])
			}
			delete(rows, name)
		}
	}
	for name := range rows {
		t.Errorf("podFields has %s, which is not a field of a pod", name)
	}
}

// twins are types whose values the code converts to another type before it reads their fields.
var twins = map[string]string{"EphemeralContainerCommon": "Container"}

// TestPodFieldsThatActAreRead checks that the program reads each field of a pod that it says acts, and none
// that is said to be of another component. Reading and checking manifests does not count, because it treats all fields
// alike.
func TestPodFieldsThatActAreRead(t *testing.T) {
	found := reads(t)
	for _, row := range podFields {
		for _, typ := range podTypes() {
			if typ.Name() != row.typ {
				continue
			}
			for f := range typ.Fields() {
				listed := row.fields == "*" || slices.Contains(strings.Fields(row.fields), jsonName(f))
				if f.Anonymous || !listed {
					continue
				}
				readers := found[core+"."+typ.Name()+"."+f.Name]
				if twin := twins[typ.Name()]; twin != "" {
					readers = found[core+"."+twin+"."+f.Name]
				}
				acts := row.support == config.Acts || row.support == config.Differs
				if acts && !readElsewhere(readers, "kube/pods/manifest") {
					t.Errorf("%s.%s %s, but no code reads it", row.typ, jsonName(f), row.support)
				}
			}
		}
	}
}

// readElsewhere reports whether a field is read outside a package of the program.
func readElsewhere(readers map[string]bool, pkg string) bool {
	for function := range readers {
		if !strings.HasPrefix(function, module+pkg+".") {
			return true
		}
	}
	return false
}

// TestSettingsThatActAreRead checks that the program reads each field of KubeletConfiguration that acts, other than to
// set its default or to check it, and each field of Config outside package config.
func TestSettingsThatActAreRead(t *testing.T) {
	found := reads(t)
	fields := map[string]string{} // name in found by path
	addFields(fields, reflect.TypeFor[config.KubeletConfiguration](), "")
	for _, s := range config.Settings() {
		if acts := s.Support == config.Acts || s.Support == config.Differs; s.Field == "" || !acts {
			continue
		}
		name := fields[s.Field]
		if name == "" {
			t.Errorf("%s is not a field", s.Field)
		}
		if !slices.ContainsFunc(keys(found[name]), uses) {
			t.Errorf("%s %s, but no code reads %s", s.Field, s.Support, name)
		}
	}
	plain := map[string]string{}
	addFields(plain, reflect.TypeFor[config.Config](), "")
	for path, name := range plain {
		_, converted := convertedFields[path]
		if !converted && !strings.HasPrefix(path, "Kubelet.") && !readElsewhere(found[name], "config") {
			t.Errorf("Config.%s is set, but no code reads it", path)
		}
	}
}

// convertedFields are the fields of Config that other code does not read by name, with why.
var convertedFields = map[string]string{
	"Warnings.Flag": "Warning.Setting returns it",
	"written":       "Config.Written returns it",
}

// uses reports whether a function is not one that only sets defaults or checks values.
func uses(function string) bool {
	name, own := strings.CutPrefix(function, module+"config.")
	for _, prefix := range []string{"set", "check", "shutdownPeriod", "logRouting", "validate"} {
		if own && strings.HasPrefix(name, prefix) {
			return false
		}
	}
	return true
}

func keys(m map[string]bool) []string {
	var all []string
	for k := range m {
		all = append(all, k)
	}
	return all
}

// addFields adds the fields of a struct of package config, and of the structs in it, by their JSON or Go path.
func addFields(all map[string]string, t reflect.Type, path string) {
	for f := range t.Fields() {
		name := jsonName(f)
		if name == "" && f.Tag.Get("json") == "" {
			name = f.Name
		}
		at := strings.TrimPrefix(path+"."+name, ".")
		all[at] = t.PkgPath() + "." + t.Name() + "." + f.Name
		inner := f.Type
		if inner.Kind() == reflect.Pointer || inner.Kind() == reflect.Slice {
			inner = inner.Elem()
		}
		if inner.Kind() == reflect.Struct && inner.PkgPath() == t.PkgPath() {
			if f.Anonymous {
				at = path
			}
			addFields(all, inner, at)
		}
	}
}
