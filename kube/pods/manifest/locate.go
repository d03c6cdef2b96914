package manifest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"
)

// valueError is why a value does not fit its field. Its text contains the value.
type valueError struct{ text string }

func (e *valueError) Error() string { return e.text }

// locate returns the path (spec.containers[0].ports) of the first value in data that does not fit the type of into,
// and the reason. JSON decoders return no path, or one without indices, for types that decode themselves (quantities,
// ports, times).
func locate(data []byte, into any) (path string, cause error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var tree any
	if err := d.Decode(&tree); err != nil {
		return "", nil
	}
	return locateIn(tree, reflect.TypeOf(into).Elem(), "")
}

var unmarshaler = reflect.TypeFor[json.Unmarshaler]()

func locateIn(v any, t reflect.Type, path string) (string, error) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if v == nil {
		return "", nil
	}
	if reflect.PointerTo(t).Implements(unmarshaler) {
		return leaf(v, t, path)
	}
	switch x := v.(type) {
	case map[string]any:
		if t.Kind() == reflect.Struct || t.Kind() == reflect.Map {
			return locateInObject(x, t, path)
		}
	case []any:
		if t.Kind() == reflect.Slice {
			for i, e := range x {
				if p, err := locateIn(e, t.Elem(), path+"["+strconv.Itoa(i)+"]"); p != "" {
					return p, err
				}
			}
			return "", nil
		}
	default:
		if t.Kind() != reflect.Struct && t.Kind() != reflect.Map {
			return leaf(v, t, path)
		}
	}
	return path, &valueError{fmt.Sprintf("want %s, got %s", describeType(t), describeValue(v))}
}

func locateInObject(m map[string]any, t reflect.Type, path string) (string, error) {
	for k, e := range m {
		ft, sub := t, path+"["+k+"]"
		if t.Kind() == reflect.Struct {
			f, ok := fieldOf(t, k)
			if !ok {
				continue
			}
			ft, sub = f, strings.TrimPrefix(path+"."+k, ".")
		} else {
			ft = t.Elem()
		}
		if p, err := locateIn(e, ft, sub); p != "" {
			return p, err
		}
	}
	return "", nil
}

// leaf tries to decode one value alone.
func leaf(v any, t reflect.Type, path string) (string, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return "", nil
	}
	err = json.Unmarshal(raw, reflect.New(t).Interface())
	switch {
	case err == nil:
		return "", nil
	case reflect.PointerTo(t).Implements(unmarshaler):
		return path, &valueError{fmt.Sprintf("%s: %v", raw, err)}
	}
	text := fmt.Sprintf("want %s, got %s", describeType(t), describeValue(v))
	if t.Kind() == reflect.String {
		text += ": put it in quotes" // YAML reads 8080, 1.10, yes and on as numbers and booleans
	}
	return path, &valueError{text}
}

// fieldOf returns the type of the field with this name in JSON, also in embedded structs.
func fieldOf(t reflect.Type, name string) (reflect.Type, bool) {
	for f := range t.Fields() {
		tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if tag == name {
			return f.Type, true
		}
		if f.Anonymous && tag == "" && f.Type.Kind() == reflect.Struct {
			if ft, ok := fieldOf(f.Type, name); ok {
				return ft, true
			}
		}
	}
	return nil, false
}

func describeType(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Struct, reflect.Map:
		return "a mapping"
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return "base64 text"
		}
		return "a list"
	case reflect.String:
		return "text"
	case reflect.Bool:
		return "true or false"
	}
	return "a whole number"
}

func describeValue(v any) string {
	switch x := v.(type) {
	case map[string]any:
		return "a mapping"
	case []any:
		return "a list"
	case string:
		return fmt.Sprintf("the text %q", x)
	}
	return fmt.Sprint(v)
}
