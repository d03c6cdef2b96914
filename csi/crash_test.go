package csi_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/csi"
	"github.com/nodelet/nodelet/host/atomicfile"
)

// mutating are the calls that change something on the node, in their order for one pod.
var mutating = []string{"NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"}

// TestCrashInEachCall kills the agent in each call, before or after it has its effect, and the mounts
// are kept or, by a reboot, gone. After the restart a pod that still exists gets its volume; in the end nothing is
// left.
func TestCrashInEachCall(t *testing.T) {
	t.Parallel()
	for _, method := range mutating {
		for _, after := range []string{"", "after:"} {
			for _, reboot := range []bool{false, true} {
				for _, wanted := range []bool{false, true} {
					t.Run(fmt.Sprintf("%s%s/reboot=%t/wanted=%t", after, method, reboot, wanted), func(t *testing.T) {
						t.Parallel()
						crash(t, method, after, reboot, wanted)
					})
				}
			}
		}
	}
}

func crash(t *testing.T, method, after string, reboot, wanted bool) {
	w := newWorld(t, nil)
	v := w.volume("a")
	write(t, filepath.Join(w.state, "volumes/vol-a.img/data"), "precious")
	w.fail(method, after+"hang", 0)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func(c interface {
		Unpublish(context.Context, types.UID, string) error
	}) {
		_, err := w.csi.Publish(ctx, "pod-1", v)
		if err == nil {
			err = c.Unpublish(ctx, "pod-1", v.Name)
		}
		ended <- err
	}(w.csi)
	w.Until("the call is under way", func() bool { return w.calls(method) > 0 })
	cancel() // as the agent's death cuts the connection
	<-ended
	if reboot {
		w.Kill()
		w.heal(method)
		w.reboot()
	} else {
		w.Kill()
		w.heal(method)
		w.Until("the driver is at rest", func() bool { return !w.driver.Busy() })
		w.begin()
	}
	if wanted {
		p := w.publish("pod-1", v)
		if got := read(t, filepath.Join(p.Path, "data")); got != "precious" {
			t.Errorf("the pod: got %q, want precious", got)
		}
		if n := len(w.mounts()); n != 2 {
			t.Errorf("got %d mounts, want the staged and the published one: %q", n, w.mounts())
		}
	}
	for _, pod := range w.csi.Pods() {
		for _, name := range w.csi.Used(pod) {
			if err := w.csi.Unpublish(t.Context(), pod, name); err != nil {
				t.Error(err)
			}
		}
	}
	w.nothingLeft()
	if got := read(t, filepath.Join(w.state, "volumes/vol-a.img/data")); got != "precious" {
		t.Errorf("the data: got %q, want precious", got)
	}
}

// TestEveryError answers each call with each gRPC error, before and after it has its effect, and checks that the
// volume is served in the end, and that nothing is left.
func TestEveryError(t *testing.T) {
	t.Parallel()
	for _, method := range mutating {
		for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
			for _, after := range []string{"", "after:"} {
				t.Run(after+method+"/"+code.String(), func(t *testing.T) {
					t.Parallel()
					w := newWorld(t, nil)
					v := w.volume("a")
					w.fail(method, after+code.String(), 1)
					w.persist("publish", func() error { _, err := w.csi.Publish(t.Context(), "pod-1", v); return err })
					if len(w.mounts()) != 2 {
						t.Errorf("mounts: got %q, want two", w.mounts())
					}
					w.persist("unpublish", func() error { return w.csi.Unpublish(t.Context(), "pod-1", v.Name) })
					w.nothingLeft()
				})
			}
		}
	}
}

// TestGiveUp checks that a pod whose volume cannot be staged or published goes without a trace.
func TestGiveUp(t *testing.T) {
	t.Parallel()
	for _, method := range mutating[:2] {
		for _, what := range []string{"Internal", "Aborted", "after:Unavailable", "after:Internal"} {
			t.Run(method+"/"+what, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, nil)
				v := w.volume("a")
				w.fail(method, what, 0)
				if _, err := w.csi.Publish(t.Context(), "pod-1", v); err == nil {
					t.Fatal("got no error, want one")
				} else if !strings.Contains(err.Error(), "pv-a") || !strings.Contains(err.Error(), driverName) {
					t.Errorf("error: got %v, want the volume and the driver named", err)
				}
				w.unpublish("pod-1", v)
				w.nothingLeft()
			})
		}
	}
}

// persist repeats a call as the agent does.
func (w *world) persist(what string, call func() error) {
	w.T.Helper()
	var err error
	for range 5 {
		if err = call(); err == nil {
			return
		}
	}
	w.T.Fatalf("%s: %v", what, err)
}

// TestSlowVolume checks that a slow volume delays only the pods that use it.
func TestSlowVolume(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	slow, quick := w.volume("slow"), w.volume("quick")
	w.fail("NodeStageVolume", "hang", 0)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = w.csi.Publish(ctx, "pod-slow", slow) // cut off below
	}()
	w.Until("the slow one is under way", func() bool { return w.calls("NodeStageVolume") == 1 })
	// the failpoint is another's: the first call goes on hanging only while the file says so
	w.fail("NodeStageVolume", "OK", 1)
	w.publish("pod-quick", quick)
	cancel()
	<-ended
	w.unpublish("pod-quick", quick)
	w.persist("unpublish", func() error { return w.csi.Unpublish(t.Context(), "pod-slow", slow.Name) })
	w.nothingLeft()
}

// TestTimeout checks that a call without an answer ends after its timeout, and the error says that the driver may
// still be working on it.
func TestTimeout(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	v := w.volume("a")
	w.Kill()
	w.timeout = 2 * time.Second
	w.begin()
	w.fail("NodePublishVolume", "hang", 0)
	w.Until("the timeout of NodePublishVolume", func() bool {
		_, err := w.csi.Publish(t.Context(), "pod-1", v)
		if err == nil {
			t.Fatal("got no error of a driver that does not answer")
		}
		t.Log(err) // on a busy machine, another call may also exceed the timeout
		return strings.Contains(err.Error(), "did not answer NodePublishVolume within 2s")
	})
	w.heal("NodePublishVolume")
	w.Kill()
	w.timeout = time.Minute
	w.begin()
	w.publish("pod-1", v)
	w.unpublish("pod-1", v)
	w.nothingLeft()
}

// TestMountsVanish checks that mounts which vanish while the agent is away, as no reboot would do it, are made again,
// and that no pod writes to the disk below a mount point.
func TestMountsVanish(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	v := w.volume("a")
	w.publish("pod-1", v)
	w.Kill()
	w.unmountAll()
	w.begin()
	p := w.publish("pod-1", v)
	write(t, filepath.Join(p.Path, "data"), "precious")
	if got := read(t, filepath.Join(w.state, "volumes/vol-a.img/data")); got != "precious" {
		t.Errorf("the data is not in the volume: got %q, want precious", got)
	}
	w.unpublish("pod-1", v)
	w.nothingLeft()
}

// TestDamagedRecord checks that a damaged record is renamed; the kubelet's files contain enough.
func TestDamagedRecord(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	v := w.volume("a")
	w.publish("pod-1", v)
	w.Kill()
	records := w.journals()
	if len(records) != 1 {
		t.Fatal(records)
	}
	write(t, records[0], strings.ReplaceAll(read(t, records[0]), "vol-a", "vol-b"))
	w.begin()
	if used := w.csi.Used("pod-1"); len(used) != 1 {
		t.Fatalf("used: got %q, want one", used)
	}
	w.unpublish("pod-1", v)
	if err := os.Remove(records[0] + ".bad"); err != nil {
		t.Error("the damaged record is not kept aside: ", err)
	}
	w.nothingLeft()
}

// TestUnreadableRecord checks that a record that cannot be read just now is not taken for a damaged one and renamed.
func TestUnreadableRecord(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	record := filepath.Join(root, "nodelet/csi/volume.json")
	if err := os.MkdirAll(record, 0o700); err != nil { // it cannot be read as a file, like one on a bad disk
		t.Fatal(err)
	}
	if _, err := csi.New(csi.Config{Root: root}); err == nil {
		t.Error("got no error, want that of the read")
	}
	if _, err := os.Lstat(record); err != nil {
		t.Errorf("record after New: got %v, want it in its place", err)
	}
}

// TestUnreadableDataFile checks that a vol_data.json that cannot be read just now does not make a volume of a pod count
// as unused, to be unstaged.
func TestUnreadableDataFile(t *testing.T) {
	t.Parallel()
	for _, dir := range []string{
		"pods/pod-1/volumes/kubernetes.io~csi/pv",
		"plugins/kubernetes.io/csi/driver/hash",
		"plugins/kubernetes.io/csi/volumeDevices/pv/data",
	} {
		root := t.TempDir()
		for _, d := range []string{"pods", filepath.Join(dir, "vol_data.json")} { // no file: like one on a bad disk
			if err := os.MkdirAll(filepath.Join(root, d), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		_, err := csi.New(csi.Config{Root: root, Log: slog.New(slog.DiscardHandler)})
		if err == nil || !strings.Contains(err.Error(), dir) {
			t.Errorf("%s: got %v, want the error of the read", dir, err)
		}
	}
}

// TestJournalEnds checks that a volume that pods come to and leave for long has a journal that does not grow for
// ever, and it says the truth after a crash.
func TestJournalEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	v := w.volume("a")
	w.publish("pod-1", v)
	for range 40 {
		w.publish("pod-2", v)
		w.unpublish("pod-2", v)
	}
	if n := strings.Count(read(t, w.journals()[0]), "\n"); n < 2 || n > 100 {
		t.Errorf("journal: got %d lines, want 2 to 100", n)
	}
	w.Kill()
	w.begin()
	if pods := w.csi.Pods(); len(pods) != 1 || pods[0] != "pod-1" {
		t.Errorf("pods with volumes after the crash: got %q, want pod-1", pods)
	}
	w.publish("pod-1", v)
	if n := w.calls("NodePublishVolume"); n != 41 {
		t.Errorf("published %d times, want 41: what is there needs no call", n)
	}
	w.unpublish("pod-1", v)
	w.nothingLeft()
}

// TestDiskTakesNoNotes checks that a disk that takes no notes, such as a full one, keeps no pod from its end: what it
// says is too much then, never too little. It does not keep a volume staged either, so that it can be detached.
func TestDiskTakesNoNotes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	v := w.volume("a")
	w.publish("pod-1", v)
	journal := w.journals()[0]
	text := read(t, journal)
	block := func() {
		t.Helper()
		if err := errors.Join(os.Remove(journal), os.Mkdir(journal, 0o700)); err != nil { // neither written to nor replaced
			t.Fatal(err)
		}
	}
	block()
	if _, err := w.csi.Publish(t.Context(), "pod-2", v); err == nil {
		t.Error("a record that cannot be written: got no error, want one")
	}
	w.unpublish("pod-2", v)
	w.fail("NodeUnstageVolume", "Internal", 0)
	w.unpublish("pod-1", v)
	w.Kill()
	w.heal("NodeUnstageVolume")
	if err := os.Remove(journal); err != nil {
		t.Fatal(err)
	}
	write(t, journal, text)
	w.begin()
	if pods := w.csi.Pods(); len(pods) != 1 || pods[0] != "pod-1" {
		t.Errorf("pods with volumes after the crash: got %q, want pod-1", pods)
	}
	block()
	w.unpublish("pod-1", v)
	w.nothingLeft()
}

// TestUnfinishedDataFile checks that a write of vol_data.json that failed or that a crash cut off does not keep a pod
// from its end.
func TestUnfinishedDataFile(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	inline := &csi.Volume{
		Driver:            driverName,
		Handle:            csi.InlineHandle("pod-1", "scratch"),
		Name:              "scratch",
		Ephemeral:         true,
		PublishAttributes: map[string]string{"csi.storage.k8s.io/ephemeral": "true"},
	}
	for _, v := range []*csi.Volume{w.volume("a"), inline} {
		w.publish("pod-1", v)
		found := 0
		for _, name := range w.files() {
			err := filepath.WalkDir(name, func(path string, e fs.DirEntry, err error) error {
				if err == nil && e.Name() == "vol_data.json" {
					write(t, atomicfile.Leftover(path), "{")
					found++
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		if found == 0 {
			t.Errorf("volume %s: got no vol_data.json, want one", v.Name)
		}
		w.unpublish("pod-1", v)
		w.nothingLeft()
	}
}

// TestUnrecordedDirectory checks that the directory of a volume without a record is removed, if nothing says that a
// driver knows the volume. Otherwise the error says what to do.
func TestUnrecordedDirectory(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	dir := func(name string) string {
		return filepath.Join(w.root, "pods/pod-1/volumes/kubernetes.io~csi", name)
	}
	for name, files := range map[string][]string{
		"cut":   {".vol_data.json.new"},
		"empty": nil,
		"kept":  {"vol_data.json"},
	} {
		if err := os.MkdirAll(filepath.Join(dir(name), "mount"), 0o750); err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			write(t, filepath.Join(dir(name), file), "{")
		}
		err, known := w.csi.Unpublish(t.Context(), "pod-1", name), name == "kept"
		if got := err != nil && strings.Contains(err.Error(), dir(name)+"/vol_data.json is damaged"); got != known {
			t.Errorf("volume %s: got error %v, want an error about a damaged file: %t", name, err, known)
		}
		_, err = os.Stat(dir(name))
		if got := os.IsNotExist(err); got == known {
			t.Errorf("volume %s: got removed=%v (%v), want %v", name, got, err, !known)
		}
	}
}

// TestClaimAlone checks that a claim for which no driver was asked yet leaves nothing behind, whichever way its pod
// goes.
func TestClaimAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	v := w.volume("a")
	for _, crash := range []bool{false, true} {
		if err := w.csi.Use(t.Context(), "pod-1", v); err != nil {
			t.Fatal(err)
		}
		if n := len(w.journals()); n != 0 {
			t.Errorf("got %d journals of a claim alone, want 0", n)
		}
		if crash {
			w.Kill()
			w.begin()
		} else {
			w.unpublish("pod-1", v)
		}
		w.nothingLeft()
	}
}

// TestClaimDuringUnstage checks that a Publish during NodeUnstageVolume waits, then the volume is staged again.
func TestClaimDuringUnstage(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	v := w.volume("a")
	w.publish("pod-1", v)
	w.fail("NodeUnstageVolume", "hang", 0)
	w.unpublish("pod-1", v)
	w.Until("it is being unstaged", func() bool { return w.calls("NodeUnstageVolume") == 1 })
	got := make(chan error, 1)
	go func() {
		_, err := w.csi.Publish(t.Context(), "pod-2", v)
		got <- err
	}()
	select {
	case err := <-got:
		t.Fatalf("publication during the unstaging: got %v, want it to wait", err)
	case <-time.After(50 * time.Millisecond):
	}
	w.heal("NodeUnstageVolume")
	if err := <-got; err != nil {
		t.Fatal(err)
	}
	if len(w.mounts()) != 2 {
		t.Errorf("mounts: got %q, want two", w.mounts())
	}
	w.unpublish("pod-2", v)
	w.nothingLeft()
}
