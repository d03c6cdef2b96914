package spec

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// podText returns a pod's identity for messages, as the kubelet writes it: name_namespace(uid).
func podText(pod *corev1.Pod) string {
	return fmt.Sprintf("%s_%s(%s)", pod.Name, pod.Namespace, pod.UID)
}

func checkContainerName(name string) error {
	if msgs := validation.IsDNS1123Label(name); len(msgs) > 0 {
		return fmt.Errorf("container name %q: %s", name, strings.Join(msgs, "; "))
	}
	return nil
}

func checkUID(uid types.UID) error {
	if !podutil.ValidUID(uid) {
		return fmt.Errorf("pod UID %q: must be %s", uid, podutil.UIDFormat)
	}
	return nil
}
