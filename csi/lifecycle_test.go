package csi_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/csi"
	"github.com/nodelet/nodelet/kube/pluginname"
	"github.com/nodelet/nodelet/test/csi/fake"
	"github.com/nodelet/nodelet/test/waittest"
)

// TestTwoPodsOneVolume checks that a volume is staged once for two pods, published for each, and goes with the last
// of them; its data stays.
func TestTwoPodsOneVolume(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	v := w.volume("a")
	one := w.publish("pod-1", v)
	if one.Path != filepath.Join(w.root, "pods/pod-1/volumes/kubernetes.io~csi/pv-a/mount") {
		t.Errorf("first publication: got %+v, want the kubelet's path", one)
	}
	write(t, filepath.Join(one.Path, "data"), "precious")
	two := w.publish("pod-2", v)
	if got := read(t, filepath.Join(two.Path, "data")); got != "precious" {
		t.Errorf("the second pod: got %q, want precious", got)
	}
	if n := w.calls("NodeStageVolume"); n != 1 {
		t.Errorf("staged %d times, want once", n)
	}
	if got := w.csi.InUse(); len(got) != 1 || got[0] != csi.UniqueName(driverName, "vol-a") {
		t.Errorf("in use: got %q, want one", got)
	}
	if again := w.publish("pod-1", v); again != one || w.calls("NodePublishVolume") != 2 {
		t.Errorf("second publication: got %+v and the calls %q, want no change", again, w.driver.Calls())
	}
	w.unpublish("pod-1", v)
	if n := w.calls("NodeUnstageVolume"); n != 0 {
		t.Errorf("after the first pod: got the volume unstaged, want it staged for the second")
	}
	w.unpublish("pod-2", v)
	w.nothingLeft()
	if got := read(t, filepath.Join(w.state, "volumes/vol-a.img/data")); got != "precious" {
		t.Errorf("the data: got %q, want precious", got)
	}
}

// TestAttachedAgain checks that a volume that was detached from the node and attached again is unstaged before another
// pod gets it, and that this waits for the pods that have it still: what is staged is a device that has gone.
func TestAttachedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	old := w.volume("a")
	old.Attachment.UID = "uid-1"
	w.publish("pod-1", old)
	w.publish("pod-2", old)
	if n := w.calls("NodeStageVolume"); n != 1 {
		t.Errorf("with one attachment: staged %d times, want once", n)
	}
	w.restart()
	again := w.volume("a")
	again.Attachment.UID = "uid-2"
	for _, pod := range []types.UID{"pod-1", "pod-2"} {
		if _, err := w.csi.Publish(t.Context(), "pod-3", again); err == nil ||
			!strings.Contains(err.Error(), "attached again") || w.calls("NodeUnstageVolume") != 0 {
			t.Errorf("beside %s: got %v and the calls %q, want an error and no unstaging", pod, err, w.driver.Calls())
		}
		w.unpublish(pod, old)
	}
	w.publish("pod-3", again)
	if w.calls("NodeUnstageVolume") != 1 || w.calls("NodeStageVolume") != 2 {
		t.Errorf("afterwards: got the calls %q, want the volume staged again", w.driver.Calls())
	}
	w.publish("pod-4", again)
	w.reboot()
	again.Attachment.UID = "uid-3"
	before := w.calls("NodeUnstageVolume")
	w.publish("pod-3", again)
	if n := w.calls("NodeUnstageVolume"); n != before {
		t.Errorf("after a reboot: unstaged %d times, want %d: nothing is left to unstage", n, before)
	}
	w.unpublish("pod-3", again)
	w.unpublish("pod-4", again)
	w.nothingLeft()
}

// TestNoLongerAttachable checks that a volume in use whose CSIDriver changes to attachRequired: false stays
// published, and leaves volumesInUse, so that it can be detached. A restart of the agent does not change that.
func TestNoLongerAttachable(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	v := w.volume("a")
	w.publish("pod-1", v)
	v.Attachable = false
	if w.publish("pod-1", v); w.calls("NodePublishVolume") != 1 || len(w.csi.InUse()) != 0 {
		t.Errorf("second publication: got the calls %q and in use %q, want one and none", w.driver.Calls(), w.csi.InUse())
	}
	w.restart()
	if got := w.csi.InUse(); len(got) != 0 {
		t.Errorf("in use after a restart: got %q, want none", got)
	}
	v.Attachable = true
	w.publish("pod-1", v)
	if got := w.csi.InUse(); len(got) != 1 {
		t.Errorf("in use after the volume became attachable again: got %q, want the volume", got)
	}
	w.unpublish("pod-1", v)
	w.nothingLeft()
}

// TestSize checks that the size of a volume on this node stays, also for later pods and after a restart of the agent,
// until it is expanded.
func TestSize(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	v := w.volume("a")
	check := func(pod types.UID, size, want int64) {
		t.Helper()
		w.publish(pod, v)
		if got, err := w.csi.Size(v, size); got != want || err != nil {
			t.Errorf("got a size of %d, %v, want %d", got, err, want)
		}
	}
	check("pod-1", 0, 0)
	check("pod-1", 1<<20, 1<<20)
	check("pod-1", 2<<20, 1<<20)
	check("pod-2", 2<<20, 1<<20)
	w.restart()
	check("pod-1", 2<<20, 1<<20)
	if err := w.csi.Expand(t.Context(), "pod-1", v, 2<<20, nil); err != nil {
		t.Fatal(err)
	}
	w.restart()
	check("pod-2", 3<<20, 2<<20)
	w.unpublish("pod-1", v)
	w.unpublish("pod-2", v)
	w.nothingLeft()
	if _, err := w.csi.Size(v, 1<<20); err == nil || !strings.Contains(err.Error(), "not on this node") {
		t.Errorf("size of a volume that is gone: got %v, want an error", err)
	}
	check("pod-1", 3<<20, 3<<20)
}

// TestKubeletLayout checks that the files beside a volume are those that a kubelet reads when it takes over.
func TestKubeletLayout(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.publish("pod-1", w.volume("a"))
	var data map[string]string
	text := read(t, filepath.Join(w.root, "pods/pod-1/volumes/kubernetes.io~csi/pv-a/vol_data.json"))
	if err := json.Unmarshal([]byte(text), &data); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"specVolID": "pv-a", "volumeHandle": "vol-a", "driverName": driverName, "nodeName": "node",
		"volumeLifecycleMode": "Persistent", "attachmentID": pluginname.Attachment(driverName, "vol-a", "node")}
	for k, v := range want {
		if data[k] != v {
			t.Errorf("%s: got %q, want %q", k, data[k], v)
		}
	}
	// sha256 of "vol-a"
	staged, err := filepath.Glob(filepath.Join(w.root, "plugins/kubernetes.io/csi", driverName, "*/globalmount"))
	if err != nil || len(staged) != 1 || len(filepath.Base(filepath.Dir(staged[0]))) != 64 {
		t.Errorf("staging directories: got %q, want one with a hash", staged)
	}
	if got := read(t, filepath.Join(filepath.Dir(staged[0]), "vol_data.json")); !strings.Contains(got,
		`"volumeHandle":"vol-a"`) {
		t.Errorf("beside the staging path: %s", got)
	}
}

// TestTakeOverFromKubelet checks that a node that a kubelet has worked on is taken over: no record, only the
// kubelet's files and the mounts.
func TestTakeOverFromKubelet(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	v := w.volume("a")
	p := w.publish("pod-1", v)
	w.Kill()
	if err := os.RemoveAll(filepath.Join(w.root, "nodelet")); err != nil {
		t.Fatal(err)
	}
	w.begin()
	if used := w.csi.Used("pod-1"); len(used) != 1 || used[0] != "pv-a" {
		t.Fatalf("volumes of the pod: got %q, want pv-a", used)
	}
	if len(w.csi.InUse()) != 1 {
		t.Error("the volume: got that it is not in use, want that it is")
	}
	before := len(w.driver.Calls())
	if again := w.publish("pod-1", v); again.Path != p.Path || len(w.driver.Calls()) != before {
		t.Errorf("second publication: got the calls %q, want no further one", w.driver.Calls())
	}
	w.unpublish("pod-1", v)
	w.nothingLeft()
}

// TestTakeOverWhileKubeletWorks checks that a volume that a kubelet may not have set up wholly is published and
// prepared for a pod without containers, as it would be after a restart of the kubelet, once.
func TestTakeOverWhileKubeletWorks(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	v, runs := w.volume("a"), 0
	v.Prepare = func(context.Context, string) error { runs++; return nil }
	w.publish("pod-1", v)
	w.publish("pod-2", v)
	w.Kill()
	if err := os.RemoveAll(filepath.Join(w.root, "nodelet")); err != nil {
		t.Fatal(err)
	}
	w.begin()
	w.publish("pod-2", v)
	if runs != 2 || w.calls("NodePublishVolume") != 2 {
		t.Errorf("a pod with containers: got it prepared %d times and the calls %q, want no further one",
			runs, w.driver.Calls())
	}
	v.Unstarted = true
	for range 2 {
		w.publish("pod-1", v)
		if runs != 3 || w.calls("NodePublishVolume") != 3 {
			t.Errorf("a pod without containers: got it prepared %d times and the calls %q, want it once more",
				runs, w.driver.Calls())
		}
		w.restart()
	}
	w.unpublish("pod-1", v)
	w.unpublish("pod-2", v)
	w.nothingLeft()
}

// TestOnePod checks that ReadWriteOncePod keeps a second pod out.
func TestOnePod(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	v := w.volume("a")
	v.AccessMode = corev1.ReadWriteOncePod
	w.publish("pod-1", v)
	want := `MountVolume.SetUp failed for volume "pv-a" : ` +
		"volume uses the ReadWriteOncePod access mode and is already in use by another pod"
	if _, err := w.csi.Publish(t.Context(), "pod-2", v); err == nil || err.Error() != want {
		t.Errorf("the second pod: got error %v, want %s", err, want)
	}
	w.unpublish("pod-1", v)
	w.publish("pod-2", v)
	w.unpublish("pod-2", v)
	w.nothingLeft()
}

// TestOneHandleTwoNames checks that a handle that two PersistentVolumes name is staged once.
func TestOneHandleTwoNames(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	a := w.volume("a")
	b := *a
	b.Name = "pv-other"
	w.publish("pod-1", a)
	w.publish("pod-1", &b)
	if w.calls("NodeStageVolume") != 1 || len(w.csi.Used("pod-1")) != 2 {
		t.Errorf("got the calls %q and used %q, want one staging and two uses", w.driver.Calls(), w.csi.Used("pod-1"))
	}
	w.unpublish("pod-1", a)
	if w.calls("NodeUnstageVolume") != 0 {
		t.Error("got a call of unstage while the other name is in use, want none")
	}
	w.unpublish("pod-1", &b)
	w.nothingLeft()
}

// TestInline checks that inline volumes are not staged; their driver receives the volume context.
func TestInline(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	v := &csi.Volume{Driver: driverName, Handle: csi.InlineHandle("pod-1", "scratch"), Name: "scratch", Ephemeral: true,
		Attributes: map[string]string{"a": "b"}, PublishAttributes: map[string]string{"csi.storage.k8s.io/ephemeral": "true"}}
	p := w.publish("pod-1", v)
	if got := read(t, filepath.Join(p.Path, "context.json")); !strings.Contains(got, `"a":"b"`) {
		t.Errorf("got volume context %s, want a: b in it", got)
	}
	if w.calls("NodeStageVolume") != 0 || len(w.csi.InUse()) != 0 {
		t.Errorf("got the calls %q and in use %q, want no staging and none", w.driver.Calls(), w.csi.InUse())
	}
	w.unpublish("pod-1", v)
	w.nothingLeft()
}

// TestNoStaging checks that a driver without staging is not asked for it, also after a kubelet, which makes the
// directory for it all the same.
func TestNoStaging(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *fake.Config) { c.NoStage = true })
	v := w.volume("a")
	w.publish("pod-1", v)
	w.unpublish("pod-1", v)
	w.publish("pod-2", v)
	w.Kill()
	staging := fmt.Sprintf("plugins/kubernetes.io/csi/%s/%x/globalmount", driverName, sha256.Sum256([]byte(v.Handle)))
	err := errors.Join(os.RemoveAll(filepath.Join(w.root, "nodelet")), os.MkdirAll(filepath.Join(w.root, staging), 0o750))
	if err != nil {
		t.Fatal(err)
	}
	w.begin()
	w.publish("pod-2", v)
	w.unpublish("pod-2", v)
	if w.calls("NodeStageVolume")+w.calls("NodeUnstageVolume") != 0 {
		t.Errorf("got the calls %q, want no staging", w.driver.Calls())
	}
	w.nothingLeft()
}

// TestBlockWithoutStaging checks that nothing stays of a block volume whose driver has no staging, nor of one whose
// files an earlier version has left.
func TestBlockWithoutStaging(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *fake.Config) { c.Loop, c.NoStage = true, true })
	v := w.blockVolume("a")
	w.publish("pod-1", v)
	w.publish("pod-2", v)
	devices := filepath.Join(w.root, "plugins/kubernetes.io/csi/volumeDevices")
	data := filepath.Join(devices, v.Name, "data/vol_data.json")
	left := read(t, data)
	w.unpublish("pod-1", v)
	if got := read(t, data); got != left {
		t.Errorf("beside another pod: got the file %q, want %q", got, left)
	}
	w.unpublish("pod-2", v)
	w.nothingLeft()
	w.Kill()
	for _, dir := range []string{filepath.Dir(data), filepath.Join(devices, "publish", v.Name)} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			t.Fatal(err)
		}
	}
	write(t, data, left)
	w.begin()
	w.nothingLeft()
	if w.calls("NodeUnstageVolume") != 0 {
		t.Errorf("got the calls %q, want no staging", w.driver.Calls())
	}
}

// TestPrepare checks that Prepare runs once, before the volume counts as published; a failure has it run again, and so
// does a driver that is called again.
func TestPrepare(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	v := w.volume("a")
	runs := 0
	v.Prepare = func(context.Context, string) error {
		if runs++; runs == 1 {
			return errors.New("not yet")
		}
		return nil
	}
	if _, err := w.csi.Publish(t.Context(), "pod-1", v); err == nil {
		t.Error("Prepare has failed: got no error, want one")
	}
	w.publish("pod-1", v)
	w.publish("pod-1", v)
	if runs != 2 {
		t.Errorf("prepared %d times, want twice", runs)
	}
	w.restart()
	w.publish("pod-1", v)
	if runs != 2 {
		t.Errorf("after a restart: got it prepared again, want it left")
	}
	v.Republish = true
	w.publish("pod-1", v)
	if runs != 3 {
		t.Errorf("published again: got it prepared %d times, want 3: its driver may have made new files", runs)
	}
	w.unpublish("pod-1", v)
	w.nothingLeft()
}

// TestRepublish checks that a driver that wants it is asked again although the volume is published; its failure
// leaves the volume alone.
func TestRepublish(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	v := w.volume("a")
	v.Republish = true
	p := w.publish("pod-1", v)
	w.publish("pod-1", v)
	if n := w.calls("NodePublishVolume"); n != 2 {
		t.Errorf("published %d times, want 2", n)
	}
	write(t, filepath.Join(p.Path, "data"), "precious")
	w.fail("NodePublishVolume", "InvalidArgument", 1)
	if _, err := w.csi.Publish(t.Context(), "pod-1", v); err == nil {
		t.Error("got no error for a refused NodePublishVolume")
	}
	if got := read(t, filepath.Join(p.Path, "data")); got != "precious" {
		t.Errorf("the pod sees %q", got)
	}
	w.unpublish("pod-1", v)
	w.nothingLeft()
}

// TestForeignFilesStay checks that foreign files beside a volume are never deleted; the error of Unpublish names the
// directory.
func TestForeignFilesStay(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	v := w.volume("a")
	p := w.publish("pod-1", v)
	stray := filepath.Join(filepath.Dir(p.Path), "foreign")
	write(t, stray, "data")
	err := w.csi.Unpublish(t.Context(), "pod-1", v.Name)
	if err == nil || !strings.Contains(err.Error(), "not empty") {
		t.Errorf("unpublish: got %v, want an error about a directory that is not empty", err)
	}
	if read(t, stray) != "data" {
		t.Error("the foreign file: got it removed, want it still there")
	}
	if err := os.Remove(stray); err != nil {
		t.Fatal(err)
	}
	w.unpublish("pod-1", v)
	w.nothingLeft()
}

// TestRestartWithoutDriver checks that an agent that restarts while the driver does not run keeps the volumes
// published.
func TestRestartWithoutDriver(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	v := w.volume("a")
	p := w.publish("pod-1", v)
	w.Kill()
	w.stopDriver()
	w.begin()
	if again := w.publish("pod-1", v); again.Path != p.Path {
		t.Errorf("got %+v, want it at %s as before", again, p.Path)
	}
	w.startDriver()
	w.unpublish("pod-1", v)
	w.nothingLeft()
}

// TestStageSecrets checks that secrets for staging are read when the volume is staged, and not for further pods.
func TestStageSecrets(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	v, reads := w.volume("a"), 0
	v.Secrets.Stage = func(context.Context) (map[string]string, error) {
		if reads++; reads == 1 {
			return nil, errors.New("no such secret")
		}
		return nil, nil
	}
	if _, err := w.csi.Publish(t.Context(), "pod-1", v); err == nil || !strings.Contains(err.Error(), "no such secret") {
		t.Errorf("got %v, want an error about the secret", err)
	}
	if n := w.calls("NodeStageVolume"); n != 0 {
		t.Errorf("staged %d times without the secret, want never", n)
	}
	w.publish("pod-1", v)
	w.publish("pod-2", v)
	if reads != 2 {
		t.Errorf("read the secret %d times, want twice", reads)
	}
	w.unpublish("pod-1", v)
	w.unpublish("pod-2", v)
	w.nothingLeft()
}

// TestSlowStageSecrets checks that another pod can begin and end its use of a volume while the secrets are read.
func TestSlowStageSecrets(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	v := w.volume("a")
	v.Secrets.Stage = func(ctx context.Context) (map[string]string, error) {
		bound, cancel := context.WithTimeout(ctx, waittest.Limit)
		defer cancel()
		other := w.volume("a")
		return nil, errors.Join(w.csi.Use(bound, "pod-2", other), w.csi.Unpublish(bound, "pod-2", other.Name))
	}
	w.publish("pod-1", v)
	w.unpublish("pod-1", v)
	w.nothingLeft()
}

// TestSecretsStay checks that a secret that a driver is given is in no log, no error and no file.
func TestSecretsStay(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	v := w.volume("a")
	v.Secrets.Publish = map[string]string{"key": "hush"}
	v.Secrets.Stage = func(context.Context) (map[string]string, error) { return v.Secrets.Publish, nil }
	v.PublishAttributes = map[string]string{"csi.storage.k8s.io/serviceAccount.tokens": "hush"}
	for _, method := range []string{"NodeStageVolume", "NodePublishVolume"} {
		w.fail(method, "Internal", 1)
		if _, err := w.csi.Publish(t.Context(), "pod-1", v); err == nil || strings.Contains(err.Error(), "hush") {
			t.Errorf("%s: got %v, want an error without the secret", method, err)
		}
	}
	w.publish("pod-1", v)
	err := filepath.WalkDir(w.root, func(path string, e os.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() && strings.Contains(read(t, path), "hush") {
			t.Errorf("%s: got the secret in it, want none", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	w.unpublish("pod-1", v)
	w.nothingLeft()
	w.Kill()
	if strings.Contains(w.log.String(), "hush") {
		t.Errorf("log: got the secret in it, want none:\n%s", w.log.String())
	}
}
