package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/agent/spec"
	"github.com/nodelet/nodelet/kube/pods/manifest"
)

// floorSide is the name of the runtime without an agent. No agent can be faster.
const floorSide = "floor"

// floor measures only the CRI calls that create and remove a pod.
func (b *bench) floor(ctx context.Context) error {
	return onFloor(ctx, b, func(f *floorRun) error {
		return accounts{b}.podCosts(floorSide, func() error { return b.floorSingles(ctx, f) },
			func() error { return b.floorBurst(ctx, f) })
	})
}

func (b *bench) floorSingles(ctx context.Context, f *floorRun) error {
	for i := range b.o.single {
		if err := pause(ctx, alone); err != nil {
			return err
		}
		ready, gone, err := f.run(ctx, b.floorPod(fmt.Sprintf("floor-%d", i)))
		if err != nil {
			return err
		}
		b.note(floorSide, "create to Ready, one at a time, ms", ms(ready))
		b.note(floorSide, "delete to gone, one at a time, ms", ms(gone))
	}
	return nil
}

// onFloor connects to the runtime, warms it up with one pod, and calls measure.
func onFloor(ctx context.Context, b *bench, measure func(*floorRun) error) error {
	rt, hangUp, err := b.node.Runtime.CRI()
	if err != nil {
		return err
	}
	defer func() { _ = hangUp() }()
	dir, err := os.MkdirTemp("", "nodelet-floor-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	f := &floorRun{rt: rt, node: b.floorNode(dir)}
	if _, _, err := f.run(ctx, b.floorPod("warm-up")); err != nil {
		return err
	}
	return measure(f)
}

// run starts, stops and removes a pod.
func (f *floorRun) run(ctx context.Context, pod *corev1.Pod) (ready, gone time.Duration, err error) {
	began := time.Now()
	if _, err := f.start(ctx, pod); err != nil {
		return 0, 0, err
	}
	ready = time.Since(began)
	if err := pause(ctx, signalReady); err != nil {
		return 0, 0, err
	}
	ended := time.Now()
	if err := f.stop(ctx, pod.Name); err != nil {
		return 0, 0, err
	}
	return ready, time.Since(ended), f.remove(ctx, pod.Name)
}

// floorPod is the pod that the agents get, with what the API server adds to it.
func (b *bench) floorPod(name string) *corev1.Pod {
	pod := b.pod(name)
	pod.UID = types.UID(name)
	manifest.SetDefaults(pod)
	return pod
}

func (b *bench) floorBurst(ctx context.Context, f *floorRun) error {
	began := time.Now()
	ready, err := b.each(
		ctx,
		b.o.burst,
		"floor",
		func(name string) (time.Time, error) { return f.start(ctx, b.floorPod(name)) },
	)
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
	_, err = b.each(
		ctx,
		b.o.burst,
		"floor",
		func(name string) (time.Time, error) { return time.Now(), f.remove(ctx, name) },
	)
	return err
}

// floorRun creates pods with CRI calls only, with the configuration that an agent would send for the same pod.
type floorRun struct {
	rt   runtimeapi.RuntimeServiceClient
	node *spec.Node
	ids  sync.Map // name → [2]string{sandbox, container}
}

// floorNode has the facts of the node that the runtime gets. dir holds what an agent keeps in its own directories.
func (b *bench) floorNode(dir string) *spec.Node {
	return &spec.Node{
		HostIPs:    []string{b.node.IP},
		PodLogsDir: filepath.Join(dir, "logs"),
		PodsDir:    filepath.Join(dir, "pods"),
		NodeDNS:    spec.NodeDNS{ClusterDNS: []string{"10.96.0.10"}, ClusterDomain: "cluster.local"},
		Limits:     spec.Limits{CPUCFSQuota: true},
		Cgroups:    spec.Cgroups{Root: filepath.Join(b.node.CgroupRoot, "floor")},
	}
}

// config returns what the runtime gets about a pod with one container. The files that the container mounts are made
// here: that is not the runtime's work, and takes no time to speak of.
func (f *floorRun) config(pod *corev1.Pod) (*runtimeapi.PodSandboxConfig, *runtimeapi.ContainerConfig, error) {
	box, _, err := spec.Sandbox(&spec.SandboxInput{Node: f.node, Pod: pod})
	if err != nil {
		return nil, nil, err
	}
	c := &pod.Spec.Containers[0]
	made, err := spec.Container(&spec.ContainerInput{Node: f.node, Pod: pod, Container: c, PodIPs: []string{"10.244.0.2"},
		Image: spec.Image{Ref: c.Image}})
	if err != nil {
		return nil, nil, err
	}
	for _, m := range made.Mounts {
		if err := errors.Join(os.MkdirAll(filepath.Dir(m.HostPath), 0o755),
			os.WriteFile(m.HostPath, nil, 0o666)); err != nil {
			return nil, nil, err
		}
	}
	return box, made, os.MkdirAll(filepath.Join(box.LogDirectory, c.Name), 0o755)
}

func (f *floorRun) start(ctx context.Context, pod *corev1.Pod) (time.Time, error) {
	boxConfig, config, err := f.config(pod)
	if err != nil {
		return time.Time{}, err
	}
	box, err := f.rt.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: boxConfig})
	if err != nil {
		return time.Time{}, err
	}
	made, err := f.rt.CreateContainer(
		ctx,
		&runtimeapi.CreateContainerRequest{PodSandboxId: box.PodSandboxId, SandboxConfig: boxConfig,
			Config: config},
	)
	if err != nil {
		return time.Time{}, err
	}
	f.ids.Store(pod.Name, [2]string{box.PodSandboxId, made.ContainerId})
	_, err = f.rt.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: made.ContainerId})
	return time.Now(), err
}

func (f *floorRun) stop(ctx context.Context, name string) error {
	ids, ok := f.ids.Load(name)
	if !ok {
		return errors.New("no such pod: " + name)
	}
	id := ids.([2]string)
	_, err := f.rt.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: id[1], Timeout: grace})
	if err != nil {
		return err
	}
	_, err = f.rt.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: id[0]})
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
