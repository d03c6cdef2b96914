package status

import (
	"bytes"
	"encoding/json"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// patchFor returns the strategic merge patch that changes the status from into to, with the UID as precondition, or
// nil if they do not differ in anything that a node agent owns. The lists of container statuses have no merge key in
// the API and are sent whole; conditions merge by type; address lists are replaced, because their order counts.
func patchFor(uid types.UID, from, to *corev1.PodStatus) ([]byte, error) {
	p := &patch{}
	p.status(from, to)
	if len(p.fields) == 0 || p.err != nil {
		return nil, p.err
	}
	return patchOf(uid, p.fields)
}

// patch returns the patch that a job sends, or nil if it sends none. Before a delete is repeated, one that changes
// nothing is sent: the answer says whether the pod is still to be deleted.
func (j *job) patch() ([]byte, error) {
	body, err := patchFor(j.uid, j.base, j.want)
	if body == nil && err == nil && j.gone && j.repeats {
		return patchOf(j.uid, nil)
	}
	return body, err
}

// patchOf returns the patch with the UID as precondition that sets the given fields of the status.
func patchOf(uid types.UID, fields []byte) ([]byte, error) {
	id, err := json.Marshal(uid)
	if err != nil {
		return nil, err
	}
	body := make([]byte, 0, len(fields)+len(id)+40)
	body = append(append(body, `{"metadata":{"uid":`...), id...)
	body = append(append(body, `},"status":{`...), fields...)
	return append(body, "}}"...), nil
}

// unchanged reports whether patchFor would find nothing to send.
func unchanged(from, to *corev1.PodStatus) bool {
	p := &patch{compareOnly: true}
	p.status(from, to)
	return !p.differs
}

// patch collects the changed fields of a pod status as JSON members.
type patch struct {
	compareOnly bool
	differs     bool
	fields      []byte
	err         error
}

// set adds a member with the JSON of v; nil removes the field.
func (p *patch) set(field string, v any) {
	p.differs = true
	if p.compareOnly || p.err != nil {
		return
	}
	raw, err := json.Marshal(v)
	if err != nil {
		p.err = err
		return
	}
	if len(p.fields) > 0 {
		p.fields = append(p.fields, ',')
	}
	p.fields = append(append(append(append(p.fields, '"'), field...), `":`...), raw...)
}

// status compares what the node reports. It leaves out the QoS class, which the API server sets and never changes.
func (p *patch) status(from, to *corev1.PodStatus) {
	if to.ObservedGeneration != from.ObservedGeneration {
		p.set("observedGeneration", to.ObservedGeneration)
	}
	p.text("phase", string(from.Phase), string(to.Phase))
	p.text("message", from.Message, to.Message)
	p.text("reason", from.Reason, to.Reason)
	p.text("hostIP", from.HostIP, to.HostIP)
	p.text("podIP", from.PodIP, to.PodIP)
	if !from.StartTime.Equal(to.StartTime) {
		p.set("startTime", to.StartTime)
	}
	p.conditions(from, to)
	if !slices.Equal(from.HostIPs, to.HostIPs) {
		p.set("hostIPs", replaceList(to.HostIPs))
	}
	if !slices.Equal(from.PodIPs, to.PodIPs) {
		p.set("podIPs", replaceList(to.PodIPs))
	}
	p.containers("initContainerStatuses", from.InitContainerStatuses, to.InitContainerStatuses)
	p.containers("containerStatuses", from.ContainerStatuses, to.ContainerStatuses)
	p.containers("ephemeralContainerStatuses", from.EphemeralContainerStatuses, to.EphemeralContainerStatuses)
	if v, differs := quantities(from.AllocatedResources, to.AllocatedResources); differs {
		p.set("allocatedResources", v)
	}
	p.resources(from.Resources, to.Resources)
}

func (p *patch) text(field, from, to string) {
	switch {
	case from == to:
	case to == "":
		p.set(field, nil)
	default:
		p.set(field, to)
	}
}

func (p *patch) containers(field string, from, to []corev1.ContainerStatus) {
	if slices.EqualFunc(from, to, sameContainer) {
		return
	}
	if len(to) == 0 {
		p.set(field, nil)
		return
	}
	p.set(field, to)
}

// sameContainer reports whether a and b are the same to the API server: in the wire format, which has whole seconds,
// canonical quantities and no difference between absent and empty.
func sameContainer(a, b corev1.ContainerStatus) bool {
	if a.Name != b.Name || a.ContainerID != b.ContainerID || a.Ready != b.Ready || a.RestartCount != b.RestartCount {
		return false
	}
	aWire, aErr := a.Marshal()
	bWire, bErr := b.Marshal()
	return aErr == nil && bErr == nil && bytes.Equal(aWire, bWire)
}

// replaceList returns a list that replaces that of the server as a whole.
func replaceList[T any](items []T) []any {
	list := make([]any, 0, len(items)+1)
	list = append(list, map[string]string{"$patch": "replace"})
	for _, item := range items {
		list = append(list, item)
	}
	return list
}

func (p *patch) resources(from, to *corev1.ResourceRequirements) {
	switch {
	case from == nil && to == nil:
	case to == nil:
		p.set("resources", nil)
	case from == nil:
		p.set("resources", to)
	default:
		members := map[string]any{}
		if v, differs := quantities(from.Limits, to.Limits); differs {
			members["limits"] = v
		}
		if v, differs := quantities(from.Requests, to.Requests); differs {
			members["requests"] = v
		}
		if !slices.Equal(from.Claims, to.Claims) {
			members["claims"] = to.Claims
		}
		if len(members) > 0 {
			p.set("resources", members)
		}
	}
}

// quantities returns the members of a resource list that differ, with null for those to remove; null for the whole
// list if none remains.
func quantities(from, to corev1.ResourceList) (any, bool) {
	if len(to) == 0 {
		return nil, len(from) > 0
	}
	changed := map[corev1.ResourceName]any{}
	for name, q := range to {
		if old, ok := from[name]; !ok || old.Cmp(q) != 0 {
			changed[name] = q
		}
	}
	for name := range from {
		if _, ok := to[name]; !ok {
			changed[name] = nil
		}
	}
	return changed, len(changed) > 0
}
