package usage

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/internal/latest"
	"github.com/nodelet/nodelet/test/ownmounts"
	"github.com/nodelet/nodelet/test/waittest"
)

// TestWalkLeavesMountsOut checks that mounts below a volume are not counted, also if they are on the same device.
func TestWalkLeavesMountsOut(t *testing.T) {
	w := newWorld(t, true)
	data := filepath.Join(w.root, "pods/u1/volumes/kubernetes.io~empty-dir/data")
	mounted := filepath.Join(data, "below/mounted")
	if err := os.Mkdir(mounted, 0o755); err != nil {
		t.Fatal(err)
	}
	want := diskUse(t, w.root, "pods/u1/volumes/kubernetes.io~empty-dir/data")
	want.Inodes-- // the directory below the mount
	if st, err := os.Stat(mounted); err == nil {
		want.Bytes -= uint64(st.Sys().(*syscall.Stat_t).Blocks) * 512
	}
	ownmounts.Need(t, "mounts", unix.Mount(filepath.Join(w.root, "elsewhere"), mounted, "", unix.MS_BIND, ""))
	t.Cleanup(func() {
		if err := unix.Unmount(mounted, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	if got := diskUse(t, w.root, "pods/u1/volumes/kubernetes.io~empty-dir/data"); got != want {
		t.Errorf("with a mounted directory: got %+v, want %+v", got, want)
	}
}

// TestMeasuresWhatComesLater checks that a directory which did not exist at the first request is measured when it
// exists.
func TestMeasuresWhatComesLater(t *testing.T) {
	w := newWorld(t, true)
	pod := w.pod(t)
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "late",
		VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
	synctest.Test(t, func(t *testing.T) {
		late := func() uint64 {
			all, err := w.Local(t.Context(), []*corev1.Pod{pod}, time.Second, nil)
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			return all[0].Volumes["late"].Bytes
		}
		late()
		tree(t, w.root, map[string]string{"pods/u1/volumes/kubernetes.io~empty-dir/late/file": strings.Repeat("x", 10000)})
		time.Sleep(2 * time.Minute)
		late()
		if got := late(); got < 10000 {
			t.Errorf("a directory that came later: got %d bytes, want at least 10000", got)
		}
	})
}

// TestWalkIsBounded checks that a walk ends at its limits of time and entries, and that files with too many hard
// links to remember are counted in parts.
func TestWalkIsBounded(t *testing.T) {
	root := t.TempDir()
	for i := range 3 * walkChunk {
		tree(t, root, map[string]string{fmt.Sprintf("dir/%04d", i): ""})
	}
	if got, err := walk(place{base: root, below: "dir"}, time.Now()); !errors.Is(err, errCut) || got.Inodes != 1 {
		t.Errorf("without any time: got %+v, %v; want the directory alone and %v", got, err, errCut)
	}
	dir, err := os.Open(filepath.Join(root, "dir"))
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	st, err := statAt(int(dir.Fd()), "")
	if err != nil {
		t.Fatal(err)
	}
	for want, w := range map[uint64]walker{100: {left: 100}, 0: {left: walkEntries, depth: walkDepth}} {
		w.until, w.device = time.Now().Add(walkTime), deviceOf(st)
		w.linked = map[uint64]bool{}
		if w.directory(dir, "."); w.sum.Inodes != want || !w.cut {
			t.Errorf("got %d inodes, cut %t, want %d and true", w.sum.Inodes, w.cut, want)
		}
	}
}

// TestDeepFilesCount checks that a file counts however deep it lies.
func TestDeepFilesCount(t *testing.T) {
	root := t.TempDir()
	const levels = 250
	tree(t, root, map[string]string{"top/" + strings.Repeat("a/", levels) + "file": strings.Repeat("x", 10000)})
	got, err := walk(place{base: root, below: "top"}, time.Now().Add(waittest.Limit))
	if err != nil || got.Inodes != levels+2 || got.Bytes < 10000 {
		t.Errorf("got %+v, %v, want %d inodes and at least 10000 bytes", got, err, levels+2)
	}
}

// TestCutIsLogged checks that the size of a directory that is too large for a walk is known in part, and that the log
// says so once.
func TestCutIsLogged(t *testing.T) {
	var log bytes.Buffer
	d := newDisks(slog.New(slog.NewTextHandler(&log, nil)))
	at := place{base: "/pods", below: "large"}
	began := time.Now().Add(-firstWalk)
	d.record(at, began, firstWalk, Amount{Bytes: 6}, errCut) // the place is measured again, with more time
	if log.Len() != 0 || !d.queue[at] {
		t.Errorf("after the first walk: got queued %t, want true, and the log %s, want none", d.queue[at], &log)
	}
	for range 2 {
		d.record(at, began, walkTime, Amount{Bytes: 7}, errCut)
	}
	if got := d.sizes[at]; !got.known || got.Bytes != 7 {
		t.Errorf("got %d bytes, known %t, want 7 and true", got.Bytes, got.known)
	}
	if got := strings.Count(log.String(), "level=WARN"); got != 1 || !strings.Contains(log.String(), "/pods/large") {
		t.Errorf("got %d warnings, want 1 about /pods/large: %s", got, &log)
	}
}

// TestCheapPlacesFirst checks that places whose measurement was fast are measured before slow ones.
func TestCheapPlacesFirst(t *testing.T) {
	slow, quick := place{below: "slow"}, place{below: "quick"}
	d := newDisks(slog.New(slog.NewTextHandler(t.Output(), nil)))
	d.sizes = map[place]size{slow: {took: time.Minute}, quick: {took: time.Millisecond}}
	d.queue = map[place]bool{slow: true, quick: true}
	for _, want := range []place{quick, slow} {
		if got, _, more := d.next(); got != want || !more {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
	if got, _, more := d.next(); more {
		t.Errorf("got %+v from an empty queue", got)
	}
}

// TestSlowPlacesAreMeasured checks that each place is measured again and again, also if all together take longer than a
// size is valid, and a quick one more often than a slow one.
func TestSlowPlacesAreMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDisks(slog.New(slog.NewTextHandler(t.Output(), nil)))
		d.running = true // by the loop below
		durations := map[place]time.Duration{{below: "slow"}: 30 * time.Second, {below: "quick"}: time.Second}
		for i := range 5 {
			durations[place{below: fmt.Sprint(i)}] = 20 * time.Second
		}
		times := map[place]int{}
		for began := time.Now(); time.Since(began) < time.Hour; {
			d.ask(slices.Collect(maps.Keys(durations)), time.Now())
			p, _, more := d.next()
			if !more {
				t.Fatal("got that the queue is empty, want it never empty")
			}
			walk := time.Now()
			time.Sleep(durations[p])
			d.record(p, walk, walkTime, Amount{}, nil)
			times[p]++
		}
		slow, quick := times[place{below: "slow"}], times[place{below: "quick"}]
		if slow < 10 || quick < 2*slow {
			t.Errorf("got %d measurements of the slow place in an hour and %d of the quick one, want at least 10 and "+
				"more of the quick one", slow, quick)
		}
	})
}

// TestNothingIsLeftOfCallers checks that a caller which has not waited until the end leaves nothing behind: the next
// one waits for the same.
func TestNothingIsLeftOfCallers(t *testing.T) {
	d := newDisks(slog.New(slog.NewTextHandler(t.Output(), nil)))
	d.running = true // so that nothing is measured
	at := []place{{below: "data"}}
	known, fresh := d.ask(at, time.Now())
	if again, freshAgain := d.ask(at, time.Now()); again != known || freshAgain != fresh {
		t.Error("got another channel for each caller, want the same one")
	}
}

// TestFirstWalkIsShort checks that a place whose first walk is cut short is measured completely after the others.
func TestFirstWalkIsShort(t *testing.T) {
	w := newWorld(t, true)
	w.disks.firstWalk = 0
	data := place{base: w.root, below: "pods/u1/volumes/kubernetes.io~empty-dir/data"}
	synctest.Test(t, func(t *testing.T) {
		got := w.disks.sizesOf(t.Context(), []place{data}, time.Minute)[data].Amount
		if want := diskUse(t, data.base, data.below); got != want || got.Bytes < 10000 {
			t.Errorf("got %+v, want %+v", got, want)
		}
	})
}

// TestWaits checks how long a caller waits while nothing is measured, of the minute that it allows: the whole time for
// a size that is unknown, not for one that is old, and not at all for one that is fresh.
func TestWaits(t *testing.T) {
	at := place{base: "/pods", below: "data"}
	for want, age := range map[time.Duration]time.Duration{
		time.Minute: -1, // unknown
		oldTimeout:  5 * time.Minute,
		0:           sizeFresh,
	} {
		synctest.Test(t, func(t *testing.T) {
			d := newDisks(slog.New(slog.NewTextHandler(t.Output(), nil)))
			d.running = true // so that nothing is measured
			began := time.Now()
			if age >= 0 {
				d.sizes[at] = size{at: began.Add(-age), asked: began, known: true}
			}
			d.sizesOf(t.Context(), []place{at}, time.Minute)
			if got := time.Since(began); got != want {
				t.Errorf("a size of the age %s: got a wait of %s, want %s", age, got, want)
			}
		})
	}
}

// TestUnknownIsKnownInPart checks that no size counts as unknown once each place has been measured in part, while the
// complete walks of large ones go on.
func TestUnknownIsKnownInPart(t *testing.T) {
	d := newDisks(slog.New(slog.NewTextHandler(t.Output(), nil)))
	d.running = true
	large, small := place{below: "large"}, place{below: "small"}
	known, fresh := d.ask([]place{large, small}, time.Now())
	for range 2 {
		if latest.Closed(known) {
			t.Error("got that all is known before all has been measured")
		}
		p, limit, _ := d.next()
		d.record(p, time.Now().Add(-limit), limit, Amount{}, errCut)
	}
	if d.next(); !latest.Closed(known) || latest.Closed(fresh) {
		t.Errorf("got known %t and complete %t, want known alone", latest.Closed(known), latest.Closed(fresh))
	}
	d.next()
	if d.next(); !latest.Closed(fresh) {
		t.Error("with an empty queue: got that it is not complete")
	}
}

// TestLate checks that a pod says so if no directory was measured in time, and that one which does not exist has been
// measured.
func TestLate(t *testing.T) {
	w := newWorld(t, true)
	pod := w.pod(t)
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "missing",
		VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
	for _, stuck := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			w.disks = newDisks(w.disks.log)
			w.disks.running = stuck // so that nothing is measured
			all, err := w.Local(t.Context(), []*corev1.Pod{pod}, time.Second, nil)
			if err != nil {
				t.Fatal(err)
			}
			if got := all[0]; got.Late != stuck || len(got.Volumes) > 0 == stuck {
				t.Errorf("while nothing is measured (%v): got %+v", stuck, got)
			}
			hosts := w.parts(pod).files[0]
			w.disks.sizes[hosts] = size{at: time.Now(), asked: time.Now()}
			if all, _ = w.Local(t.Context(), []*corev1.Pod{pod}, time.Second, nil); all[0].Late {
				t.Error("with one directory measured: got that all are late")
			}
		})
	}
}

// TestNoLogs checks that a container whose logs do not exist has no size of them.
func TestNoLogs(t *testing.T) {
	w := newWorld(t, true)
	const family = "kubelet_container_log_filesystem_used_bytes{"
	if text := w.text(w.WriteVolumes); !strings.Contains(text, family) {
		t.Errorf("with logs: got no %s} in:\n%s", family, text)
	}
	if err := os.RemoveAll(filepath.Join(w.root, "logs")); err != nil {
		t.Fatal(err)
	}
	w.disks = newDisks(w.disks.log)
	if text := w.text(w.WriteVolumes); strings.Contains(text, family) {
		t.Errorf("without logs: got %s} in:\n%s", family, text)
	}
}

// TestVolumesInMemory checks that the summary has the volumes of each kind that is in memory.
func TestVolumesInMemory(t *testing.T) {
	w := newWorld(t, true)
	pod := w.pod(t)
	pod.Spec.Volumes = []corev1.Volume{
		{Name: "secret", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{}}},
		{Name: "projected", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{}}},
		{Name: "downward", VolumeSource: corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{}}},
		{Name: "memory", VolumeSource: corev1.VolumeSource{
			EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory},
		}},
	}
	for i := range pod.Spec.Volumes {
		at := w.volumePlace(pod, &pod.Spec.Volumes[i])
		dir := filepath.Join(at.base, at.below)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		ownmounts.Need(t, "mounts", unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"))
		t.Cleanup(func() {
			if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		})
		tree(t, dir, map[string]string{"file": strings.Repeat("x", 10000)})
	}
	summary, err := w.Summary(t.Context(), Plain)
	if err != nil {
		t.Fatal(err)
	}
	for i, v := range pod.Spec.Volumes {
		if got := summary.Pods[0].VolumeStats; i >= len(got) || got[i].Name != v.Name || *got[i].UsedBytes < 10000 {
			t.Errorf("volume %s: got %d volumes, want it with at least 10000 bytes", v.Name, len(got))
		}
	}
}
