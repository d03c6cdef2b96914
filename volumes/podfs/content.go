package podfs

import (
	"context"
	"fmt"
	"os"
	"slices"

	"github.com/nodelet/nodelet/kube/pluginname"
)

// show makes a read-only volume of the given files and mount points of other volumes.
func (v *FS) show(ctx context.Context, r Request, plugin string, files payload, nested []string) (Mounted, error) {
	inMemory := slices.Contains(pluginname.InMemory, plugin)
	if inMemory { // each must see what the others have
		unlock, err := v.filling.Lock(ctx, string(r.Pod.UID))
		if err != nil {
			return Mounted{}, err
		}
		defer unlock()
	}
	leave, err := v.enter(ctx)
	if err != nil {
		return Mounted{}, err
	}
	defer leave()
	pod, err := v.makePod(r.Pod.UID)
	if err != nil {
		return Mounted{}, err
	}
	defer pod.Close()
	on := OnDisk{Plugin: plugin, Name: r.Volume.Name}
	dir, check, err := v.openContent(pod, on, r)
	if err != nil {
		return Mounted{}, err
	}
	defer dir.Close()
	if err := v.fill(ctx, r, dir, files, nested, check); err != nil {
		return Mounted{}, fmt.Errorf("write files: %w", err)
	}
	return Mounted{HostPath: v.hostPath(r.Pod.UID, on), ReadOnly: true, MountPoint: inMemory, SELinuxRelabel: true}, nil
}

// writersPerCPU is how many volumes are filled at a time for each CPU. The CPUs are what limits this work: with more at
// a time all of them would end later.
const writersPerCPU = 2

// enter waits until the volume may be filled, in the order in which the contents arrived.
func (v *FS) enter(ctx context.Context) (leave func(), err error) {
	select {
	case v.writers <- struct{}{}:
		return func() { <-v.writers }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// openContent opens the directory of a volume. check returns an error if the volume may not have so much.
func (v *FS) openContent(pod *os.File, on OnDisk, r Request) (dir *os.File, check func(size int64) error, err error) {
	if slices.Contains(pluginname.InMemory, on.Plugin) {
		dir, _, err := makeMounted(pod, on.path(), *v.tmpfs(memorySize(r.Pod, r.Allocatable, nil)))
		return dir, func(size int64) error { return v.checkMemory(pod, r.Pod.UID, on, size) }, err
	}
	dir, err = makeDir(pod, on.path(), privateDir)
	if err != nil {
		return nil, nil, err
	}
	if err := permitAll(dir); err != nil {
		dir.Close()
		return nil, nil, err
	}
	return dir, func(size int64) error { return v.onDisk.grow(r.Pod.UID, on.Name, size) }, nil
}

func (v *FS) fill(
	ctx context.Context, r Request, dir *os.File, files payload, nested []string, check func(size int64) error,
) error {
	a, err := openAtomic(dir)
	if err != nil {
		return err
	}
	defer a.root.Close()
	size := files.size() + sizeOfMountPoints(nested)
	a.check = func() error { return check(size) }
	if err := a.makeMountPoints(ctx, nested); err != nil {
		return err
	}
	own := func() error {
		again, err := openDir(dir, ".") // a directory can be listed once
		if err != nil {
			return err
		}
		defer again.Close()
		owner := v.ownerOf(r.Pod, true)
		owner.skip = false // the files are new, whatever the root looks like
		return owner.apply(ctx, again)
	}
	return a.write(ctx, files, r.Now, own)
}
