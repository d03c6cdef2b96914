package cgroups

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/host/cgroups/names"
)

// Protection is the memory, in bytes, that the kernel does not take from the pods of a class while it can take other
// memory.
type Protection struct {
	// Guaranteed is never taken (memory.min), Burstable only if there is nothing else (memory.low).
	Guaranteed, Burstable int64
}

// files returns the settings of kubepods and of the burstable class. A cgroup is protected only as far as all cgroups
// above it are, so kubepods has the sums of its pods. As with the kubelet, the memory of burstable pods counts for
// memory.min of kubepods too.
func (p Protection) files() (pods, burstable map[string]string) {
	low := strconv.FormatInt(p.Burstable, 10)
	return map[string]string{"memory.min": strconv.FormatInt(p.Guaranteed+p.Burstable, 10), "memory.low": low},
		map[string]string{"memory.low": low}
}

// unprotected returns the settings that end the protection of kubepods and of the burstable class; nil if the agent
// sets that protection, or if the hierarchy has none.
func (t *Tree) unprotected() (pods, burstable map[string]string) {
	if !t.v2 || t.protect {
		return nil, nil
	}
	return Protection{}.files()
}

// Protect sets how much memory the pods of each class request together, on cgroup v2 (KEP-2570). It writes only what
// the kernel has otherwise. The cgroups of the pods themselves get their share from CreatePod and UpdatePod.
func (t *Tree) Protect(p Protection) error {
	if !t.v2 || !t.protect {
		return nil
	}
	pods, burstable := p.files()
	return errors.Join(
		t.setProtection(t.pods, pods),
		t.setProtection(t.pods.Class(corev1.PodQOSBurstable), burstable),
	)
}

func (t *Tree) setProtection(n names.Name, files map[string]string) error {
	if t.protects(n, files) {
		return nil
	}
	if err := t.set(n, Resources{Unified: files}); err != nil {
		return fmt.Errorf("protect the memory of cgroup %s: %w", t.spell(n), err)
	}
	return nil
}

// protects reports whether the kernel has these amounts. It rounds them to whole pages.
func (t *Tree) protects(n names.Name, files map[string]string) bool {
	pages := func(text string) int64 {
		amount, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
		if err != nil {
			return -1
		}
		return amount / int64(os.Getpagesize())
	}
	for file, want := range files {
		has, err := os.ReadFile(filepath.Join(t.dirs(n)[""], file))
		if err != nil || pages(string(has)) != pages(want) {
			return false
		}
	}
	return true
}
