package usage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// walks reports whether writable layers are to be measured here.
func (c *Collector) walks() bool { return c.cfg.WalkLayers != nil && c.cfg.WalkLayers() }

// allLayers returns the sizes of the writable layers of containers, by container ID.
func (c *Collector) allLayers(ctx context.Context) (map[string]Amount, error) {
	if c.walks() {
		running, err := c.running(ctx)
		if err != nil {
			return nil, err
		}
		layers, err := c.walkLayers(ctx, slices.Collect(maps.Values(running)), sizesTimeout)
		if layers != nil || err != nil {
			return layers, err
		}
	}
	all, err := c.cfg.Runtime.ListContainerStats(ctx)
	layers := make(map[string]Amount, len(all))
	for _, one := range all {
		if one.WritableLayer != nil {
			layers[one.GetAttributes().GetId()] = amountOf(one.WritableLayer)
		}
	}
	return layers, err
}

// addWalked adds the writable layers of the pods for which wanted returns true, by walking them. ok is false if the
// runtime has to be asked.
func (c *Collector) addWalked(ctx context.Context, pods []*corev1.Pod, all []Local, wanted func(*corev1.Pod) bool,
	running map[string]*runtimeapi.Container, timeout time.Duration) (ok bool, err error) {
	containers := map[string][]*runtimeapi.Container{} // by the UID of the pod
	for _, one := range running {
		uid := one.Labels[podutil.LabelPodUID]
		containers[uid] = append(containers[uid], one)
	}
	var theirs []*runtimeapi.Container
	for _, p := range pods {
		if wanted(p) {
			theirs = append(theirs, containers[string(p.UID)]...)
		}
	}
	layers, err := c.walkLayers(ctx, theirs, timeout)
	if layers == nil {
		return false, err
	}
	for i, p := range pods {
		if wanted(p) {
			all[i].Layers = named(containers[string(p.UID)], layers)
		}
	}
	return true, nil
}

// named returns the layers of a pod's running containers, by container; nil if there are containers, and none of them
// was measured.
func named(running []*runtimeapi.Container, layers map[string]Amount) map[string]Amount {
	sizes := map[string]Amount{}
	for _, one := range running {
		if layer, measured := layers[one.Id]; measured {
			sizes[one.GetMetadata().GetName()] = layer
		}
	}
	if len(running) > 0 && len(sizes) == 0 {
		return nil
	}
	return sizes
}

// walkLayers measures the writable layers of running containers, by container ID. It returns nil if the runtime has to
// be asked, because it names no directory of a layer. It leaves out a layer that is not known, or not in time. If the
// runtime does not answer in time, that is an error: each further call may take as long.
func (c *Collector) walkLayers(ctx context.Context, running []*runtimeapi.Container, timeout time.Duration) (
	map[string]Amount, error) {
	at := make(map[string]place, len(running))
	unnamed, failed := false, error(nil)
	for _, one := range running {
		dir, err := c.layerDir(ctx, one.Id)
		switch {
		case err == nil && dir != "":
			at[one.Id] = place{base: filepath.Dir(dir), below: filepath.Base(dir)}
		case err == nil:
			unnamed = true
		case status.Code(err) != codes.NotFound: // it has not just been removed
			failed = fmt.Errorf("find the writable layer of container %s: %w", one.Id, err)
		}
		if failed != nil && (status.Code(err) == codes.DeadlineExceeded || ctx.Err() != nil) {
			return nil, failed
		}
	}
	if len(at) == 0 && (unnamed || failed != nil) {
		return nil, failed
	}
	if failed != nil {
		c.cfg.Log.Warn("the disk usage of a container is counted without its writable layer", "err", failed)
	}
	sizes := c.disks.sizesOf(ctx, slices.Collect(maps.Values(at)), timeout)
	layers := make(map[string]Amount, len(at))
	for id, p := range at {
		if s := sizes[p]; s.known {
			layers[id] = s.Amount
		}
	}
	return layers, nil
}

// layerDir returns the directory of the writable layer of a container, which never changes; empty if the runtime does
// not name it, or if it names another one than there is.
func (c *Collector) layerDir(ctx context.Context, id string) (string, error) {
	if dir, known := c.layerDirs.Load(id); known {
		return dir.(string), nil
	}
	dir, err := c.cfg.Runtime.LayerDir(ctx, id)
	if err != nil || dir == "" {
		return "", err
	}
	switch _, err := os.Stat(dir); {
	case errors.Is(err, fs.ErrNotExist):
		return "", nil
	case err != nil:
		return "", err
	}
	c.layerDirs.Store(id, dir)
	return dir, nil
}
