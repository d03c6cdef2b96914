package podfs

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nodelet/nodelet/host/mounts"
	"github.com/nodelet/nodelet/kube/pluginname"
)

func emptyDir(medium corev1.StorageMedium) corev1.VolumeSource {
	return corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: medium}}
}

func TestEmptyDir(t *testing.T) {
	t.Parallel()
	for _, medium := range []corev1.StorageMedium{corev1.StorageMediumDefault, corev1.StorageMediumMemory} {
		t.Run("medium "+string(medium), func(t *testing.T) {
			t.Parallel()
			v, pod := newVolumes(t), testPod()
			r := request(pod, "scratch", emptyDir(medium))
			m := mustMount(t, v, r, nil)
			want := Mounted{HostPath: filepath.Join(v.podsDir, string(pod.UID), "volumes/kubernetes.io~empty-dir/scratch"),
				MountPoint: medium == corev1.StorageMediumMemory, SELinuxRelabel: true}
			if m != want {
				t.Errorf("got %+v, want %+v", m, want)
			}
			if got := isMountPoint(t, m.HostPath); got != want.MountPoint {
				t.Errorf("mount point: got %v, want %v", got, want.MountPoint)
			}
			if mode := statPath(t, m.HostPath).Mode & 0o777; mode != 0o777 {
				t.Errorf("mode: got %o, want 777", mode)
			}
			ready := filepath.Join(v.podsDir, string(pod.UID), "plugins/kubernetes.io~empty-dir/scratch/ready")
			if !statIsRegular(t, ready) {
				t.Error("the ready file where the kubelet looks for it: got none, want one")
			}
			// What containers do with it stays.
			if err := os.Chmod(m.HostPath, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(m.HostPath, "f"), []byte("x"), 0o600); err != nil {
				t.Fatal(err)
			}
			if again := mustMount(t, v, r, nil); again != m {
				t.Errorf("second Mount: got %+v, want the same as before", again)
			}
			if !statIsRegular(t, filepath.Join(m.HostPath, "f")) {
				t.Error("the user's file after a second Mount: got none, want it")
			}
			if mode := statPath(t, m.HostPath).Mode & 0o777; mode != 0o700 {
				t.Errorf("mode: got %o, want the user's 700", mode)
			}
			if err := v.Unmount(t.Context(), pod.UID, OnDisk{pluginname.EmptyDir, "scratch"}); err != nil {
				t.Fatal(err)
			}
			for _, gone := range []string{m.HostPath, filepath.Dir(ready)} {
				if _, err := os.Lstat(gone); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("%s: got it left, want it removed", gone)
				}
			}
		})
	}
}

// TestEmptyDirMode checks that a mode that is given applies as it is, on a disk and in memory.
func TestEmptyDirMode(t *testing.T) {
	t.Parallel()
	for _, medium := range []corev1.StorageMedium{corev1.StorageMediumDefault, corev1.StorageMediumMemory} {
		for _, mode := range []int32{0, 0o700, 0o1770} {
			v, source := newVolumes(t), emptyDir(medium)
			source.EmptyDir.Mode = &mode
			m := mustMount(t, v, request(testPod(), "scratch", source), nil)
			if got := statPath(t, m.HostPath).Mode & 0o7777; got != uint32(mode) {
				t.Errorf("medium %q: got mode %o, want %o", medium, got, mode)
			}
		}
	}
}

func statIsRegular(t testing.TB, path string) bool {
	return statPath(t, path).Mode&unix.S_IFMT == unix.S_IFREG
}

// TestMemoryEmptyDirBusy checks that a process that has a volume in memory open does not keep its pod from ending.
func TestMemoryEmptyDirBusy(t *testing.T) {
	t.Parallel()
	v, pod := newVolumes(t), testPod()
	m := mustMount(t, v, request(pod, "scratch", emptyDir(corev1.StorageMediumMemory)), nil)
	dir, err := os.Open(m.HostPath)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if err := v.Unmount(t.Context(), pod.UID, OnDisk{pluginname.EmptyDir, "scratch"}); err != nil {
		t.Error(err)
	}
}

// TestMemoryEmptyDirAfterReboot checks that after a reboot, when the directories and notes are there, but no tmpfs, a
// volume is set up again, also if the first attempt is interrupted when the tmpfs is mounted.
func TestMemoryEmptyDirAfterReboot(t *testing.T) {
	t.Parallel()
	v, pod := newVolumes(t), testPod()
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: new(int64(3000))}
	r := request(pod, "scratch", emptyDir(corev1.StorageMediumMemory))
	m := mustMount(t, v, r, nil)
	// a child just forked by another test may hold it open
	if err := unix.Unmount(m.HostPath, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	mounted := func() bool { return mounts.At(m.HostPath) }
	if _, err := v.Mount(endsWhen{t.Context(), mounted}, r, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v from an attempt that was interrupted, want %v", err, context.Canceled)
	}
	m = mustMount(t, v, r, nil)
	if !isMountPoint(t, m.HostPath) {
		t.Error("got a directory on disk, want a mount point")
	}
	if st := statPath(t, m.HostPath); st.Gid != 3000 || st.Mode&0o7777 != 0o3777 {
		t.Errorf("got group %d and mode %o, want 3000 and 3777", st.Gid, st.Mode&0o7777)
	}
}

// TestEmptyDirSetUpAgainAfterCrash checks a crash before the note was written: the set-up is done again, over what is
// there.
func TestEmptyDirSetUpAgainAfterCrash(t *testing.T) {
	t.Parallel()
	v, pod := newVolumes(t), testPod()
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: new(int64(3000))}
	dir := filepath.Join(v.podsDir, string(pod.UID), "volumes/kubernetes.io~empty-dir/scratch")
	if err := os.MkdirAll(filepath.Join(dir, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	m := mustMount(t, v, request(pod, "scratch", emptyDir("")), nil)
	for path, mode := range map[string]uint32{".": 0o2777, "sub": 0o2770} {
		if st := statPath(t, filepath.Join(m.HostPath, path)); st.Gid != 3000 || st.Mode&0o7777 != mode {
			t.Errorf("%s: got group %d mode %o, want 3000 %o", path, st.Gid, st.Mode&0o7777, mode)
		}
	}
}

func TestMemorySize(t *testing.T) {
	t.Parallel()
	limit := func(s string) corev1.ResourceRequirements {
		if s == "" {
			return corev1.ResourceRequirements{}
		}
		return corev1.ResourceRequirements{Limits: corev1.ResourceList{"memory": resource.MustParse(s)}}
	}
	tests := map[string]struct {
		allocatable, volume, pod string
		containers               []string
		want                     int64
	}{
		"nothing known":                  {containers: []string{""}, want: 0},
		"node":                           {allocatable: "8Mi", containers: []string{""}, want: 8 << 20},
		"volume":                         {allocatable: "8Mi", volume: "2Mi", containers: []string{""}, want: 2 << 20},
		"volume larger than node":        {allocatable: "8Mi", volume: "9Mi", containers: []string{""}, want: 8 << 20},
		"containers":                     {allocatable: "8Mi", containers: []string{"1Mi", "2Mi"}, want: 3 << 20},
		"one container without limit":    {allocatable: "8Mi", containers: []string{"1Mi", ""}, want: 8 << 20},
		"pod":                            {allocatable: "8Mi", containers: []string{""}, pod: "5Mi", want: 5 << 20},
		"volume smaller than containers": {allocatable: "8Mi", volume: "1Mi", containers: []string{"2Mi"}, want: 1 << 20},
		"node unknown":                   {volume: "1Mi", containers: []string{"2Mi"}, want: 1 << 20},
		"volume zero":                    {allocatable: "8Mi", volume: "0", containers: []string{""}, want: 8 << 20},
		"volume of 2^64+1": {
			allocatable: "8Mi", volume: "18446744073709551617", containers: []string{""}, want: 8 << 20,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			pod := testPod()
			pod.Spec.Containers = nil
			for _, c := range tt.containers {
				pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Resources: limit(c)})
			}
			if tt.pod != "" {
				pod.Spec.Resources = new(limit(tt.pod))
			}
			var volume *resource.Quantity
			if tt.volume != "" {
				volume = new(resource.MustParse(tt.volume))
			}
			if got := memorySize(pod, limit(tt.allocatable).Limits, volume); got != tt.want {
				t.Errorf("got %d, want %d", got, tt.want)
			}
		})
	}
}

func TestMemoryEmptyDirSizeLimit(t *testing.T) {
	t.Parallel()
	v := newVolumes(t)
	source := emptyDir(corev1.StorageMediumMemory)
	source.EmptyDir.SizeLimit = new(resource.MustParse("1Mi"))
	m := mustMount(t, v, request(testPod(), "small", source), nil)
	err := os.WriteFile(filepath.Join(m.HostPath, "f"), make([]byte, 2<<20), 0o600)
	if !errors.Is(err, unix.ENOSPC) {
		t.Errorf("2 Mi into 1 Mi: got %v, want no space left", err)
	}
}

func TestHugePages(t *testing.T) {
	t.Parallel()
	v, pod := newVolumes(t), testPod()
	if raw, err := os.ReadFile("/proc/filesystems"); err != nil || !strings.Contains(string(raw), "hugetlbfs") {
		t.Skip("this kernel has no hugetlbfs")
	}
	if _, err := os.Stat("/sys/kernel/mm/hugepages/hugepages-2048kB"); err != nil {
		t.Skip("this machine has no huge pages of 2 Mi")
	}
	request2Mi := corev1.ResourceRequirements{Requests: corev1.ResourceList{"hugepages-2Mi": resource.MustParse("4Mi")}}
	pod.Spec.Containers[0].Resources = request2Mi
	for medium, limit := range map[corev1.StorageMedium]string{"HugePages": "0", "HugePages-2Mi": "5Mi"} {
		source, pages := emptyDir(medium), map[string]uint64{"5Mi": 2}[limit] // whole ones, as the usage must not exceed it
		source.EmptyDir.SizeLimit = new(resource.MustParse(limit))
		r := request(pod, strings.ToLower(string(medium)), source)
		m := mustMount(t, v, r, nil)
		var sfs unix.Statfs_t
		if err := unix.Statfs(m.HostPath, &sfs); err != nil || sfs.Type != unix.HUGETLBFS_MAGIC || sfs.Bsize != 2<<20 {
			t.Errorf("%s: got type %x, page size %d, %v, want hugetlbfs and 2 MiB", medium, sfs.Type, sfs.Bsize, err)
		}
		if sfs.Blocks != pages {
			t.Errorf("%s: got a limit of %d pages, want %d", medium, sfs.Blocks, pages)
		}
		if err := os.Chmod(m.HostPath, 0o700); err != nil {
			t.Error(err)
		}
		mustMount(t, v, r, nil)
		if mode := statPath(t, m.HostPath).Mode & 0o777; mode != 0o700 {
			t.Errorf("%s: second Mount: got mode %o, want the user's 700", medium, mode)
		}
		if err := v.Unmount(t.Context(), pod.UID, OnDisk{pluginname.EmptyDir, r.Volume.Name}); err != nil {
			t.Error(err)
		}
	}
}

// TestHugePagesOptions checks that the kernel gets a size that it can count.
func TestHugePagesOptions(t *testing.T) {
	t.Parallel()
	pod := testPod()
	pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"hugepages-2Mi": resource.MustParse("4Mi")}
	for limit, want := range map[string]string{
		"0":                   "pagesize=2097152",
		"5Mi":                 "pagesize=2097152,size=5242880",
		"9223372036854775808": "pagesize=2097152,size=9223372036854775807",
		"10E":                 "pagesize=2097152,size=9223372036854775807",
	} {
		source := emptyDir(corev1.StorageMediumHugePages).EmptyDir
		source.SizeLimit = new(resource.MustParse(limit))
		got, err := newVolumes(t).mediumFS(Request{Pod: pod}, source)
		if err != nil || got.options != want {
			t.Errorf("limit of %s: got %+v, %v, want options %s", limit, got, err, want)
		}
	}
}

func TestHugePageSize(t *testing.T) {
	t.Parallel()
	spec := func(sizes ...string) *corev1.PodSpec {
		s := &corev1.PodSpec{}
		for _, size := range sizes {
			s.Containers = append(s.Containers, corev1.Container{Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{
					corev1.ResourceName("hugepages-" + size): resource.MustParse("1Gi"),
					"cpu":                                    resource.MustParse("1"),
				}}})
		}
		return s
	}
	tests := []struct {
		medium corev1.StorageMedium
		spec   *corev1.PodSpec
		want   int64 // 0 is an error
	}{
		{"HugePages", spec("2Mi"), 2 << 20},
		{"HugePages", spec("2Mi", "2Mi"), 2 << 20},
		{"HugePages", spec("2Mi", "1Gi"), 0},
		{"HugePages", spec(), 0},
		{"HugePages-1Gi", spec("2Mi", "1Gi"), 1 << 30},
		{"HugePages-1Gi", spec("2Mi"), 0},
		{"HugePages-", spec("2Mi"), 0},
		{"HugePages-x", spec("2Mi"), 0},
	}
	for _, tt := range tests {
		got, err := hugePageSize(tt.medium, tt.spec)
		if got != tt.want || (err == nil) != (tt.want != 0) {
			t.Errorf("%s: got %d, %v, want %d", tt.medium, got, err, tt.want)
		}
	}
}

func TestUnknownMedium(t *testing.T) {
	t.Parallel()
	_, err := newVolumes(t).Mount(t.Context(), request(testPod(), "e", emptyDir("Floppy")), nil)
	if err == nil || !strings.Contains(err.Error(), `unknown storage medium "Floppy"`) {
		t.Errorf("got %v", err)
	}
}
