package strict

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestCheck checks the path and the text of each error about a document.
func TestCheck(t *testing.T) {
	for text, want := range map[string]string{
		"metadata: {name: a, creationTimestamp: null}": "",
		"metadata: {creationTimestamp: now}": `metadata.creationTimestamp: "now" is not ` +
			`a time such as 2006-01-02T15:04:05Z`,
		"metadata: {labels: {a: true}}": `metadata.labels[a]: true is not text; put it in quotes: "true"`,
		"metadata: []":                  "metadata: a list is not an object (key: value)",
		"name: a":                       "name: unknown field",
		"spec: {hostNetwrk: true, container: []}": `spec.container: unknown field; did you mean "containers"?, ` +
			`spec.hostNetwrk: unknown field; did you mean "hostNetwork"?`,
		"spec: {volumes: [{name: v, emptyDr: {}}]}": `spec.volumes[0].emptyDr: unknown field; ` +
			`did you mean "emptyDir"?`,
		"spec: {volumes: [{emptyDir: {sizeLimit: big}}]}": `spec.volumes[0].emptyDir.sizeLimit: "big" is not ` +
			`a quantity such as 500Mi`,
		"spec: {containers: [{ports: [{containerPort: 5000000000}]}]}": `spec.containers[0].ports[0].containerPort: ` +
			`5000000000 is not a whole number of 32 bits`,
		"spec: {containers: [{env: [{name: KEY, value: 1234}]}]}": `spec.containers[0].env[0].value: ` +
			`the value (not shown) is not text; put it in quotes`,
		"spec: {containers: [{livenessProbe: {tcpSocket: {port: [1]}}}]}": `spec.containers[0].livenessProbe.` +
			`tcpSocket.port: a list is not a whole number or text`,
	} {
		asJSON, err := ToJSON([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		tree, err := Tree(asJSON)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, e := range Check(tree, &corev1.Pod{}) {
			got = append(got, e.Error())
		}
		if all := strings.Join(got, ", "); all != want {
			t.Errorf("%s: got %s, want %s", text, all, want)
		}
	}
	for data, want := range map[string]string{`"eA=="`: "[]", `"x!"`: `[data[a]: "x!" is not base64 text]`} {
		tree, err := Tree([]byte(`{"data":{"a":` + data + `}}`))
		if got := fmt.Sprint(Check(tree, corev1.Secret{})); err != nil || got != want {
			t.Errorf("%s: got %s, %v, want %s", data, got, err, want)
		}
	}
}

// TestToJSON checks that a key is an error if it is written twice in a mapping, and not if it replaces one that is
// merged, or one of two merged mappings has it.
func TestToJSON(t *testing.T) {
	const anchors = "a: &a {x: 1, w: 2}\nb: &b {x: 3}\n"
	for text, want := range map[string]string{
		"c: {<<: *a, x: 5}":                      `{"w":2,"x":5}`,
		"c: {x: 5, <<: *a}":                      `{"w":2,"x":1}`, // as with the kubelet
		"c: {<<: [*a, *b]}":                      `{"w":2,"x":1}`,
		"c: {<<: *a, z: [{<<: *b, x: null}]}":    `{"w":2,"x":1,"z":[{"x":null}]}`,
		"c: {<<: *a, true: 1, 7: 2}":             `{"7":2,"true":1,"w":2,"x":1}`,
		"c:\n  <<: *a\n  x: 5\n  z: 1\n  z: 2":   `line 7: key "z" already set in map`,
		"c:\n  <<: *a\n  x: 5\n  x: 6":           `line 5: key "x" already set in map, line 6: key "x" already set in map`,
		"c: {<<: *a, x: 5}\nd: [{7: 1, 7: 2}]":   `line 4: key 7 already set in map`,
		"c: {<<: *a, x: 5}\nd: {<<: x}":          "map merge requires map or sequence of maps as the value",
		"c: {<<: *a, x: 5}\nc: {<<: *b, z: 6}":   `line 4: key "c" already set in map`,
		"c: {<<: *a, x: 5}\nd: {[1]: 2, [1]: 3}": "invalid map key: []interface {}{1}",
	} {
		got, err := ToJSON([]byte(anchors + text))
		if err != nil {
			lines := strings.TrimPrefix(err.Error(), "yaml: unmarshal errors:\n  ")
			got = []byte(strings.TrimPrefix(strings.ReplaceAll(lines, "\n  ", ", "), "yaml: "))
		} else {
			got = got[strings.Index(string(got), `"c":`)+4 : len(got)-1]
		}
		if string(got) != want {
			t.Errorf("%s: got %s, want %s", text, got, want)
		}
	}
}
