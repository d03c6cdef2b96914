package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent/eviction"
	"github.com/nodelet/nodelet/cri"
	"github.com/nodelet/nodelet/host/pressure"
	"github.com/nodelet/nodelet/metrics/usage"
)

// limitsPatience is how long limits wait for what was never measured.
const limitsPatience = 300 * time.Millisecond

// limitedStorage measures what pods with limits of ephemeral storage take; nil where such limits do not count.
func (n *nodelet) limitedStorage() func(context.Context, []*corev1.Pod) ([]eviction.Storage, error) {
	if !n.cfg.Node.LocalStorageIsolation {
		return nil
	}
	return func(ctx context.Context, pods []*corev1.Pod) ([]eviction.Storage, error) {
		told, err := n.measured.stats.Local(ctx, pods, limitsPatience, eviction.LimitsContainers)
		if err != nil {
			return nil, err
		}
		apart, err := n.imagesApart(ctx)
		if err != nil {
			return nil, err
		}
		all := make([]eviction.Storage, len(told))
		for i := range told {
			all[i] = storageOf(&told[i], apart)
		}
		return all, nil
	}
}

// imagesApart: the runtime keeps images and layers on another file system than that of the agent's directory.
func (n *nodelet) imagesApart(ctx context.Context) (bool, error) {
	at, err := n.imageFS.find(ctx, n.runtime)
	if err != nil || at == "" {
		return false, err
	}
	_, _, own, err := pressure.Disk(n.cfg.Paths.Root)
	if err != nil {
		return false, err
	}
	_, _, device, err := pressure.Disk(at)
	return err == nil && device != own, err
}

// imageFS is the file system on which the runtime keeps images.
type imageFS struct {
	mu sync.Mutex
	at string
}

// find gives the place where it is mounted. The runtime is asked until it has told; empty: it has none to tell of.
func (f *imageFS) find(ctx context.Context, runtime *cri.Client) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.at != "" {
		return f.at, nil
	}
	info, err := runtime.ImageFsInfo(ctx)
	if err != nil {
		return "", fmt.Errorf("ask where the runtime keeps images: %w", err)
	}
	if all := info.GetImageFilesystems(); len(all) > 0 {
		f.at = all[0].GetFsId().GetMountpoint()
	}
	return f.at, nil
}

// storageOf is what a pod takes, as limits see it: with the layers apart, those count for the pod and not for the container.
func storageOf(l *usage.Local, apart bool) eviction.Storage {
	s := eviction.Storage{Pod: int64(l.Total().Bytes), Containers: map[string]int64{}, Volumes: map[string]int64{}}
	for name, a := range l.Logs {
		s.Containers[name] += int64(a.Bytes)
	}
	if !apart {
		for name, a := range l.Layers {
			s.Containers[name] += int64(a.Bytes)
		}
	}
	for name, a := range l.Volumes {
		s.Volumes[name] = int64(a.Bytes)
	}
	return s
}
