package spec

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

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
