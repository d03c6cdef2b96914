package pods

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// Running is a static pod that runs already: its UID, and when the agent that started it first saw its manifest.
type Running struct {
	UID  types.UID
	Seen time.Time
}

// RunningOf reads the annotations of a sandbox. It tells whether they are those of a pod from a manifest directory.
func RunningOf(annotations map[string]string) (Running, bool) {
	uid := types.UID(annotations[podutil.AnnotationHash])
	seen, err := time.Parse(time.RFC3339Nano, annotations[podutil.AnnotationSeen])
	if err != nil || Source(annotations[podutil.AnnotationSource]) != SourceFile || !podutil.ValidUID(uid) {
		return Running{}, false
	}
	return Running{UID: uid, Seen: seen}, true
}
