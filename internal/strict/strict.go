// Package strict reads what users write in YAML or JSON, and accepts no field that is unknown or does not fit its type.
//
// It owns the texts of these errors: each names the path of its field as Kubernetes does, what is allowed, and the name
// that was probably meant; none has a value that may be secret. It opens no file, and it is pure, so a crash leaves
// nothing behind. config calls it for the KubeletConfiguration, cri/images/provider for that of credential providers,
// kube/pods/manifest for manifests.
package strict

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	goyaml "go.yaml.in/yaml/v2"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// MaxSize is the size limit of a configuration file in bytes; real ones have a few kilobytes.
const MaxSize = 4 << 20

// separator matches the beginning of a document.
var separator = regexp.MustCompile(`(?m)^---(?:\s|$)`)

// documents returns how many documents a file has, without those that are empty, such as after a "---" at its end.
func documents(text []byte) (n int) {
	for _, document := range separator.Split(string(text), -1) {
		var v any
		if err := yaml.Unmarshal([]byte(document), &v); err != nil || v != nil {
			n++
		}
	}
	return n
}

// Parse decodes a file with one object of a kind, in one of the versions. The fields of the object fit the type of
// example, and its numbers are json.Number.
func Parse(text []byte, example any, kind string, versions ...string) (map[string]any, error) {
	switch {
	case len(text) > MaxSize:
		return nil, fmt.Errorf("the file has more than %d MiB; that is not a %s", MaxSize>>20, kind)
	case len(bytes.TrimSpace(text)) == 0:
		return nil, fmt.Errorf("the file is empty; it needs apiVersion: %s and kind: %s at least", versions[0], kind)
	case separator.Match(text) && documents(text) > 1:
		return nil, errors.New(`the file contains more than one document ("---"); merge them into one`)
	}
	asJSON, err := ToJSON(text)
	if err != nil {
		return nil, err
	}
	tree, err := Tree(asJSON)
	if err != nil {
		return nil, err
	}
	object, ok := tree.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("the file contains %s; want fields of a %s", describe(tree), kind)
	}
	err = errors.Join(checkHead(object, "apiVersion", versions...), checkHead(object, "kind", kind))
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, e := range Check(object, example) {
		errs = append(errs, e)
	}
	return object, errors.Join(errs...)
}

// ToJSON converts YAML to JSON. A key that is written twice in a mapping is an error. A key of a mapping that is merged
// ("<<") may be there again, and has the value that it has for the kubelet.
func ToJSON(text []byte) ([]byte, error) {
	asJSON, err := yaml.YAMLToJSONStrict(text) // it does not tell the two apart
	wrong, ok := errors.AsType[*goyaml.TypeError](err)
	if !ok {
		return asJSON, err
	}
	var written goyaml.MapSlice // the keys of each mapping, without those that are merged
	if goyaml.Unmarshal(text, &written) != nil {
		return nil, err
	}
	twice := map[string]bool{}
	addTwice(written, twice)
	merged := func(e string) bool {
		_, key, _ := strings.Cut(e, ": key ")
		key, again := strings.CutSuffix(key, " already set in map")
		return again && !twice[key]
	}
	if wrong.Errors = slices.DeleteFunc(wrong.Errors, merged); len(wrong.Errors) > 0 {
		return nil, wrong
	}
	return yaml.YAMLToJSON(text)
}

// addTwice adds the keys that a mapping in v has twice, as the errors of ToJSON show them.
func addTwice(v any, twice map[string]bool) {
	switch v := v.(type) {
	case goyaml.MapSlice:
		seen := map[string]bool{}
		for _, item := range v {
			key := fmt.Sprintf("%#v", item.Key)
			twice[key] = twice[key] || seen[key]
			seen[key] = true
			addTwice(item.Value, twice)
		}
	case []any:
		for _, item := range v {
			addTwice(item, twice)
		}
	}
}

// Tree decodes JSON. Its numbers are json.Number, so that they keep all their digits.
func Tree(text []byte) (tree any, err error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	return tree, decoder.Decode(&tree)
}

// Decode converts a tree that Check has accepted. A name in other letter case is not that of the field.
func Decode(tree, into any) error {
	text, err := json.Marshal(tree)
	if err != nil {
		return err
	}
	return kjson.UnmarshalCaseSensitivePreserveInts(text, into)
}

func checkHead(object map[string]any, field string, allowed ...string) error {
	got, want := object[field], strings.Join(allowed, ", ")
	if got == nil {
		return fmt.Errorf("%s is missing; want %s: %s", field, field, want)
	}
	if text, ok := got.(string); !ok || !slices.Contains(allowed, text) {
		return fmt.Errorf("%s: unsupported value %s; want %s", field, describe(got), want)
	}
	return nil
}
