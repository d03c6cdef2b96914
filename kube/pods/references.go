package pods

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/kube/pods/manifest"
)

// references decides which static pods of one source are delivered, by the ConfigMaps and Secrets that they refer to.
//
// On a node with an API server a static pod may use only objects of its own source: to users such a name means the
// object of the API server. A standalone node has no other objects, so a pod may wait for one that does not exist yet.
type references struct {
	api bool
	// running are the static pods of the last delivery and, until all manifests are known, those that an earlier agent has
	// left running. They keep running when what they refer to is removed.
	running map[types.UID]bool
}

func newReferences(api bool, running map[types.NamespacedName]Running) references {
	r := references{api: api, running: map[types.UID]bool{}}
	for _, pod := range running {
		r.running[pod.UID] = true
	}
	return r
}

// filePod is a static pod and the file or URL of its manifest.
type filePod struct {
	*corev1.Pod
	path string
}

// admit adds to state the pods whose references are valid, and those that run. The objects of state are complete.
func (r *references) admit(state *delivery, pods []filePod) {
	delivered := map[types.UID]bool{}
	for _, p := range pods {
		if err := r.check(state, p.Pod); err != nil {
			problem := Problem{Source: state.source, File: p.path, Message: fmt.Sprintf("pod %s: %v", p.Name, err)}
			if r.running[p.UID] {
				problem.Message += " (it keeps running with what it has)"
			}
			state.problems = append(state.problems, problem)
			if !r.running[p.UID] {
				continue
			}
		}
		delivered[p.UID] = true
		state.pods = append(state.pods, p.Pod)
	}
	if state.synced && !slices.ContainsFunc(state.problems, func(p Problem) bool { return p.Unknown }) {
		r.running = delivered
	} else {
		maps.Copy(r.running, delivered)
	}
}

func (r *references) check(state *delivery, pod *corev1.Pod) error {
	if !r.api {
		return nil
	}
	return manifest.CheckReferences(pod, func(kind, name string) bool {
		if kind == "Secret" {
			return has(state.secrets, pod.Namespace, name)
		}
		return has(state.configMaps, pod.Namespace, name)
	}).ToAggregate()
}

func has[T metav1.Object](objs []T, namespace, name string) bool {
	return index(objs, namespace, name) >= 0
}

// index returns the index of the object of this name; -1 if there is none.
func index[T metav1.Object](objs []T, namespace, name string) int {
	return slices.IndexFunc(objs, func(o T) bool { return o.GetNamespace() == namespace && o.GetName() == name })
}
