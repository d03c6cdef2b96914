package config

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
)

// descend finds the object which holds the last name of a path such as "authentication.x509.clientCAFile". The object
// is nil when something on the way is missing.
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

// isSet says whether tree has a value at path.
func isSet(tree map[string]any, path string) bool {
	parent, name := descend(tree, path)
	return parent[name] != nil
}

// fieldAt gives the field of c at path. With make, pointers to structs on the way are filled; without, a nil pointer on
// the way gives the zero Value.
func fieldAt(c *KubeletConfiguration, path string, make bool) reflect.Value {
	v := reflect.ValueOf(c).Elem()
	for name := range strings.SplitSeq(path, ".") {
		if v.Kind() == reflect.Pointer {
			if v.IsNil() && !make {
				return reflect.Value{}
			}
			if v.IsNil() {
				v.Set(reflect.New(v.Type().Elem()))
			}
			v = v.Elem()
		}
		v = v.FieldByIndex(jsonFields(v.Type())[name])
	}
	return v
}

// setField replaces the field at path by value, which is anything that encodes to the field's JSON.
func setField(c *KubeletConfiguration, path string, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("encode the value of %s: %w", path, err)
	}
	field := fieldAt(c, path, true)
	fresh := reflect.New(field.Type())
	if err := json.Unmarshal(text, fresh.Interface()); err != nil {
		return fmt.Errorf("set %s to %s: %w", path, text, err)
	}
	field.Set(fresh.Elem())
	return nil
}

// textAt gives the field of c at path as JSON, which tells "not set" (null) from all else.
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
