package cgroups

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"

	"github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/host/cgroups/names"
)

// Pod names the cgroup of one pod.
type Pod struct {
	UID types.UID
	QOS corev1.PodQOSClass
}

// CreatePod creates the cgroup of a pod, or updates the limits of an existing one. Call Ensure first. Page sizes that
// HugePages does not name are limited to 0.
func (t *Tree) CreatePod(p Pod, r Resources) error {
	n, err := t.pods.Pod(p.UID, p.QOS)
	if err != nil {
		return err
	}
	if r.HugePages == nil {
		r.HugePages = map[int64]int64{}
	}
	if err := t.create(n, r); err != nil {
		return fmt.Errorf("create cgroup %s: %w", t.spell(n), err)
	}
	return nil
}

// UpdatePod changes limits of a pod's cgroup; zero fields change nothing.
func (t *Tree) UpdatePod(p Pod, r Resources) error {
	n, err := t.pods.Pod(p.UID, p.QOS)
	if err != nil {
		return err
	}
	if err := t.set(n, r); err != nil {
		return fmt.Errorf("update cgroup %s: %w", t.spell(n), err)
	}
	return nil
}

// PodParent returns the path of a pod's cgroup below the root of the hierarchy: the cgroup_parent for the CRI sandbox
// config. The cgroup need not exist.
func (t *Tree) PodParent(p Pod) (string, error) {
	n, err := t.pods.Pod(p.UID, p.QOS)
	if err != nil {
		return "", err
	}
	return t.spell(n), nil
}

// PodExists reports whether the pod's cgroup exists in at least one controller: on cgroup v1 a crash may leave it in
// some of them.
func (t *Tree) PodExists(p Pod) (bool, error) {
	n, err := t.pods.Pod(p.UID, p.QOS)
	if err != nil {
		return false, err
	}
	for _, dir := range t.dirs(n) {
		if _, err := os.Stat(dir); err == nil || !errors.Is(err, os.ErrNotExist) {
			return err == nil, err
		}
	}
	return false, nil
}

// RemovePod kills the processes left in the pod's cgroup, waits until they have ended, and removes the cgroup with all
// cgroups below it. It does nothing if the cgroup does not exist. ctx bounds the wait; the error names processes that
// cannot be killed because they are stuck in the kernel.
func (t *Tree) RemovePod(ctx context.Context, p Pod) error {
	n, err := t.pods.Pod(p.UID, p.QOS)
	if err != nil {
		return err
	}
	dirs := t.removeEmpty(n)
	if len(dirs) == 0 && !t.systemd.Load() {
		return nil
	}
	if err := killAll(ctx, dirs); err != nil {
		return fmt.Errorf("kill the processes of cgroup %s: %w", t.spell(n), err)
	}
	if err := t.destroy(n); err != nil {
		return fmt.Errorf("remove cgroup %s: %w", t.spell(n), err)
	}
	return nil
}

// removeEmpty removes the directories of n that have no process and no cgroup below, nearly always all, and returns the
// others. Those of systemd it only finds: systemd removes them with the slice.
func (t *Tree) removeEmpty(n names.Name) (left []string) {
	defer t.change()()
	for _, dir := range t.dirs(n) {
		if !t.systemd.Load() && unix.Rmdir(dir) == nil {
			continue
		}
		if _, err := os.Stat(dir); err == nil {
			left = append(left, dir)
		}
	}
	return left
}

// destroy removes n with all cgroups below it.
func (t *Tree) destroy(n names.Name) error {
	defer t.change()()
	m, err := t.manager(n, &cgroups.Resources{SkipDevices: true})
	if err != nil {
		return err
	}
	return m.Destroy()
}

// Pods lists the pods that have a cgroup in any controller. The agent uses it to remove orphans when it starts.
func (t *Tree) Pods() ([]types.UID, error) {
	seen := map[types.UID]bool{}
	var pods []types.UID
	for _, qos := range []corev1.PodQOSClass{corev1.PodQOSGuaranteed, corev1.PodQOSBurstable, corev1.PodQOSBestEffort} {
		for _, dir := range t.dirs(t.pods.Class(qos)) {
			entries, err := os.ReadDir(dir)
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return nil, fmt.Errorf("list the cgroups of pods: %w", err)
			}
			for _, e := range entries {
				uid, ok := names.UID(e.Name(), t.systemd.Load())
				if ok && e.IsDir() && !seen[uid] {
					seen[uid] = true
					pods = append(pods, uid)
				}
			}
		}
	}
	return pods, nil
}

// PodSize reads the CPU and memory limits of a pod's cgroup. It returns false if the cgroup does not exist in every
// controller that limits are written to. Where the kernel or systemd has only rounded a value of want, PodSize returns
// the value of want. 0 means no limit.
func (t *Tree) PodSize(p Pod, want Resources) (has Resources, there bool, err error) {
	n, err := t.pods.Pod(p.UID, p.QOS)
	if err != nil {
		return Resources{}, false, err
	}
	for controller, dir := range t.dirs(n) {
		if _, err := os.Stat(dir); err != nil && t.kept(controller) {
			return Resources{}, false, ignoreMissing(err)
		}
	}
	if has, err = t.size(n, want); err != nil {
		return Resources{}, false, fmt.Errorf("read the limits of cgroup %s: %w", t.spell(n), err)
	}
	return has.asIn(want, t.systemd.Load()), true, nil
}

func ignoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// PodsCgroup is the cgroup of all pods, kubepods, as a path below the root of the hierarchy.
func (t *Tree) PodsCgroup() string { return t.spell(t.pods) }

// ClassCgroups are those of the classes burstable and besteffort.
func (t *Tree) ClassCgroups() []string {
	return []string{t.spell(t.pods.Class(corev1.PodQOSBurstable)), t.spell(t.pods.Class(corev1.PodQOSBestEffort))}
}

// Mounts are the directories in which the controllers of cgroup v1 are mounted; nil on v2.
func (t *Tree) Mounts() map[string]string { return maps.Clone(t.mounts) }
