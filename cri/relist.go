package cri

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// PodSummary is what a list of the whole node says about one pod.
type PodSummary struct {
	UID             types.UID
	Namespace, Name string
	// Source is the source of the pod by the annotation of its sandbox; empty without one.
	Source string
	// Ready: one of the sandboxes is ready.
	Ready bool
	// Grace is the longest termination grace period, in seconds, that one of the containers was made with; nil if none is
	// known.
	Grace *int64
	// Instances are its sandboxes and containers.
	Instances []Instance
	// Fingerprint identifies the set of the instances and their states; see Snapshot.Matches.
	Fingerprint uint64
}

// Relist lists the pods that have sandboxes or containers, by UID, with two calls for the whole node. It leaves out
// sandboxes and containers without the label io.kubernetes.pod.uid: they belong to other programs.
func (c *Client) Relist(ctx context.Context) ([]PodSummary, error) {
	sandboxes, containers, err := c.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the runtime's pods: %w", err)
	}
	pods := make(map[types.UID]*PodSummary, len(sandboxes))
	pod := func(labels map[string]string) *PodSummary {
		uid := types.UID(labels[podutil.LabelPodUID])
		if pods[uid] == nil {
			pods[uid] = &PodSummary{UID: uid, Namespace: labels[podutil.LabelPodNamespace], Name: labels[podutil.LabelPodName]}
		}
		return pods[uid]
	}
	for _, s := range sandboxes {
		p := pod(s.Labels)
		p.Source = cmp.Or(p.Source, s.Annotations[podutil.AnnotationSource])
		p.Ready = p.Ready || s.State == runtimeapi.PodSandboxState_SANDBOX_READY
		p.Instances = append(p.Instances, Instance{Sandbox: s.Id})
		p.Fingerprint += sandboxPrint(s.Id, s.State)
	}
	for _, ctr := range containers {
		p := pod(ctr.Labels)
		grace, err := strconv.ParseInt(ctr.Annotations[podutil.AnnotationGrace], 10, 64)
		if err == nil && (p.Grace == nil || grace > *p.Grace) {
			p.Grace = &grace
		}
		p.Instances = append(p.Instances, Instance{Sandbox: ctr.PodSandboxId, Container: ctr.Id})
		p.Fingerprint += containerPrint(ctr.Id, ctr.State)
	}
	delete(pods, "")
	all := make([]PodSummary, 0, len(pods))
	for _, p := range slices.SortedFunc(maps.Values(pods),
		func(a, b *PodSummary) int { return cmp.Compare(a.UID, b.UID) }) {
		all = append(all, *p)
	}
	return all, nil
}

func sandboxPrint(id string, state runtimeapi.PodSandboxState) uint64 {
	return fingerprint('s', id, byte(state))
}

func containerPrint(id string, state runtimeapi.ContainerState) uint64 {
	return fingerprint('c', id, byte(state))
}

// fingerprint is FNV-1a over kind, state and ID. Those of the instances are added, so that their order does not matter.
func fingerprint(kind byte, id string, state byte) uint64 {
	const prime = 1099511628211
	h := uint64(14695981039346656037)
	h = (h ^ uint64(kind)) * prime
	h = (h ^ uint64(state)) * prime
	for i := range len(id) {
		h = (h ^ uint64(id[i])) * prime
	}
	return h
}
