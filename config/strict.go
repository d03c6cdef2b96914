package config

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// checkShape returns all errors in tree (YAML or JSON decoded into any, with json.Number) as a value of type t: unknown
// fields and values of the wrong type, with their paths.
func checkShape(tree any, t reflect.Type, path string) []error {
	if tree == nil {
		return nil // null is "not set"
	}
	if t.Kind() == reflect.Pointer {
		return checkShape(tree, t.Elem(), path)
	}
	if isLeaf(t) {
		return checkLeaf(tree, t, path)
	}
	switch t.Kind() {
	case reflect.Struct:
		return checkStruct(tree, t, path)
	case reflect.Map:
		return checkMap(tree, t, path)
	default: // a slice: isLeaf leaves no other kind
		list, ok := tree.([]any)
		if !ok {
			return []error{wrongType(tree, t, path)}
		}
		var errs []error
		for i, e := range list {
			errs = append(errs, checkShape(e, t.Elem(), fmt.Sprintf("%s[%d]", path, i))...)
		}
		return errs
	}
}

func checkStruct(tree any, t reflect.Type, path string) []error {
	object, ok := tree.(map[string]any)
	if !ok {
		return []error{wrongType(tree, t, path)}
	}
	fields := jsonFields(t)
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(object)) {
		index, known := fields[name]
		if !known {
			errs = append(errs, fmt.Errorf("%s: unknown field%s", join(path, name),
				DidYouMean(name, slices.Collect(maps.Keys(fields)))))
			continue
		}
		errs = append(errs, checkShape(object[name], t.FieldByIndex(index).Type, join(path, name))...)
	}
	return errs
}

func checkMap(tree any, t reflect.Type, path string) []error {
	object, ok := tree.(map[string]any)
	if !ok {
		return []error{wrongType(tree, t, path)}
	}
	var errs []error
	for _, k := range slices.Sorted(maps.Keys(object)) {
		errs = append(errs, checkShape(object[k], t.Elem(), join(path, k))...)
	}
	return errs
}

// checkLeaf decodes a value into its type.
func checkLeaf(tree any, t reflect.Type, path string) []error {
	text, err := json.Marshal(tree)
	if err == nil {
		err = json.Unmarshal(text, reflect.New(t).Interface())
	}
	if err != nil {
		return []error{wrongType(tree, t, path)}
	}
	return nil
}

var unmarshaler = reflect.TypeFor[json.Unmarshaler]()

func isLeaf(t reflect.Type) bool {
	if reflect.PointerTo(t).Implements(unmarshaler) {
		return true
	}
	return t.Kind() != reflect.Struct && t.Kind() != reflect.Map && t.Kind() != reflect.Slice
}

// jsonFields returns the indexes of t's fields by their JSON names, also of embedded (inline) structs.
func jsonFields(t reflect.Type) map[string][]int {
	fields := map[string][]int{}
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous || name == "" || name == "-" {
			continue
		}
		fields[name] = f.Index
	}
	return fields
}

func wrongType(tree any, t reflect.Type, path string) error {
	if path == "" {
		return fmt.Errorf("the file contains %s; want fields of a %s", describe(tree), Kind)
	}
	hint := ""
	_, isNumber := tree.(json.Number)
	_, isBool := tree.(bool)
	if t.Kind() == reflect.String && (isNumber || isBool) {
		hint = fmt.Sprintf(`; put it in quotes: "%v"`, tree)
	}
	return fmt.Errorf("%s: %s is not %s%s", path, describe(tree), wanted(t), hint)
}

func describe(tree any) string {
	switch v := tree.(type) {
	case string:
		return fmt.Sprintf("%q", v)
	case []any:
		return "a list"
	case map[string]any:
		return "an object"
	default:
		return fmt.Sprint(v)
	}
}

// wanted names a type for the author of a file.
func wanted(t reflect.Type) string {
	switch t {
	case reflect.TypeFor[metav1.Duration](), reflect.TypeFor[FlushFrequency]():
		return "a duration such as 30s, 5m or 1h30m"
	case reflect.TypeFor[resource.Quantity](), reflect.TypeFor[resource.QuantityValue]():
		return "a quantity such as 500Mi"
	case reflect.TypeFor[metav1.Time]():
		return "a time such as 2006-01-02T15:04:05Z"
	}
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Int32, reflect.Int64:
		return fmt.Sprintf("a whole number of %d bits", t.Bits())
	case reflect.Uint32:
		return "a whole number, zero or more"
	case reflect.Float64:
		return "a number"
	case reflect.Slice:
		return "a list"
	case reflect.Map, reflect.Struct:
		return "an object (key: value)"
	default:
		return "text"
	}
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}
