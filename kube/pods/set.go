package pods

import (
	"cmp"
	"fmt"
	"slices"
	"sort"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// Source is where a pod comes from, with the values of the annotation kubernetes.io/config.source.
type Source string

// The sources.
const (
	SourceAPI  Source = podutil.SourceAPI
	SourceFile Source = podutil.SourceFile
	SourceHTTP Source = podutil.SourceHTTP
)

// SourceOf returns where a pod of a Set comes from.
func SourceOf(pod *corev1.Pod) Source { return Source(pod.Annotations[podutil.AnnotationSource]) }

// Static reports whether the pods of a source are static pods.
func (s Source) Static() bool { return s == SourceFile || s == SourceHTTP }

// Set is the set of all pods that should run on the node, from all sources. A delivered Set is immutable, and so are
// its objects: later Sets share them.
type Set struct {
	// Pods holds the pods by UID, without mirror pods. Each has the annotations config.source and config.seen.
	Pods map[types.UID]*corev1.Pod
	// Mirrors holds the mirror pods of this node that the API server has.
	Mirrors map[types.NamespacedName]*corev1.Pod
	// ConfigMaps and Secrets are those of the manifests. Only static pods use them.
	ConfigMaps map[types.NamespacedName]*corev1.ConfigMap
	Secrets    map[types.NamespacedName]*corev1.Secret
	// Problems are what is wrong with sources now, in a stable order.
	Problems []Problem
	// Waiting are the sources that have not delivered since the start.
	Waiting []Source
	// Synced is true when every source has delivered: a pod that is not in Pods should not run. See also Problem.Unknown.
	Synced bool
}

// Problem is an error of a source that users should see. Problems are comparable.
type Problem struct {
	Source Source
	// File is the path or URL; empty for the API server.
	File string
	// Message is the error and its place in the file.
	Message string
	// Unknown is true if the file has been invalid since the agent started, so that its pods are unknown: a running
	// static pod that is in no Set may be one of them.
	Unknown bool
}

func (p Problem) String() string {
	if p.File == "" {
		return p.Message
	}
	return p.File + ": " + p.Message
}

// Mirror returns the mirror pod of the static pod uid, which may be terminating. A mirror pod of an older manifest
// does not count.
func (s *Set) Mirror(uid types.UID) (*corev1.Pod, bool) {
	pod, ok := s.Pods[uid]
	if !ok || !podutil.IsStatic(pod) {
		return nil, false
	}
	m, ok := s.Mirrors[nameOf(pod)]
	if !ok || !mirrors(m, pod) {
		return nil, false
	}
	return m, true
}

// Shown returns the object that shows the pod uid in the API server: the pod itself, or the mirror pod of a static one.
func (s *Set) Shown(uid types.UID) (*corev1.Pod, bool) {
	if pod, ok := s.Pods[uid]; ok && !podutil.IsStatic(pod) {
		return pod, true
	}
	return s.Mirror(uid)
}

// Unknown reports whether there may be static pods that are in no Set: see Problem.Unknown.
func (s *Set) Unknown() bool {
	return slices.ContainsFunc(s.Problems, func(p Problem) bool { return p.Unknown })
}

func nameOf(pod *corev1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
}

// mirrors reports whether m is the mirror pod of the current version of the static pod.
func mirrors(m, pod *corev1.Pod) bool {
	hash, ok := m.Annotations[podutil.AnnotationMirror]
	return ok && hash == pod.Annotations[podutil.AnnotationHash]
}

// delivery is the state of one source.
type delivery struct {
	source     Source
	pods       []*corev1.Pod
	mirrors    []*corev1.Pod
	configMaps []*corev1.ConfigMap
	secrets    []*corev1.Secret
	problems   []Problem
	// synced is true if the other fields are the state of the source; otherwise only problems are known.
	synced bool
}

// same reports whether two deliveries are equal. Objects that did not change are the same pointers.
func (d delivery) same(e delivery) bool {
	return d.synced == e.synced && slices.Equal(d.pods, e.pods) && slices.Equal(d.mirrors, e.mirrors) &&
		slices.Equal(d.configMaps, e.configMaps) && slices.Equal(d.secrets, e.secrets) &&
		slices.Equal(d.problems, e.problems)
}

// merge merges the newest deliveries, in the order of their precedence, into a Set. A source that has not delivered
// yet is a zero delivery.
func merge(deliveries []delivery) *Set {
	s := &Set{
		Pods:       map[types.UID]*corev1.Pod{},
		Mirrors:    map[types.NamespacedName]*corev1.Pod{},
		ConfigMaps: map[types.NamespacedName]*corev1.ConfigMap{},
		Secrets:    map[types.NamespacedName]*corev1.Secret{},
	}
	names := map[types.NamespacedName]*corev1.Pod{}
	for _, d := range deliveries {
		if !d.synced {
			s.Waiting = append(s.Waiting, d.source)
		}
		s.Problems = append(s.Problems, d.problems...)
		for _, p := range d.pods {
			s.addPod(p, names)
		}
		for _, m := range d.mirrors {
			s.Mirrors[nameOf(m)] = m
		}
		for _, c := range d.configMaps {
			addFirst(s.ConfigMaps, types.NamespacedName{Namespace: c.Namespace, Name: c.Name}, c)
		}
		for _, c := range d.secrets {
			addFirst(s.Secrets, types.NamespacedName{Namespace: c.Namespace, Name: c.Name}, c)
		}
	}
	s.Synced = len(s.Waiting) == 0
	sort.SliceStable(s.Problems, func(i, j int) bool {
		a, b := &s.Problems[i], &s.Problems[j]
		return cmp.Or(cmp.Compare(a.Source, b.Source), cmp.Compare(a.File, b.File), cmp.Compare(a.Message, b.Message)) < 0
	})
	return s
}

func addFirst[V any](m map[types.NamespacedName]V, k types.NamespacedName, v V) {
	if _, ok := m[k]; !ok {
		m[k] = v
	}
}

// addPod rejects a second pod with the same UID, and a static pod with the name of another static pod: directories,
// cgroups and containers are named after them. Pods of the API server with the same name are successive pods, which
// may all still run.
func (s *Set) addPod(p *corev1.Pod, names map[types.NamespacedName]*corev1.Pod) {
	taken := s.Pods[p.UID]
	if taken == nil && podutil.IsStatic(p) {
		taken = names[nameOf(p)]
	}
	if taken != nil {
		s.Problems = append(s.Problems, Problem{
			Source: SourceOf(p),
			Message: fmt.Sprintf("pod %s (UID %s) is rejected: pod %s from source %q has the same name or UID",
				nameOf(p), p.UID, nameOf(taken), SourceOf(taken)),
		})
		return
	}
	s.Pods[p.UID] = p
	if podutil.IsStatic(p) {
		names[nameOf(p)] = p
	}
}
