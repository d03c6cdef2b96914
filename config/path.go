package config

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	"github.com/nodelet/nodelet/internal/strict"
)

// descend returns the object that contains the last name of a path such as "authentication.x509.clientCAFile", or nil.
func descend(tree map[string]any, path string) (parent map[string]any, name string) {
	for {
		first, rest, more := strings.Cut(path, ".")
		if !more {
			return tree, first
		}
		tree, _ = tree[first].(map[string]any)
		path = rest
	}
}

// isSet reports whether tree has a value at path.
func isSet(tree map[string]any, path string) bool {
	parent, name := descend(tree, path)
	return parent[name] != nil
}

// fieldAt returns the field of c at path. If a struct on the way is a nil pointer, it allocates the struct if create is
// set, and otherwise returns the zero Value.
func fieldAt(c *KubeletConfiguration, path string, create bool) reflect.Value {
	v := reflect.ValueOf(c).Elem()
	for name := range strings.SplitSeq(path, ".") {
		if v.Kind() == reflect.Pointer {
			if v.IsNil() && !create {
				return reflect.Value{}
			}
			if v.IsNil() {
				v.Set(reflect.New(v.Type().Elem()))
			}
			v = v.Elem()
		}
		v = v.FieldByIndex(strict.Fields(v.Type())[name])
	}
	return v
}

// set sets a field, the one at path, to a value that has the same JSON.
func set(field reflect.Value, path string, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("encode the value of %s: %w", path, err)
	}
	fresh := reflect.New(field.Type())
	if err := json.Unmarshal(text, fresh.Interface()); err != nil {
		return fmt.Errorf("set %s to %s: %w", path, text, err)
	}
	field.Set(fresh.Elem())
	return nil
}

// textAt returns the field of c at path as JSON; null means not set.
func textAt(c *KubeletConfiguration, path string) string {
	field := fieldAt(c, path, false)
	if !field.IsValid() {
		return "null"
	}
	text, err := json.Marshal(field.Interface())
	if err != nil {
		return fmt.Sprintf("%v", field.Interface()) // no type of KubeletConfiguration refuses to be encoded
	}
	return string(text)
}
