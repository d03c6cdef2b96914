package podfs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
)

// repeated returns objects with a value of size bytes, and the items that show it n times.
func repeated(size, n int) (*objects, []corev1.KeyToPath) {
	o := testObjects()
	o.secrets["shop/big"] = &corev1.Secret{Data: map[string][]byte{"big": make([]byte, size)}}
	o.configMaps["shop/big"] = &corev1.ConfigMap{BinaryData: map[string][]byte{"big": make([]byte, size)}}
	var items []corev1.KeyToPath
	for i := range n {
		items = append(items, corev1.KeyToPath{Key: "big", Path: fmt.Sprintf("d/%d", i)})
	}
	return o, items
}

func secretItems(items []corev1.KeyToPath) corev1.VolumeSource {
	return corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "big", Items: items}}
}

func configMapItems(items []corev1.KeyToPath) corev1.VolumeSource {
	s := configMapVolume("big")
	s.ConfigMap.Items = items
	return s
}

// TestMemoryThatHasGone checks that a volume in memory says that it is a mount, and no other, and that it is mounted
// again if its mount has gone: once, if several containers need it at the same moment.
func TestMemoryThatHasGone(t *testing.T) {
	t.Parallel()
	v, pod := newVolumes(t), testPod()
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: new(int64(3000))}
	secret := corev1.SecretVolumeSource{SecretName: "cred"}
	projected := corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{
		Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "cred"}}}}}
	downward := corev1.DownwardAPIVolumeSource{Items: []corev1.DownwardAPIVolumeFile{
		{Path: "name", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}}}
	for name, c := range map[string]struct {
		source     corev1.VolumeSource
		mountPoint bool
	}{
		"secret":    {corev1.VolumeSource{Secret: &secret}, true},
		"projected": {corev1.VolumeSource{Projected: &projected}, true},
		"downward":  {corev1.VolumeSource{DownwardAPI: &downward}, true},
		"memory":    {emptyDir(corev1.StorageMediumMemory), true},
		"configmap": {configMapVolume("cfg"), false},
		"scratch":   {emptyDir(""), false},
	} {
		r, o := request(pod, name, c.source), testObjects()
		m := mustMount(t, v, r, o)
		if m.MountPoint != c.mountPoint || isMountPoint(t, m.HostPath) != c.mountPoint {
			t.Errorf("%s: got %+v, a mount: %t, want a mount: %t", name, m, isMountPoint(t, m.HostPath), c.mountPoint)
		}
		if !c.mountPoint {
			continue
		}
		before := map[string]string{}
		walk(t, m.HostPath, "", before)
		// a child just forked by another test may hold it open
		if err := unix.Unmount(m.HostPath, unix.MNT_DETACH); err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				again, err := v.Mount(t.Context(), r, o)
				if err != nil || !again.MountPoint {
					t.Errorf("%s, again: got %+v, %v, want a mount", name, again, err)
				}
				if st := statPath(t, m.HostPath); st.Gid != 3000 {
					t.Errorf("%s, again: got group %d, want 3000 before a container starts", name, st.Gid)
				}
			})
		}
		all.Wait()
		wantFiles(t, m.HostPath, before)
		if err := unix.Unmount(m.HostPath, unix.MNT_DETACH); err != nil || isMountPoint(t, m.HostPath) {
			t.Errorf("%s: got unmount %v and a mount below: %t, want one mount", name, err, isMountPoint(t, m.HostPath))
		}
	}
}

// TestMemoryIsBounded checks that the volumes of a pod that are in memory are bounded together, and those on disk are
// not.
func TestMemoryIsBounded(t *testing.T) {
	t.Parallel()
	v, pod := newVolumes(t), testPod()
	o, items := repeated(1<<20, 34)
	projected := func(items []corev1.KeyToPath) corev1.VolumeSource {
		return corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{
			ConfigMap: &corev1.ConfigMapProjection{
				LocalObjectReference: corev1.LocalObjectReference{Name: "big"}, Items: items}}}}}
	}
	refused := func(name string, source corev1.VolumeSource, sum string) {
		t.Helper()
		_, err := v.Mount(t.Context(), request(pod, name, source), o)
		want := fmt.Sprintf(`MountVolume.SetUp failed for volume %q : write files: `+
			"the secret, projected and downwardAPI volumes of the pod would have %s with it, in memory, and may have 32Mi: "+
			"use a configMap volume, which is on disk, or an image or a PersistentVolumeClaim", name, sum)
		if err == nil || err.Error() != want {
			t.Errorf("got error %v\nwant %s", err, want)
		}
		dir := filepath.Join(v.podsDir, string(pod.UID), "volumes/kubernetes.io~secret", name)
		if left, _ := os.ReadDir(dir); len(left) > 0 {
			t.Errorf("%s: got %d entries, want nothing written", name, len(left))
		}
	}
	refused("alone", secretItems(items), "34855Ki")
	first := request(pod, "first", projected(items[:20]))
	mustMount(t, v, first, o)
	refused("second", secretItems(items[:20]), "41011Ki")
	mustMount(t, v, request(pod, "small", secretItems(items[:10])), o)
	mustMount(t, v, request(pod, "disk", configMapVolume("big")), o)

	other := pod.DeepCopy()
	other.UID = "another"
	mustMount(t, v, request(other, "second", secretItems(items[:20])), o)

	if err := v.Unmount(t.Context(), pod.UID, OnDisk{"kubernetes.io/projected", "first"}); err != nil {
		t.Fatal(err)
	}
	mustMount(t, v, request(pod, "second", secretItems(items[:20])), o)
}

// TestMemoryIsCheckedBeforeToken checks that no token is requested for a volume that may not have its other files: each
// retry would request one.
func TestMemoryIsCheckedBeforeToken(t *testing.T) {
	t.Parallel()
	v, pod := newVolumes(t), testPod()
	o, items := repeated(1<<20, 34)
	o.issue = issueAt(func() time.Time { return testNow })
	big := corev1.LocalObjectReference{Name: "big"}
	sources := []corev1.VolumeProjection{
		{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}},
		{Secret: &corev1.SecretProjection{LocalObjectReference: big, Items: items}},
	}
	r := request(pod, "vol", corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: sources}})
	if _, err := v.Mount(t.Context(), r, o); err == nil || !strings.Contains(err.Error(), "and may have 32Mi") {
		t.Errorf("got error %v, want one about the memory", err)
	}
	if o.tokens != 0 {
		t.Errorf("got %d tokens requested, want none", o.tokens)
	}
}

// TestMemoryOfDisk checks that a configMap volume may be larger: the kernel can write its pages to the disk.
func TestMemoryOfDisk(t *testing.T) {
	t.Parallel()
	o, items := repeated(1<<20, 33)
	mustMount(t, newVolumes(t), request(testPod(), "disk", configMapItems(items)), o)
}

// TestDiskIsBounded checks that nothing is written to a configMap volume with which those of the pod would have too
// much, and that a volume that has gone no longer counts.
func TestDiskIsBounded(t *testing.T) {
	t.Parallel()
	v, pod := newVolumes(t), testPod()
	o, items := repeated(16<<20, 16)
	mount := func(name string, n int) error {
		_, err := v.Mount(t.Context(), request(pod, name, configMapItems(items[:n])), o)
		return err
	}
	want := `MountVolume.SetUp failed for volume "all" : write files: ` +
		"the configMap volumes of the pod would have 262165Ki with it, and may have 256Mi: " +
		"use an image or a PersistentVolumeClaim"
	if err := mount("all", 16); err == nil || err.Error() != want {
		t.Errorf("got error %v\nwant %s", err, want)
	}
	dir := filepath.Join(v.podsDir, string(pod.UID), "volumes/kubernetes.io~configmap/all")
	if left, err := os.ReadDir(dir); len(left) > 0 || err != nil {
		t.Errorf("got %d entries, %v, want nothing written", len(left), err)
	}
	for range 2 { // the same again counts once
		if err := mount("one", 1); err != nil {
			t.Error(err)
		}
		o.configMaps["shop/big"].BinaryData["big"][0]++
	}
	if err := mount("others", 15); err == nil {
		t.Error("more than what is left: got no error, want one")
	}
	if err := v.Unmount(t.Context(), pod.UID, OnDisk{"kubernetes.io/configmap", "one"}); err != nil {
		t.Fatal(err)
	}
	if len(v.onDisk.pods) != 0 {
		t.Errorf("got %v, want nothing that is remembered", v.onDisk.pods)
	}
	if err := mount("others", 1); err != nil {
		t.Error(err)
	}
}

// deep returns n paths with so many directories.
func deep(n, levels int) (paths []string) {
	for i := range n {
		paths = append(paths, fmt.Sprintf("%d%s", i, strings.Repeat("/d", levels-1)))
	}
	return paths
}

// TestMountPointsAreBounded checks that directories on which other volumes are mounted count like files, in memory and
// on disk, and that a path which no container could open makes none.
func TestMountPointsAreBounded(t *testing.T) {
	t.Parallel()
	o, _ := repeated(1, 0)
	mount := func(source corev1.VolumeSource, paths []string) (entries int, err error) {
		v, pod := newVolumes(t), testPod()
		mounts := []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
		for _, path := range paths {
			mounts = append(mounts, corev1.VolumeMount{Name: "other", MountPath: "/v/" + path})
		}
		for _, name := range []string{"one", "two"} { // what both mount counts once
			pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: name, VolumeMounts: mounts})
		}
		m, err := v.Mount(t.Context(), request(pod, "v", source), o)
		if err == nil {
			before := shown(t, m)
			m, err = v.Mount(t.Context(), request(pod, "v", source), o)
			if shown(t, m) != before {
				t.Error("the same again: got that it changed, want that it did not")
			}
		}
		for _, plugin := range []string{"secret", "configmap"} {
			left, _ := os.ReadDir(filepath.Join(v.podsDir, string(pod.UID), "volumes/kubernetes.io~"+plugin, "v"))
			entries += len(left)
		}
		return entries, err
	}
	for _, c := range []struct {
		name     string
		source   corev1.VolumeSource
		tooMany  int
		complain string
	}{
		{"in memory", secretItems(nil), 9, "may have 32Mi"},
		{"on disk", configMapItems(nil), 66, "may have 256Mi"},
	} {
		if n, err := mount(c.source, deep(1, 1000)); n != 4 || err != nil {
			t.Fatalf("%s, 1000 directories: got %d entries and error %v, want 4 entries", c.name, n, err)
		}
		n, err := mount(c.source, deep(c.tooMany, 1000))
		if n != 0 || err == nil || !strings.Contains(err.Error(), c.complain) {
			t.Fatalf("%s, %d000 directories: got %d entries and error %v, want %s", c.name, c.tooMany, n, err, c.complain)
		}
		if n, err = mount(c.source, deep(1, 4000)); n != 0 || !errors.Is(err, unix.ENAMETOOLONG) {
			t.Fatalf("%s, a path that is too long: got %d entries and error %v, want ENAMETOOLONG", c.name, n, err)
		}
	}
}

// TestSubpathsInMemoryAreBounded checks that the directories that the agent makes for the subPaths of a pod are bounded
// where they are in memory, and count once. Those on disk are the pod's.
func TestSubpathsInMemoryAreBounded(t *testing.T) {
	t.Parallel()
	v, pod := newVolumes(t), testPod()
	memory := mustMount(t, v, request(pod, "memory", emptyDir(corev1.StorageMediumMemory)), nil)
	disk := mustMount(t, v, request(pod, "disk", emptyDir("")), nil)
	part := func(volume, host string, index int) error {
		path := fmt.Sprintf("%d%s", index, strings.Repeat("/d", 1023))
		_, err := v.Subpath(t.Context(), SubPath{PodUID: pod.UID, Container: "main", Volume: volume, Mount: volume,
			Index: index, HostPath: host, Path: path})
		return err
	}
	for i := range 8 {
		if err := part("memory", memory.HostPath, i); err != nil {
			t.Fatalf("part %d: %v", i, err)
		}
	}
	if err := part("memory", memory.HostPath, 8); err == nil {
		t.Error("part 8: got no error, want one")
	}
	if err := os.RemoveAll(filepath.Join(memory.HostPath, "0")); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(part("memory", memory.HostPath, 0), part("disk", disk.HostPath, 8)); err != nil {
		t.Errorf("a part that is made again, and one on disk: %v", err)
	}
	if err := v.Unmount(t.Context(), pod.UID, OnDisk{"kubernetes.io/empty-dir", "memory"}); err != nil {
		t.Fatal(err)
	}
	if len(v.made.pods) != 0 {
		t.Errorf("got %v, want nothing that is remembered", v.made.pods)
	}
}

// TestMemoryOfUnchangedVolume checks that a volume that needs no update is not refused, whatever it has.
func TestMemoryOfUnchangedVolume(t *testing.T) {
	t.Parallel()
	v, pod := newVolumes(t), testPod()
	o, items := repeated(1<<20, 2)
	r := request(pod, "vol", secretItems(items))
	m := mustMount(t, v, r, o)
	full := request(pod, "full", corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "cred"}})
	path := mustMount(t, v, full, o).HostPath
	if err := os.WriteFile(filepath.Join(path, "more"), make([]byte, maxInMemory), 0o600); err != nil {
		t.Fatal(err)
	}
	mustMount(t, v, r, o)
	o.secrets["shop/big"].Data["big"] = make([]byte, 1)
	if _, err := v.Mount(t.Context(), r, o); err == nil {
		t.Error("an update: got no error, want one")
	}
	wantFiles(t, m.HostPath, map[string]string{
		"d/0": string(make([]byte, 1<<20)), "d/1": string(make([]byte, 1<<20))})
}

// TestMemoryIsBoundedAtOnce checks that volumes that are mounted at the same time count for each other.
func TestMemoryIsBoundedAtOnce(t *testing.T) {
	t.Parallel()
	v, pod := newVolumes(t), testPod()
	v.writers = make(chan struct{}, 8)
	o, items := repeated(1<<20, 12)
	var all sync.WaitGroup
	mounted := make(chan bool, cap(v.writers))
	for i := range cap(mounted) {
		all.Go(func() {
			_, err := v.Mount(t.Context(), request(pod, fmt.Sprintf("v%d", i), secretItems(items)), o)
			mounted <- err == nil
		})
	}
	all.Wait()
	close(mounted)
	n := 0
	for ok := range mounted {
		if ok {
			n++
		}
	}
	if n != 2 {
		t.Errorf("got %d volumes of 12 MiB, want 2", n)
	}
}

// mebibytes returns objects, and a function that mounts a volume with n MiB of them for a pod.
func mebibytes(t *testing.T, v *FS) (o *objects, mount func(uid types.UID, name string, n int) error) {
	o, items := repeated(1<<20, 8)
	return o, func(uid types.UID, name string, n int) error {
		pod := testPod()
		pod.UID = uid
		_, err := v.Mount(t.Context(), request(pod, name, secretItems(items[:n])), o)
		return err
	}
}

// TestMemoryOfNodeIsBounded checks that the volumes in memory of all pods are bounded together, and that pods with
// little in memory start nevertheless.
func TestMemoryOfNodeIsBounded(t *testing.T) {
	t.Parallel()
	v := newVolumes(t)
	v.memory = 8 << 20
	o, mount := mebibytes(t, v)
	for _, little := range []types.UID{"l1", "l2", "l3", "l4", "l5"} {
		if err := mount(little, "vol", 1); err != nil {
			t.Errorf("pod with little, before: %v", err)
		}
	}
	if err := mount("first", "vol", 6); err != nil {
		t.Error(err)
	}
	want := `MountVolume.SetUp failed for volume "vol" : write files: ` +
		"the secret, projected and downwardAPI volumes of the pod would have 3080Ki with it, in memory. " +
		"Other pods with more than 2Mi have 6155Ki, and all these pods may have 8Mi: " +
		"use a configMap volume, which is on disk, or an image or a PersistentVolumeClaim"
	if err := mount("second", "vol", 3); err == nil || err.Error() != want {
		t.Errorf("got error %v\nwant %s", err, want)
	}
	if err := mount("l6", "vol", 1); err != nil {
		t.Errorf("pod with little, after: %v", err)
	}
	v.memory = 1 << 20
	o.secrets["shop/big"].Data["big"][0]++
	if err := mount("first", "vol", 6); err != nil {
		t.Errorf("an update that takes no more: %v", err)
	}
	v.memory = 8 << 20
	if err := mount("l6", "more", 1); err == nil {
		t.Error("a pod that no longer has little: got no error, want one")
	}
	if err := v.Unmount(t.Context(), "first", OnDisk{"kubernetes.io/secret", "vol"}); err != nil {
		t.Fatal(err)
	}
	if err := mount("second", "vol", 3); err != nil {
		t.Error(err)
	}
}

// TestMemoryForUpdates checks that new volumes in memory leave some of it to updates of others, which grow a little,
// such as by a new certificate.
func TestMemoryForUpdates(t *testing.T) {
	t.Parallel()
	v := newVolumes(t)
	v.memory = 8 << 20
	_, mount := mebibytes(t, v)
	for _, uid := range []types.UID{"first", "second"} {
		if err := mount(uid, "vol", 3); err != nil {
			t.Error(err)
		}
	}
	if err := mount("second", "vol", 6); err != nil {
		t.Errorf("an update: %v", err)
	}
	if err := mount("third", "vol", 3); err == nil || !strings.Contains(err.Error(), "may have 8Mi") {
		t.Errorf("a new pod: got error %v, want that all may have 8Mi", err)
	}
	if err := mount("second", "vol", 8); err == nil || !strings.Contains(err.Error(), "may have 10Mi") {
		t.Errorf("an update that grows much: got error %v, want that all may have 10Mi", err)
	}
}

// TestMemoryOfPayload checks that small files, directories and links count with what the kernel needs for them, as much
// as they have once they are written.
func TestMemoryOfPayload(t *testing.T) {
	t.Parallel()
	v := newVolumes(t)
	for name, want := range map[string]payload{
		"empty":       files(),
		"small":       files("a", "1", "b", "2"),
		"no bytes":    files("a", "", "b", ""),
		"directories": files("a/b/c/d", "1", "a/b/e", "2", "f", "3"),
		"pages":       files("a", strings.Repeat("x", 5000)),
	} {
		t.Run(name, func(t *testing.T) {
			pod, err := v.makePod(testPod().UID)
			if err != nil {
				t.Fatal(err)
			}
			defer pod.Close()
			dir, _, err := makeMounted(pod, "volumes/"+name, *v.tmpfs(0))
			if err != nil {
				t.Fatal(err)
			}
			defer dir.Close()
			a, err := openAtomic(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer a.root.Close()
			a.mustWrite(t, want)
			if got, err := usedMemory(dir); got != want.size() || err != nil {
				t.Errorf("got %d, %v, want %d", got, err, want.size())
			}
		})
	}
}

// TestUnfinishedUpdateIsRemovedFirst checks that what a killed run of the agent has written is gone before the files
// are written again: it may fill the volume.
func TestUnfinishedUpdateIsRemovedFirst(t *testing.T) {
	t.Parallel()
	v, pod := newVolumes(t), testPod()
	o, items := repeated(600<<10, 1)
	r := request(pod, "vol", secretItems(items))
	r.Allocatable = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Mi")}
	o.secrets["shop/big"].Data["big"] = []byte("old")
	m := mustMount(t, v, r, o)
	left := filepath.Join(m.HostPath, "..2026_01_01_00_00_00.000000001")
	if err := errors.Join(os.Mkdir(left, 0o755),
		os.WriteFile(filepath.Join(left, "part"), make([]byte, 900<<10), 0o600)); err != nil {
		t.Fatal(err)
	}
	o.secrets["shop/big"].Data["big"] = make([]byte, 600<<10)
	mustMount(t, v, r, o)
	wantTidy(t, m.HostPath)
}

// TestStopEndsWrite checks that no more files are written once the agent stops.
func TestStopEndsWrite(t *testing.T) {
	t.Parallel()
	a, path := openTestDir(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := a.write(ctx, files("a", "1"), testNow, ownNothing); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
	if left, err := os.ReadDir(path); len(left) > 0 || err != nil {
		t.Errorf("got %v, %v, want nothing", left, err)
	}
}
