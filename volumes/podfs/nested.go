package podfs

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// nestedMountPoints returns the directories, relative to the volume, where a container mounts other volumes inside this
// one. They must exist before, because nothing can be created in a read-only volume later.
func nestedMountPoints(volume string, spec *corev1.PodSpec) ([]string, error) {
	var nested []string
	for _, c := range podutil.Containers(spec) {
		var all, mine []string
		for _, m := range c.VolumeMounts {
			path := filepath.Clean(m.MountPath)
			all = append(all, path)
			if m.Name == volume {
				mine = append(mine, path)
			}
		}
		slices.Sort(all)
		for _, base := range mine {
			if strings.HasPrefix(base, "../") {
				return nil, fmt.Errorf("invalid container mount point %v", base)
			}
			nested = append(nested, outermostBelow(base, all)...)
		}
	}
	return nested, nil
}

// outermostBelow returns the paths that lie below base, sorted and relative to it, without those below another one of
// them.
func outermostBelow(base string, paths []string) []string {
	var found []string
	for _, path := range paths {
		rel, ok := strings.CutPrefix(path, base+"/")
		below := slices.ContainsFunc(found, func(f string) bool { return strings.HasPrefix(rel, f+"/") })
		if ok && !below {
			found = append(found, rel)
		}
	}
	return found
}
