package strict

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
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
		asJSON, err := yaml.YAMLToJSONStrict([]byte(text))
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
