package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/test/testbed"
)

// floorSide is the runtime by itself: what no agent can be faster than.
const floorSide = "floor"

// floor measures the CRI calls that make and end a pod, with nothing around them.
func (b *bench) floor(ctx context.Context) error {
	rt, hangUp, err := b.node.CRI()
	if err != nil {
		return err
	}
	defer func() { _ = hangUp() }()
	logs, err := os.MkdirTemp("", "nodelet-floor-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(logs)
	f := &floorRun{rt: rt, logs: logs, parent: filepath.Join(b.node.CgroupRoot, "floor")}
	if _, err := f.start(ctx, "warm-up"); err != nil {
		return err
	}
	if err := errors.Join(f.stop(ctx, "warm-up"), f.remove(ctx, "warm-up")); err != nil {
		return err
	}
	for i := range b.o.single {
		name := fmt.Sprintf("floor-%d", i)
		began := time.Now()
		if _, err := f.start(ctx, name); err != nil {
			return err
		}
		b.note(floorSide, "create to Ready, one at a time, ms", ms(time.Since(began)))
		ended := time.Now()
		if err := f.stop(ctx, name); err != nil {
			return err
		}
		b.note(floorSide, "delete to gone, one at a time, ms", ms(time.Since(ended)))
		if err := f.remove(ctx, name); err != nil {
			return err
		}
	}
	return b.floorBurst(ctx, f)
}

func (b *bench) floorBurst(ctx context.Context, f *floorRun) error {
	began := time.Now()
	ready, err := b.each(ctx, b.o.burst, "floor", func(name string) (time.Time, error) { return f.start(ctx, name) })
	if err != nil {
		return err
	}
	b.spread(floorSide, "create to Ready", b.o.burst, began, ready)
	began = time.Now()
	gone, err := b.each(ctx, b.o.burst, "floor", func(name string) (time.Time, error) {
		err := f.stop(ctx, name)
		return time.Now(), err
	})
	if err != nil {
		return err
	}
	b.spread(floorSide, "delete to gone", b.o.burst, began, gone)
	_, err = b.each(ctx, b.o.burst, "floor", func(name string) (time.Time, error) { return time.Now(), f.remove(ctx, name) })
	return err
}

type floorRun struct {
	rt     runtimeapi.RuntimeServiceClient
	logs   string
	parent string
	ids    sync.Map // name → [2]string{sandbox, container}
}

func (f *floorRun) start(ctx context.Context, name string) (time.Time, error) {
	pod := &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: name, Uid: name, Namespace: namespace},
		LogDirectory: filepath.Join(f.logs, name),
		Linux:        &runtimeapi.LinuxPodSandboxConfig{CgroupParent: f.parent},
	}
	box, err := f.rt.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: pod})
	if err != nil {
		return time.Time{}, err
	}
	made, err := f.rt.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: box.PodSandboxId, SandboxConfig: pod,
		Config: &runtimeapi.ContainerConfig{Metadata: &runtimeapi.ContainerMetadata{Name: "pause"},
			Image: &runtimeapi.ImageSpec{Image: testbed.PauseImage}, LogPath: "pause.log"}})
	if err != nil {
		return time.Time{}, err
	}
	f.ids.Store(name, [2]string{box.PodSandboxId, made.ContainerId})
	_, err = f.rt.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: made.ContainerId})
	return time.Now(), err
}

func (f *floorRun) stop(ctx context.Context, name string) error {
	ids, ok := f.ids.Load(name)
	if !ok {
		return errors.New("no such pod: " + name)
	}
	id := ids.([2]string)
	if _, err := f.rt.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: id[1], Timeout: 30}); err != nil {
		return err
	}
	_, err := f.rt.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: id[0]})
	return err
}

func (f *floorRun) remove(ctx context.Context, name string) error {
	ids, ok := f.ids.LoadAndDelete(name)
	if !ok {
		return nil
	}
	_, err := f.rt.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: ids.([2]string)[0]})
	return err
}
