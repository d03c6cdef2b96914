package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/nodelet/nodelet/test/csi/fake"
)

// The loads of the storage benchmark.
const (
	objectPods = 40 // each with objectMaps ConfigMaps and objectSecrets Secrets of its own
	claimPods  = 20 // each with a claim of its own

	objectMaps    = 3
	objectSecrets = 2

	storageDriver = "bench.csi.nodelet.test"
)

// settleTime is the pause before a burst: the agent has then sent what it had to about earlier pods, and the requests
// that it may make at once are unused again.
const settleTime = 6 * time.Second

// lookAtMany is how often the volumes of each of many pods are looked at. One pod's are looked at each millisecond;
// for many that would take a good part of a CPU from the agent.
const lookAtMany = 10 * time.Millisecond

// volumeRun measures how soon the volumes of pods are ready.
type volumeRun struct{ *bench }

// storage measures how long after a pod was created on the node its volumes are ready, on each side.
//
// It looks from outside, and alike on both sides: at the directories in which every agent of this kind sets volumes
// up. The agents' own words would not compare, since the kubelet makes the sandbox after the volumes and nodelet
// beside them. A projected volume, ConfigMap or Secret is ready when its link ..data is there, which is the last act
// of writing it; a CSI volume when its directory is a mount point. The pods are created already bound, so a pod is
// scheduled when a watch on the pods of the node first tells of it, which is when an agent can know.
func (b *volumeRun) storage(ctx context.Context) (err error) {
	driver, err := b.startDriver()
	if err != nil {
		return err
	}
	defer driver.Close()
	if err := b.storageObjects(ctx, driver); err != nil {
		return fmt.Errorf("make the objects that pods use: %w", err)
	}
	return b.onAgents(ctx, b.storageOf, nil)
}

func (b *volumeRun) storageOf(ctx context.Context, side string) error {
	if err := b.waitDriver(ctx); err != nil {
		return err
	}
	for i := range b.o.single + 1 {
		if err := pause(ctx, alone); err != nil {
			return err
		}
		times, err := b.volumesOf(ctx, []*corev1.Pod{b.pod("token")})
		if err != nil {
			return err
		}
		if i > 0 { // the first warms up
			b.noteTimes(side, "token alone", times)
		}
	}
	for _, load := range []struct {
		what string
		pods []*corev1.Pod
	}{
		{fmt.Sprintf("%d pods with %d ConfigMaps and %d Secrets", objectPods, objectMaps, objectSecrets),
			b.podsWith(objectPods, b.objectVolumes)},
		{fmt.Sprintf("%d pods with CSI claims", claimPods), b.podsWith(claimPods, claimVolumes)},
	} {
		if err := pause(ctx, settleTime); err != nil {
			return err
		}
		times, err := b.volumesOf(ctx, load.pods)
		if err != nil {
			return fmt.Errorf("%s: %w", load.what, err)
		}
		b.noteTimes(side, load.what, times)
	}
	return nil
}

// volumeTimes is how long after its creation was asked for a pod was scheduled, its volumes were ready, and it was
// Ready.
type volumeTimes struct{ scheduled, volumes, ready time.Duration }

// noteTimes notes the times of the pods of one load.
func (b *volumeRun) noteTimes(side, what string, times []volumeTimes) {
	first, last := times[0].scheduled, time.Duration(0)
	for _, l := range times {
		b.note(side, "create to scheduled, "+what+", ms", ms(l.scheduled))
		b.note(side, "scheduled to volumes ready, "+what+", ms", ms(l.volumes-l.scheduled))
		b.note(side, "create to Ready, "+what+", ms", ms(l.ready))
		first, last = min(first, l.scheduled), max(last, l.volumes)
	}
	if len(times) > 1 {
		b.note(side, "first scheduled to all volumes ready, "+what+", ms", ms(last-first))
	}
}

// volumesOf creates, watches and deletes pods, all at once.
func (b *volumeRun) volumesOf(ctx context.Context, pods []*corev1.Pod) ([]volumeTimes, error) {
	f, err := b.follow(ctx)
	if err != nil {
		return nil, err
	}
	defer f.stop()
	times, errs := make([]volumeTimes, len(pods)), make([]error, len(pods))
	each := func(do func(i int) error) error {
		var all sync.WaitGroup
		for i := range pods {
			all.Go(func() { errs[i] = do(i) })
		}
		all.Wait()
		return errors.Join(errs...)
	}
	look := time.Millisecond
	if len(pods) > 1 {
		look = lookAtMany
	}
	err = each(func(i int) (err error) {
		began := time.Now()
		if times[i], err = b.createAndWatch(ctx, pods[i], look); err != nil {
			return err
		}
		seen, err := f.wait(ctx, "seen", f.seen, pods[i].Name)
		if err != nil {
			return err
		}
		ready, err := f.wait(ctx, "Ready", f.ready, pods[i].Name)
		times[i].scheduled, times[i].ready = seen.Sub(began), ready.Sub(began)
		return err
	})
	if err != nil {
		return nil, err
	}
	return times, each(func(i int) error {
		if err := b.delete(ctx, pods[i].Name); err != nil {
			return err
		}
		_, err := f.wait(ctx, "gone", f.gone, pods[i].Name)
		return err
	})
}

// createAndWatch creates a pod and looks again and again for what is still missing of its volumes.
func (b *volumeRun) createAndWatch(ctx context.Context, pod *corev1.Pod, look time.Duration) (
	l volumeTimes, err error) {
	began, made := time.Now(), &corev1.Pod{}
	if err := b.api.Core.Post().Namespace(namespace).Resource("pods").Body(pod).Do(ctx).Into(made); err != nil {
		return l, err
	}
	volumes := filepath.Join(b.node.RootDir, "pods", string(made.UID), "volumes")
	for i := range made.Spec.Volumes {
		v := &made.Spec.Volumes[i]
		for !volumeReady(volumes, v) {
			if time.Since(began) > podLimit {
				return l, fmt.Errorf("volume %s of pod %s is not ready after %s", v.Name, pod.Name, podLimit)
			}
			if err := pause(ctx, look); err != nil {
				return l, err
			}
		}
	}
	l.volumes = time.Since(began)
	return l, nil
}

func volumeReady(volumes string, v *corev1.Volume) bool {
	written := func(plugin string) bool {
		_, err := os.Stat(filepath.Join(volumes, plugin, v.Name, "..data"))
		return err == nil
	}
	switch {
	case v.Projected != nil:
		return written("kubernetes.io~projected")
	case v.ConfigMap != nil:
		return written("kubernetes.io~configmap")
	case v.Secret != nil:
		return written("kubernetes.io~secret")
	}
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD,
		filepath.Join(volumes, "kubernetes.io~csi", v.PersistentVolumeClaim.ClaimName, "mount"), 0, 0, &st)
	return err == nil && st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}

func (b *volumeRun) podsWith(n int, volumes func(i int) []corev1.Volume) []*corev1.Pod {
	all := make([]*corev1.Pod, n)
	for i := range all {
		all[i] = b.pod(fmt.Sprintf("stored-%d", i))
		all[i].Spec.Volumes = volumes(i)
		for _, v := range all[i].Spec.Volumes {
			c := &all[i].Spec.Containers[0]
			c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: v.Name, MountPath: "/" + v.Name})
		}
	}
	return all
}

func (b *volumeRun) objectVolumes(i int) (all []corev1.Volume) {
	for k := range objectMaps {
		name := fmt.Sprintf("map-%d-%d", i, k)
		all = append(all, corev1.Volume{
			Name: name,
			VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
				LocalObjectReference: corev1.LocalObjectReference{Name: name}}},
		})
	}
	for k := range objectSecrets {
		name := fmt.Sprintf("secret-%d-%d", i, k)
		all = append(all, corev1.Volume{
			Name:         name,
			VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: name}},
		})
	}
	return all
}

// claimVolumes is the claim of a pod; it has the name of its PersistentVolume.
func claimVolumes(i int) []corev1.Volume {
	return []corev1.Volume{{
		Name: "claim",
		VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claimName(i)},
		},
	}}
}

func claimName(i int) string { return fmt.Sprintf("claim-%d", i) }

// startDriver serves CSI to either agent. Its volumes are plain directories that need no attaching: what is measured
// is the agent, not mkfs and not the controllers of the control plane.
func (b *volumeRun) startDriver() (*fake.Driver, error) {
	return fake.Start(fake.Config{
		Name:     storageDriver,
		NodeID:   b.node.Name,
		State:    filepath.Join(filepath.Dir(b.node.RootDir), "csi-state"),
		Socket:   filepath.Join(b.node.RootDir, "plugins", storageDriver, "csi.sock"),
		Registry: filepath.Join(b.node.RootDir, "plugins_registry"),
	})
}

func (b *volumeRun) waitDriver(ctx context.Context) error {
	for began := time.Now(); ; {
		n := &storagev1.CSINode{}
		err := b.api.Storage.Get().Resource("csinodes").Name(b.node.Name).Do(ctx).Into(n)
		if err == nil && len(n.Spec.Drivers) > 0 {
			return nil
		}
		if time.Since(began) > podLimit {
			return fmt.Errorf("the agent has not taken the CSI driver on after %s: %v", podLimit, err)
		}
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
}
