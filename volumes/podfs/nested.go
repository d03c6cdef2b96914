package podfs

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
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
			all = append(all, path+"/")
			if m.Name != volume {
				continue
			}
			if strings.HasPrefix(path, "../") {
				return nil, fmt.Errorf("invalid container mount point %v", path)
			}
			mine = append(mine, path+"/")
		}
		slices.Sort(all)
		for _, base := range mine {
			nested = append(nested, outermostBelow(base, all)...)
		}
	}
	for _, path := range nested { // no container can open a longer one, but os.Root makes it, directory by directory
		if len(path) > maxPath {
			return nil, fmt.Errorf("mount point of another volume: %w", unix.ENAMETOOLONG)
		}
	}
	slices.Sort(nested)
	return slices.Compact(nested), nil
}

// sizeOfMountPoints returns about what the directories take, in memory or on the disk, where one has a page.
func sizeOfMountPoints(paths []string) (size int64) {
	for _, path := range paths {
		size += int64(strings.Count(path, "/")+1) * int64(os.Getpagesize())
	}
	return size
}

// makeMountPoints makes the directories that are missing.
func (a atomicDir) makeMountPoints(ctx context.Context, paths []string) error {
	missing := slices.DeleteFunc(slices.Clone(paths), func(path string) bool {
		_, err := a.root.Stat(path)
		return err == nil
	})
	if len(missing) == 0 {
		return nil
	}
	if err := a.check(); err != nil {
		return err
	}
	for _, path := range missing {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := a.root.MkdirAll(path, 0o755); err != nil {
			return fmt.Errorf("make mount point for another volume: %w", err)
		}
	}
	return nil
}

// outermostBelow returns the paths that lie below base, relative to it, without those below another one of them. The
// paths and base end with a slash, and the paths are sorted: those below a path follow it at once.
func outermostBelow(base string, paths []string) []string {
	var found []string
	first, _ := slices.BinarySearch(paths, base)
	last := ""
	for _, path := range paths[first:] {
		if !strings.HasPrefix(path, base) {
			break
		}
		if path == base || last != "" && strings.HasPrefix(path, last) {
			continue
		}
		found = append(found, strings.TrimSuffix(path[len(base):], "/"))
		last = path
	}
	return found
}
