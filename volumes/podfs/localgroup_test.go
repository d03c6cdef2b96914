package podfs

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/kube/pluginname"
)

// TestLocalGroupOnce checks that a pod's fsGroup is applied to a local volume once, when it is mounted: the modes that
// the pod gives its files later stay, also after a restart of the agent. What was interrupted is continued.
func TestLocalGroupOnce(t *testing.T) {
	t.Parallel()
	v := newVolumes(t)
	disk := t.TempDir()
	data := filepath.Join(disk, "data")
	if err := os.WriteFile(data, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	pod := testPod()
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: new(int64(4321))}
	p := persistent(pod, localOf(disk, nil))
	mount := func(v *FS) {
		t.Helper()
		if _, err := v.MountPersistent(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	mount(v)
	if st := statPath(t, data); st.Gid != 4321 || st.Mode&0o777 != 0o660 {
		t.Errorf("got group %d and mode %o, want 4321 and 660", st.Gid, st.Mode&0o777)
	}
	if err := os.Chmod(data, 0o600); err != nil { // as a database or an SSH server demands
		t.Fatal(err)
	}
	mount(v)
	restarted, err := New(Config{Root: filepath.Dir(v.podsDir), Log: v.log})
	if err != nil {
		t.Fatal(err)
	}
	mount(restarted)
	if mode := statPath(t, data).Mode & 0o777; mode != 0o600 {
		t.Errorf("after a refresh got mode %o, want 600, as the pod has set it", mode)
	}
	unmountLocal(t, v, pod.UID)

	mountInterrupted(t, v, p)
	mount(restarted)
	if mode := statPath(t, data).Mode & 0o777; mode != 0o660 {
		t.Errorf("after an interrupted attempt got mode %o, want 660", mode)
	}
	unmountLocal(t, v, pod.UID)
}

// endsWhen is a context that ends when over returns true.
type endsWhen struct {
	context.Context
	over func() bool
}

func (c endsWhen) Err() error {
	if c.over() {
		return context.Canceled
	}
	return nil
}

// mountInterrupted mounts a local volume, and is interrupted while its files are given to the pod's fsGroup.
func mountInterrupted(t *testing.T, v *FS, p Persistent) {
	t.Helper()
	on := OnDisk{pluginname.Local, p.PV.Name}
	mark := filepath.Join(v.podsDir, string(p.Pod.UID), on.marksDir(), groupMark)
	begun := func() bool {
		_, err := os.Lstat(mark)
		return err == nil
	}
	if _, err := v.MountPersistent(endsWhen{t.Context(), begun}, p); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v from an attempt that was interrupted, want %v", err, context.Canceled)
	}
}

// TestLocalGroupAfterFirstPod checks that the files of a local volume get the fsGroup although the first pod ends while
// they are changed: the other pods that use the volume go on with it.
func TestLocalGroupAfterFirstPod(t *testing.T) {
	t.Parallel()
	v := newVolumes(t)
	disk := t.TempDir()
	data := filepath.Join(disk, "data")
	if err := os.WriteFile(data, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var all []Persistent
	for _, uid := range []types.UID{"first", "reader", "second"} {
		pod := testPod()
		pod.UID = uid
		pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: new(int64(4321))}
		p := persistent(pod, localOf(disk, nil))
		p.ReadOnly = uid == "reader"
		all = append(all, p)
	}
	first, others := all[0], all[1:]
	mountOthers := func() {
		t.Helper()
		for _, p := range others {
			if _, err := v.MountPersistent(t.Context(), p); err != nil {
				t.Fatal(err)
			}
		}
	}
	mountInterrupted(t, v, first)
	mountOthers()
	unmountLocal(t, v, first.Pod.UID)
	mountOthers()
	if st := statPath(t, data); st.Gid != 4321 || st.Mode&0o777 != 0o660 {
		t.Errorf("after the first pod got group %d and mode %o, want 4321 and 660", st.Gid, st.Mode&0o777)
	}
	if err := os.Chmod(data, 0o600); err != nil {
		t.Fatal(err)
	}
	unmountLocal(t, v, "reader")
	others = others[1:]
	mountOthers()
	if mode := statPath(t, data).Mode & 0o777; mode != 0o600 {
		t.Errorf("after a later refresh got mode %o, want 600, as the pod has set it", mode)
	}
	unmountLocal(t, v, "second")
}
