package policy

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// The annotations of an eviction's event. They are the kubelet's.
const (
	annotationStarved         = "starved_resource"
	annotationContainers      = "offending_containers"
	annotationContainersUsage = "offending_containers_usage"
	annotationPod             = "offending_pod"
	annotationPodUsage        = "offending_pod_usage"
)

// Reclaims reports whether the use of single containers explains an eviction for a signal: only what containers can
// request does.
func Reclaims(signal string) bool {
	return resourceOf(signal) == "memory" || resourceOf(signal) == "ephemeral-storage"
}

// Explain returns the status message of an evicted pod and the annotations of its event, both as the kubelet has them.
// They name the containers that use more than they request; containers has what each uses in bytes, by name.
func Explain(t *Threshold, levels map[string]Level, p Pod, containers map[string]int64) (string, map[string]string) {
	e := explanation{starved: resourceOf(t.Signal), annotations: map[string]string{}}
	e.say("The node was low on resource: %s. ", e.starved)
	if l, known := levels[t.Signal]; known {
		e.say("Threshold quantity: %s, available: %s. ",
			quantity(t.Signal, t.Value.of(l.Capacity)), quantity(t.Signal, l.Available))
	}
	e.blamePod(p)
	e.blameContainers(p.Pod, containers)
	// Unlike the kubelet: emptyDir volumes are of no container. Of large ones, a part may not have been counted yet.
	if e.starved == "ephemeral-storage" && p.Disk > 0 {
		e.say("In all, pod %s was using at least %s. ", p.Name, quantity(t.Signal, p.Disk))
	}
	e.annotations[annotationStarved] = e.starved
	return e.text.String(), e.annotations
}

// explanation collects what is said about an eviction.
type explanation struct {
	starved     string
	text        strings.Builder
	annotations map[string]string
}

func (e *explanation) say(format string, args ...any) { fmt.Fprintf(&e.text, format, args...) }

// blame says who uses more than it requests.
func (e *explanation) blame(kind, name, uses, request string) {
	e.say("%s %s was using %s, request is %s, has larger consumption of %s. ", kind, name, uses, request, e.starved)
}

// blamePod names a pod with a memory request of its own (pod-level resources).
func (e *explanation) blamePod(p Pod) {
	if e.starved != "memory" || p.Spec.Resources == nil || !p.Known {
		return
	}
	if request, set := p.Spec.Resources.Requests[corev1.ResourceMemory]; set {
		uses := quantity(MemoryAvailable, p.Memory)
		e.blame("Pod", p.Name, uses, request.String())
		e.annotations[annotationPod], e.annotations[annotationPodUsage] = p.Name, uses
	}
}

func (e *explanation) blameContainers(pod *corev1.Pod, containers map[string]int64) {
	var names, usage []string
	for _, c := range podutil.ContainersWithResources(&pod.Spec) {
		used, known := containers[c.Name]
		request := c.Resources.Requests[corev1.ResourceName(e.starved)]
		if !known || request.CmpInt64(used) >= 0 {
			continue
		}
		uses := resource.NewQuantity(used, resource.BinarySI).String()
		e.blame("Container", c.Name, uses, request.String())
		names, usage = append(names, c.Name), append(usage, uses)
	}
	e.annotations[annotationContainers] = strings.Join(names, ",")
	e.annotations[annotationContainersUsage] = strings.Join(usage, ",")
}

// quantity formats an amount of the resource of a signal as the kubelet does.
func quantity(signal string, n int64) string {
	switch resourceOf(signal) {
	case "inodes", "pids":
		return resource.NewQuantity(n, resource.DecimalSI).String()
	}
	return resource.NewQuantity(n, resource.BinarySI).String()
}

// Attempt is the message of the event that resources are being freed.
func Attempt(t *Threshold) string { return "Attempting to reclaim " + resourceOf(t.Signal) }
