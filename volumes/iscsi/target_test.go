package iscsi

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/host/mounts"
)

// The tests of this file also run with a real target: see test/vm.

// TestTargetMount checks that a blank LUN is formatted once; what a pod writes is there for the next one, also after
// all was taken down.
func TestTargetMount(t *testing.T) {
	w := newWorld(t)
	l := w.lun(w.luns[0], nil)
	w.stage(l, false)
	w.stage(l, false) // once more changes nothing
	a, err := w.publish(l, false, "a", false)
	w.must(err)
	w.write(filepath.Join(a, "data"), "precious")
	b, err := w.publish(l, false, "b", true)
	w.must(err)
	if err := os.WriteFile(filepath.Join(b, "data"), nil, 0o600); err == nil {
		t.Error("write in a pod that asked for read-only: got no error, want one")
	}
	w.unpublish(a)
	if text, err := os.ReadFile(filepath.Join(b, "data")); string(text) != "precious" {
		t.Errorf("data in the second pod: got %q, %v, want that of the first", text, err)
	}
	w.unpublish(b)
	w.unstage(l, false)
	w.nothing()
	w.stage(l, false)
	a, err = w.publish(l, false, "a", false)
	w.must(err)
	if text, err := os.ReadFile(filepath.Join(a, "data")); string(text) != "precious" {
		t.Errorf("data: got %q, %v, want it unchanged", text, err)
	}
	w.unpublish(a)
	w.unstage(l, false)
	w.nothing()
}

// TestTargetBlock checks that a pod gets the device itself.
func TestTargetBlock(t *testing.T) {
	w := newWorld(t)
	l := w.lun(w.luns[1], nil)
	w.stage(l, true)
	device, err := w.publish(l, true, "a", false)
	w.must(err)
	f, err := os.OpenFile(device, os.O_RDWR, 0)
	w.must(err)
	text := bytes.Repeat([]byte("block"), 100)
	_, err = f.WriteAt(text, 1<<20)
	w.must(err)
	w.must(f.Sync())
	w.must(f.Close())
	w.begin() // a crash of the agent
	w.stage(l, true)
	if _, err := w.publish(l, true, "a", false); err != nil {
		t.Error(err)
	}
	w.unpublish(device)
	w.unstage(l, true)
	w.nothing()
	w.stage(l, true)
	device, err = w.publish(l, true, "b", false)
	w.must(err)
	f, err = os.Open(device)
	w.must(err)
	got := make([]byte, len(text))
	_, err = f.ReadAt(got, 1<<20)
	w.must(err)
	w.must(f.Close())
	if !bytes.Equal(got, text) {
		t.Errorf("read from the device: got %q, want %q", got, text)
	}
	w.unpublish(device)
	w.unstage(l, true)
	w.nothing()
}

// TestTargetShared checks that two LUNs of a target share its session, which ends with the second; agents that were
// killed meanwhile matter not.
func TestTargetShared(t *testing.T) {
	w := newWorld(t)
	one, two := w.lun(w.luns[0], nil), w.lun(w.luns[1], nil)
	w.stage(one, false)
	w.begin()
	w.stage(two, true)
	if n := w.sessions(); n != 1 {
		t.Errorf("got %d sessions, want 1", n)
	}
	w.begin()
	w.unstage(one, false)
	if n := w.sessions(); n != 1 {
		t.Errorf("got %d sessions after the first LUN has gone, want 1", n)
	}
	device, err := w.publish(two, true, "pod", false)
	w.must(err)
	w.unpublish(device)
	w.unstage(two, true)
	w.nothing()
}

// TestTargetInitiator checks that volumes with an initiator name of their own have sessions of their own, on
// interfaces that go with them.
func TestTargetInitiator(t *testing.T) {
	w := newWorld(t)
	named := func(name string) func(*corev1.ISCSIVolumeSource) {
		return func(s *corev1.ISCSIVolumeSource) { s.InitiatorName = &name }
	}
	one, two := w.lun(w.luns[0], named("iqn.2026-01.test.nodelet:pod1")), w.lun(w.luns[1],
		named("iqn.2026-01.test.nodelet:pod2"))
	w.stage(one, true)
	w.stage(two, true)
	if n := w.sessions(); n != 2 {
		t.Errorf("got %d sessions, want 2", n)
	}
	names, _ := filepath.Glob(filepath.Join(w.d.cfg.Sys, "class/iscsi_session/*/initiatorname"))
	for _, file := range names { // of the real thing
		if name := value(file); !strings.Contains(name, ":pod") {
			t.Errorf("session: got the initiator %q, want that of the pod", name)
		}
	}
	w.unstage(one, true)
	if n := w.sessions(); n != 1 {
		t.Errorf("got %d sessions after the first LUN has gone, want 1", n)
	}
	w.unstage(two, true)
	w.nothing()
}

// TestTargetForeign checks that a session of another initiator process is used and left alone.
func TestTargetForeign(t *testing.T) {
	w := newWorld(t)
	l := w.lun(w.luns[0], nil)
	w.must(w.d.record(t.Context(), l, portal, w.secrets))
	w.must(admin(t.Context(), nil, l.node(portal, "--login")...))
	w.stage(l, false)
	w.unstage(l, false)
	if n := w.sessions(); n != 1 {
		t.Errorf("got %d sessions after unstaging, want the foreign one", n)
	}
	w.must(admin(t.Context(), nil, "-m", "session", "-r", w.session(l).id, "--logout"))
	w.must(admin(t.Context(), nil, l.node(portal, "-o", "delete")...))
	w.nothing()
}

func (w *world) session(l *LUN) *session {
	w.Helper()
	s, err := w.d.find(l, portal)
	w.must(err)
	if s == nil {
		w.Fatal("no session")
	}
	return s
}

// TestTargetPassword checks that the error for a wrong password does not contain it, and unstaging the volume leaves
// nothing.
func TestTargetPassword(t *testing.T) {
	w := newWorld(t)
	l := w.lun(w.luns[0], nil)
	right := w.secrets
	w.secrets = map[string]string{
		"node.session.auth.username": right["node.session.auth.username"],
		"node.session.auth.password": "wrong-password",
	}
	if err := w.tryStage(l, false); err == nil || strings.Contains(err.Error(), "wrong-password") ||
		!strings.Contains(err.Error(), "authorization failure") {
		t.Errorf("got the error %v, want authorization failure, without the password", err)
	}
	w.secrets = right
	w.stage(l, false)
	w.unstage(l, false)
	w.nothing()
}

// TestTargetBusy checks that a LUN that is mounted elsewhere stays until it is unmounted there.
func TestTargetBusy(t *testing.T) {
	w := newWorld(t)
	l := w.lun(w.luns[0], nil)
	w.stage(l, false)
	elsewhere := filepath.Join(w.dir, "elsewhere")
	w.must(os.Mkdir(elsewhere, 0o755))
	device := filepath.Join(w.d.cfg.Dev, w.session(l).block(l.Lun))
	w.must(exec.Command("mount", device, elsewhere).Run())
	if err := w.tryUnstage(l, false); err == nil || !strings.Contains(err.Error(), "still in use") {
		t.Errorf("got the error %v, want still in use", err)
	}
	if w.sessions() != 1 {
		t.Error("the session of a mounted LUN: got none, want it still there")
	}
	w.must(mounts.Unmount(elsewhere))
	w.unstage(l, false)
	w.nothing()
}
