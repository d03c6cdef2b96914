package strict

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nodelet/nodelet/internal/suggest"
)

// Error is a field that is unknown, or a value that does not fit its field.
type Error struct {
	// Path is the field, such as spec.containers[0].ports.
	Path string
	// Text says what is wrong. HasValue reports whether the value is in it.
	Text     string
	HasValue bool
	// Empty reports whether the field is unknown and its value is empty.
	Empty bool
}

func (e *Error) Error() string { return e.Path + ": " + e.Text }

// Check returns all errors in a tree as a value of the type of example.
func Check(tree, example any) []*Error { return check(tree, reflect.TypeOf(example), "") }

func check(tree any, t reflect.Type, path string) []*Error {
	if tree == nil {
		return nil // null is "not set"
	}
	if t.Kind() == reflect.Pointer {
		return check(tree, t.Elem(), path)
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
			return wrongType(tree, t, path)
		}
		var errs []*Error
		for i, e := range list {
			errs = append(errs, check(e, t.Elem(), fmt.Sprintf("%s[%d]", path, i))...)
		}
		return errs
	}
}

func checkStruct(tree any, t reflect.Type, path string) (errs []*Error) {
	object, ok := tree.(map[string]any)
	if !ok {
		return wrongType(tree, t, path)
	}
	fields := Fields(t)
	for _, name := range slices.Sorted(maps.Keys(object)) {
		at := strings.TrimPrefix(path+"."+name, ".")
		if index, known := fields[name]; known {
			errs = append(errs, check(object[name], t.FieldByIndex(index).Type, at)...)
			continue
		}
		text := "unknown field" + suggest.DidYouMean(name, slices.Collect(maps.Keys(fields)))
		errs = append(errs, &Error{Path: at, Text: text, Empty: IsEmpty(object[name])})
	}
	return errs
}

// IsEmpty reports whether a value is one that tools write for "not set".
func IsEmpty(value any) bool {
	if object, ok := value.(map[string]any); ok {
		return !slices.ContainsFunc(slices.Collect(maps.Values(object)), func(v any) bool { return !IsEmpty(v) })
	}
	text, err := json.Marshal(value)
	empty := []string{"", "null", "false", "0", "0s", "[]", "{}"}
	return err == nil && slices.Contains(empty, strings.Trim(string(text), `"`))
}

func checkMap(tree any, t reflect.Type, path string) (errs []*Error) {
	object, ok := tree.(map[string]any)
	if !ok {
		return wrongType(tree, t, path)
	}
	for _, k := range slices.Sorted(maps.Keys(object)) {
		errs = append(errs, check(object[k], t.Elem(), path+"["+k+"]")...)
	}
	return errs
}

// checkLeaf decodes a value into its type.
func checkLeaf(tree any, t reflect.Type, path string) []*Error {
	text, err := json.Marshal(tree)
	if err == nil {
		err = json.Unmarshal(text, reflect.New(t).Interface())
	}
	if err != nil {
		return wrongType(tree, t, path)
	}
	return nil
}

var unmarshaler = reflect.TypeFor[json.Unmarshaler]()

// isLeaf reports whether a type has no fields or elements with paths of their own.
func isLeaf(t reflect.Type) bool {
	switch {
	case reflect.PointerTo(t).Implements(unmarshaler):
		return true
	case t.Kind() == reflect.Slice:
		return t.Elem().Kind() == reflect.Uint8
	}
	return t.Kind() != reflect.Struct && t.Kind() != reflect.Map
}

// Fields returns the indexes of t's fields by their JSON names, also of embedded (inline) structs.
func Fields(t reflect.Type) map[string][]int {
	fields := map[string][]int{}
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "" && f.Anonymous:
			for name, index := range Fields(f.Type) {
				fields[name] = slices.Concat(f.Index, index)
			}
		case name != "" && name != "-":
			fields[name] = f.Index
		}
	}
	return fields
}

// secret matches the fields whose values may be secrets: the headers of requests, and the environment of programs.
var secret = regexp.MustCompile(`(^|\.)(staticPodURLHeader|env)\b`)

func wrongType(tree any, t reflect.Type, path string) []*Error {
	value, quoted := describe(tree), fmt.Sprintf(`: "%v"`, tree)
	hidden := secret.MatchString(path)
	if hidden {
		value, quoted = "the value (not shown)", ""
	}
	hint := ""
	_, isNumber := tree.(json.Number)
	_, isBool := tree.(bool)
	if t.Kind() == reflect.String && (isNumber || isBool) { // YAML reads 8080, 1.10, yes and on as numbers and booleans
		hint = "; put it in quotes" + quoted
	}
	return []*Error{{Path: path, Text: value + " is not " + wanted(t) + hint, HasValue: !hidden}}
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
	case reflect.TypeFor[resource.Quantity](), reflect.TypeFor[resource.QuantityValue]():
		return "a quantity such as 500Mi"
	case reflect.TypeFor[metav1.Time](), reflect.TypeFor[metav1.MicroTime]():
		return "a time such as 2006-01-02T15:04:05Z"
	case reflect.TypeFor[intstr.IntOrString]():
		return "a whole number or text"
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
		if isLeaf(t) {
			return "base64 text"
		}
		return "a list"
	case reflect.Struct:
		if t.NumField() == 1 && t.Field(0).Type == reflect.TypeFor[time.Duration]() {
			return "a duration such as 30s, 5m or 1h30m"
		}
		return "an object (key: value)"
	case reflect.Map:
		return "an object (key: value)"
	default:
		return "text"
	}
}
