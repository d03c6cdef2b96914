package pods

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/kube/pods/manifest"
)

// Running is a static pod that runs already: its UID and source, when the agent that started it first saw its
// manifest, and what is known of that.
type Running struct {
	UID    types.UID
	Source Source
	Seen   time.Time
	// Hashes are those of its containers that their agents have recorded, by name.
	Hashes map[string]string
}

// has reports whether the containers that are known of r may come from the spec of pod.
func (r Running) has(pod *corev1.Pod) bool {
	for name, hash := range r.Hashes {
		if _, c := podutil.Container(&pod.Spec, name); c == nil || podutil.ContainerHash(c) != hash {
			return false
		}
	}
	return true
}

// RunningOf reads the annotations of a sandbox and reports whether they are those of a static pod.
func RunningOf(annotations map[string]string) (Running, bool) {
	r := Running{
		UID:    types.UID(annotations[podutil.AnnotationHash]),
		Source: Source(annotations[podutil.AnnotationSource]),
	}
	var err error
	r.Seen, err = time.Parse(time.RFC3339Nano, annotations[podutil.AnnotationSeen])
	if err != nil || !r.Source.Static() || !podutil.ValidUID(r.UID) {
		return Running{}, false
	}
	return r, true
}

// adopt lets p, of the manifest that r was started from, keep the UID that r runs under, and the time when it was first
// seen. A UID that the manifest sets itself stays.
func (r Running) adopt(p manifest.Pod) {
	if p.Own() || !podutil.ValidUID(r.UID) {
		return
	}
	p.UID = r.UID
	p.Annotations[podutil.AnnotationHash] = string(r.UID)
	p.Annotations[podutil.AnnotationSeen] = seenAt(r.Seen)
}
