package pods

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/nodelet/nodelet/internal/latest"
	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/kube/watch"
)

// apiSource has the pods that are bound to this node in the API server. It is a watch.Sink.
type apiSource struct {
	pods   map[types.UID]*corev1.Pod
	synced bool
	// trouble is why the pods cannot be watched now, or nil.
	trouble error
	// bad are pods whose identity must not become a path on the node.
	bad map[types.UID]Problem
	out latest.Value[delivery]
}

func followAPI(ctx context.Context, core rest.Interface, node string, out latest.Value[delivery]) {
	s := &apiSource{pods: map[types.UID]*corev1.Pod{}, bad: map[types.UID]Problem{}, out: out}
	watch.Target{
		Client: core, Resource: "pods",
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String(),
	}.Follow(ctx, s)
}

func (s *apiSource) Replace(objs []metav1.Object) {
	before := s.pods
	s.pods, s.bad = map[types.UID]*corev1.Pod{}, map[types.UID]Problem{}
	s.synced = true
	for _, o := range objs {
		s.set(o, before[o.GetUID()])
	}
	s.deliver()
}

func (s *apiSource) Set(o metav1.Object) {
	s.set(o, s.pods[o.GetUID()])
	s.deliver()
}

func (s *apiSource) Delete(o metav1.Object) {
	delete(s.pods, o.GetUID())
	delete(s.bad, o.GetUID())
	s.deliver()
}

func (s *apiSource) Trouble(err error) {
	s.trouble = err
	s.deliver()
}

// set stores a pod with the annotations that this node adds. before is its earlier state, or nil.
func (s *apiSource) set(o metav1.Object, before *corev1.Pod) {
	pod, ok := o.(*corev1.Pod)
	if !ok {
		return // never: it is a watch of pods
	}
	if err := podutil.CheckIdentity(pod); err != nil {
		s.bad[pod.UID] = Problem{Source: SourceAPI, Message: fmt.Sprintf("pod %s is rejected: %v", nameOf(pod), err)}
		return
	}
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Annotations[podutil.AnnotationSource] = podutil.SourceAPI
	pod.Annotations[podutil.AnnotationSeen] = seenAt(time.Now())
	if before != nil {
		pod.Annotations[podutil.AnnotationSeen] = before.Annotations[podutil.AnnotationSeen]
	}
	s.pods[pod.UID] = pod
}

func seenAt(t time.Time) string { return t.Format(time.RFC3339Nano) }

func (s *apiSource) deliver() {
	d := delivery{source: SourceAPI, synced: s.synced, pods: make([]*corev1.Pod, 0, len(s.pods))}
	for _, p := range s.pods {
		if _, mirror := p.Annotations[podutil.AnnotationMirror]; mirror {
			d.mirrors = append(d.mirrors, p)
		} else {
			d.pods = append(d.pods, p)
		}
	}
	for _, p := range s.bad {
		d.problems = append(d.problems, p)
	}
	if s.trouble != nil {
		d.problems = append(d.problems, Problem{Source: SourceAPI, Message: s.trouble.Error()})
	}
	s.out.Put(d)
}
