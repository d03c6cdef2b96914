package node

import (
	"encoding/json"
	"fmt"
	"reflect"

	corev1 "k8s.io/api/core/v1"
)

// statusPatch gives the strategic merge patch for the subresource "status" that makes old's labels, annotations and
// status those of wanted. Nothing else is ever in it. It is built by hand, since the library's builder brings an
// OpenAPI parser into the binary and gets the addresses wrong (they are declared as merged by type, of which there
// may be two).
//
// own are the conditions this agent writes; they are always in the patch, because each patch is a heartbeat.
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

// patchable gives the parts of n which a patch may touch, as plain JSON. Conditions are left out.
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

// difference gives what must be laid over before to get after: objects by their parts, all else whole, null for what
// went.
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
