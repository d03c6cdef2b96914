package iscsi

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// TestDamagedStateFile checks that a damaged state file does not keep the LUN on the node: the name of its directory
// says which one it is.
func TestDamagedStateFile(t *testing.T) {
	initiator := "iqn.2026-01.test.nodelet:me"
	volumes := map[string]func(*corev1.ISCSIVolumeSource){
		"one portal":    nil,
		"two portals":   func(s *corev1.ISCSIVolumeSource) { s.Portals = []string{"[::1]:3261"} },
		"own interface": func(s *corev1.ISCSIVolumeSource) { s.InitiatorName = &initiator },
	}
	for damage, text := range map[string]string{
		"empty":     "",
		"cut":       `{"VolName":"vol3","Por`,
		"no portal": `{"Iqn":"iqn.x","Lun":"3"}`,
	} {
		for name, change := range volumes {
			t.Run(damage+", "+name, func(t *testing.T) {
				w := newWorld(t)
				l := w.lun(w.luns[0], change)
				w.stage(l, true)
				w.must(os.WriteFile(filepath.Join(w.staging(l, true), stateFile), []byte(text), 0o600))
				w.begin()
				w.unstage(l, true)
				w.nothing()
			})
		}
	}
}

// TestDamagedStateFileOfForeignSession checks that if it is not known who has created a session, it stays.
func TestDamagedStateFileOfForeignSession(t *testing.T) {
	w := newWorld(t)
	l := w.lun(w.luns[0], nil)
	w.stage(l, true)
	w.must(os.RemoveAll(filepath.Join(w.dir, "state")))
	w.must(os.WriteFile(filepath.Join(w.staging(l, true), stateFile), nil, 0o600))
	w.unstage(l, true)
	if got := w.sessions(); got != 1 {
		t.Errorf("got %d sessions, want 1", got)
	}
}

// TestSessionTimeout checks that a target that does not answer holds up a call for a limited time, although the
// caller sets no limit.
func TestSessionTimeout(t *testing.T) {
	w := newWorld(t)
	w.d.cfg.SessionTimeout = time.Nanosecond
	err := w.tryStage(w.lun(w.luns[0], nil), false)
	if want := context.DeadlineExceeded.Error(); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got error %v, want %q", err, want)
	}
}

// TestStillDevice checks that the path of a LUN's device is not believed once its session has ended: another disk may
// get the name.
func TestStillDevice(t *testing.T) {
	w := newWorld(t)
	one, two := w.lun(w.luns[0], nil), w.lun(w.luns[1], nil)
	w.stage(one, true)
	w.stage(two, true)
	path, err := w.d.device(t.Context(), one)
	w.must(err)
	w.must(w.d.stillDevice(one, path))
	if err := w.d.stillDevice(two, path); err == nil {
		t.Error("got no error for the device of another LUN")
	}
	w.unstage(one, true)
	if err := w.d.stillDevice(one, path); err == nil {
		t.Error("got no error after the LUN has gone")
	}
	w.unstage(two, true)
	w.nothing()
}
