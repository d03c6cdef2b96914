package node

import (
	"encoding/json"
	"fmt"
	"reflect"

	corev1 "k8s.io/api/core/v1"
)

// statusPatch returns the strategic merge patch for the subresource "status" that changes the labels, annotations and
// status of old to those of wanted, and nothing else. It does not use the builder of apimachinery, which adds an
// OpenAPI parser to the binary and makes a wrong patch for the addresses: their merge key is the type, but two
// addresses may have the same type.
//
// own are the conditions that this agent writes. They are always in the patch, because each patch is a heartbeat.
func statusPatch(old, wanted *corev1.Node, own []corev1.NodeCondition) ([]byte, error) {
	before, err := patchable(old)
	if err != nil {
		return nil, err
	}
	after, err := patchable(wanted)
	if err != nil {
		return nil, err
	}
	patch := difference(before, after)
	status, ok := patch["status"].(map[string]any)
	if !ok {
		status = map[string]any{}
		patch["status"] = status
	}
	status["conditions"] = own
	if list, ok := status["addresses"].([]any); ok {
		status["addresses"] = append(list, map[string]any{"$patch": "replace"})
	}
	text, err := json.Marshal(patch)
	if err != nil {
		return nil, fmt.Errorf("encode the patch of the node's status: %w", err)
	}
	return text, nil
}

// patchable returns the parts of n that a patch may change, as decoded JSON, without the conditions.
func patchable(n *corev1.Node) (map[string]any, error) {
	status := n.Status
	status.Conditions = nil
	text, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"labels": n.Labels, "annotations": n.Annotations},
		"status":   status,
	})
	var tree map[string]any
	if err == nil {
		err = json.Unmarshal(text, &tree)
	}
	if err != nil {
		return nil, fmt.Errorf("encode the node: %w", err)
	}
	return tree, nil
}

// difference returns the merge patch that changes before to after: it compares objects field by field, replaces other
// values as a whole, and has null for fields to remove.
func difference(before, after map[string]any) map[string]any {
	diff := map[string]any{}
	for k := range before {
		if after[k] == nil && before[k] != nil {
			diff[k] = nil
		}
	}
	for k, v := range after {
		inner, isObject := v.(map[string]any)
		innerBefore, wasObject := before[k].(map[string]any)
		switch {
		case isObject && wasObject:
			if d := difference(innerBefore, inner); len(d) > 0 {
				diff[k] = d
			}
		case v != nil && !reflect.DeepEqual(v, before[k]):
			diff[k] = v
		}
	}
	return diff
}
