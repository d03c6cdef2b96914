package iscsi

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// calls are what iscsiadm was called with.
func (w *world) calls() []string {
	text, err := os.ReadFile(w.fake("calls"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		w.Fatal(err)
	}
	return slices.DeleteFunc(strings.Split(string(text), "\n"), func(l string) bool { return l == "" })
}

// TestSecretsStay checks that no password is on a command line, in a note or in an error; it is in iscsiadm's record
// as long as the session lasts.
func TestSecretsStay(t *testing.T) {
	w := newWorld(t)
	l := w.lun(w.luns[0], nil)
	w.stage(l, false)
	for _, line := range w.calls() {
		if strings.Contains(line, "stays-a-secret") {
			t.Errorf("command line: got the password in %s, want it nowhere", line)
		}
	}
	w.must(filepath.WalkDir(filepath.Join(w.dir, "plugin"), func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if strings.Contains(string(text), "stays-a-secret") {
			t.Errorf("%s: got the password in it, want it removed", path)
		}
		return err
	}))
	w.unstage(l, false)
	w.nothing()
}

// TestRecord checks that a login goes by a record that logs in to nothing at boot and looks for no other LUNs.
func TestRecord(t *testing.T) {
	w := newWorld(t)
	w.stage(w.lun(w.luns[0], nil), true)
	text, err := os.ReadFile(w.fake("db/nodes/" + w.target + "/127.0.0.1,3260"))
	w.must(err)
	for _, line := range []string{"node.startup = manual", "node.session.scan = manual",
		"node.session.auth.authmethod = CHAP",
		"node.session.auth.username = node", "node.session.auth.password = stays-a-secret"} {
		if !strings.Contains(string(text), line+"\n") {
			t.Errorf("record: want the line %q, got\n%s", line, text)
		}
	}
	if strings.Contains(string(text), "automatic") || !strings.HasSuffix(string(text), "# END RECORD\n") {
		t.Errorf("record: want no automatic start and an end, got\n%s", text)
	}
}

// TestKubelets checks that what a kubelet has staged, with a session of its making, is used, shared and ended.
func TestKubelets(t *testing.T) {
	w := newWorld(t)
	one, two := w.lun(w.luns[0], nil), w.lun(w.luns[1], nil)
	w.stage(one, true)
	w.must(os.RemoveAll(filepath.Join(w.dir, "state")))
	w.must(os.WriteFile(filepath.Join(w.staging(one, true), stateFile),
		[]byte(`{"VolName":"vol3","Portals":["127.0.0.1:3260"],"Iqn":"`+w.target+
			`","Lun":"3","InitIface":"default","Iface":"default","InitiatorName":"","MetricsProvider":null}`), 0o600))
	w.stage(two, false)
	w.unstage(two, false)
	if n := w.sessions(); n != 1 {
		t.Errorf("got %d sessions while the kubelet's LUN is there, want 1", n)
	}
	w.unstage(one, true)
	w.nothing()
}

// TestPortals checks that one portal that answers is enough; a second one makes a second path; all go.
func TestPortals(t *testing.T) {
	w := newWorld(t)
	l := w.lun(w.luns[0], func(s *corev1.ISCSIVolumeSource) {
		s.Portals = []string{"127.0.0.2", "127.0.0.1:3260",
			"[::1]:3261"}
	})
	w.write(w.fake("refuse-node-login-127.0.0.2:3260"), "")
	w.stage(l, true)
	if n := w.sessions(); n != 2 {
		t.Errorf("got %d sessions, want 2", n)
	}
	device, err := w.publish(l, true, "pod", false)
	w.must(err)
	w.unpublish(device)
	w.unstage(l, true)
	w.nothing()
}

// TestForeignAfterRefusal checks that a session stays that another program creates after a portal has refused the login
// of this one.
func TestForeignAfterRefusal(t *testing.T) {
	w := newWorld(t)
	const second = "127.0.0.2:3260"
	l := w.lun(w.luns[0], func(s *corev1.ISCSIVolumeSource) { s.Portals = []string{second} })
	refuse := w.fake("refuse-node-login-" + second)
	w.write(refuse, "")
	w.stage(l, true)
	w.must(os.Remove(refuse))
	w.must(w.d.record(t.Context(), l, second, w.secrets))
	w.must(admin(t.Context(), nil, l.node(second, "--login")...))
	w.unstage(l, true)
	if s, err := w.d.find(l, second); err != nil || s == nil || w.sessions() != 1 {
		t.Errorf("got session %v, %v of %d, want that of the other program alone", s, err, w.sessions())
	}
}

// TestForeignAfterReboot checks that the session of another program, which logs in at boot, stays as well if pods used
// two of its LUNs before the reboot.
func TestForeignAfterReboot(t *testing.T) {
	w := newWorld(t)
	one, two := w.lun(w.luns[0], nil), w.lun(w.luns[1], nil)
	w.must(w.d.record(t.Context(), one, portal, w.secrets))
	w.must(admin(t.Context(), nil, one.node(portal, "--login")...))
	w.stage(one, true)
	w.stage(two, true)
	w.must(os.RemoveAll(filepath.Join(w.dir, "state")))
	w.stage(one, true)
	w.stage(two, true)
	w.unstage(one, true)
	w.unstage(two, true)
	_, err := w.d.recordFile(one, portal)
	if w.sessions() != 1 || err != nil {
		t.Errorf("got %d sessions, record: %v, want those of the other program", w.sessions(), err)
	}
}

// TestRecordAfterReboot checks that the record of a login goes if the volume is unstaged after a reboot, unless it is
// another program's.
func TestRecordAfterReboot(t *testing.T) {
	initiator := "iqn.2026-01.test.nodelet:me"
	for _, name := range []*string{nil, &initiator} {
		w := newWorld(t)
		l := w.lun(w.luns[0], func(s *corev1.ISCSIVolumeSource) { s.InitiatorName = name })
		w.stage(l, true)
		for _, dir := range []string{filepath.Join(w.dir, "state"), w.fake("sys/class/iscsi_session")} {
			w.must(os.RemoveAll(dir))
		}
		w.unstage(l, true)
		w.nothing()
	}
	w := newWorld(t)
	l := w.lun(w.luns[0], nil)
	w.must(os.MkdirAll(w.staging(l, true), 0o755))
	w.must(l.save(w.staging(l, true)))
	w.must(admin(t.Context(), nil, l.node(portal, "-o", "new")...))
	w.unstage(l, true)
	if _, err := w.d.recordFile(l, portal); err != nil {
		t.Error(err)
	}
}

// TestGuess checks whose LUNs tell that a kubelet has created a session.
func TestGuess(t *testing.T) {
	l, err := Of("vol3", &corev1.ISCSIVolumeSource{TargetPortal: "127.0.0.1", IQN: "iqn.2026-01.test.nodelet:one", Lun: 3})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*LUN)
		want   string
	}{
		"a kubelet's LUN":      {func(other *LUN) { other.By = "" }, made},
		"this agent's LUN":     {func(*LUN) {}, foreign},
		"by another portal":    {func(other *LUN) { other.By, other.Portals = "", []string{"127.0.0.2:3260"} }, foreign},
		"by another interface": {func(other *LUN) { other.By, other.Iface = "", "iser" }, foreign},
	} {
		dir := t.TempDir()
		d := New(Config{Dir: dir})
		other := *l
		other.Lun = "4"
		c.change(&other)
		staging := filepath.Join(dir, other.Directory())
		if err := errors.Join(os.MkdirAll(staging, 0o755), other.save(staging)); err != nil {
			t.Fatal(err)
		}
		if got := d.guess(l, filepath.Join(dir, l.Directory()), portal); got != c.want {
			t.Errorf("%s: got %s, want %s", name, got, c.want)
		}
	}
}

// TestMultipath checks that where multipathd has joined the paths of a LUN, its device is used; other holders are not
// taken for one.
func TestMultipath(t *testing.T) {
	w := newWorld(t)
	l := w.lun(w.luns[0], nil)
	w.stage(l, true)
	block := w.fake("sys/class/block/")
	name := w.session(l).block(l.Lun)
	for dm, uuid := range map[string]string{"dm-1": "LVM-x", "dm-2": "mpath-y"} {
		w.must(os.MkdirAll(filepath.Join(block, name, "holders", dm), 0o755))
		w.write(filepath.Join(block, dm, "dm/uuid"), uuid+"\n")
	}
	if device, err := w.d.device(t.Context(), l); err != nil || filepath.Base(device) != "dm-2" {
		t.Errorf("device: got %s, %v, want dm-2", device, err)
	}
}

// TestMultipathWithPartitions checks that multipath, called with the name of its map, decides whether that is in use:
// with it, multipath removes the devices that kpartx has made of partitions, which claim it. If it stays, so do its
// paths.
func TestMultipathWithPartitions(t *testing.T) {
	w := newWorld(t)
	if w.real {
		t.Skip("the device of multipathd is a stand-in")
	}
	l := w.lun(w.luns[0], nil)
	w.stage(l, true)
	name := w.session(l).block(l.Lun)
	holder := w.fake("sys/class/block/" + name + "/holders/dm-2")
	w.must(os.Mkdir(holder, 0o755))
	w.write(w.fake("sys/class/block/dm-2/dm/uuid"), "mpath-y\n")
	w.write(w.fake("sys/class/block/dm-2/dm/name"), "mpatha\n")
	w.must(os.Symlink(w.disks[w.luns[1]], w.fake("dev/dm-2")))
	partition, err := unix.Open(w.fake("dev/dm-2"), unix.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC, 0)
	w.must(err)
	defer unix.Close(partition)
	bin := t.TempDir()
	script := "#!/bin/sh\n[ \"$*\" = '-f mpatha' ] && [ -e '%[1]s/unused' ] && exec rmdir '%[2]s'\n" +
		"echo map in use; exit 1\n"
	w.must(os.WriteFile(filepath.Join(bin, "multipath"), fmt.Appendf(nil, script, bin, holder), 0o755))
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	if err := w.tryUnstage(l, true); err == nil || !strings.Contains(err.Error(), "map in use") {
		t.Errorf("got error %v, want that of multipath", err)
	}
	if w.session(l).block(l.Lun) != name {
		t.Error("a device in use has lost its path")
	}
	w.write(filepath.Join(bin, "unused"), "")
	w.unstage(l, true)
	w.nothing()
}

// firstEvent has one event, and lets something happen at it.
type firstEvent struct {
	quiet
	happens func() error
}

func (e firstEvent) Next(context.Context) error { return e.happens() }

// TestMultipathAfterSilentPortal checks that there is time left to wait for multipathd after a portal has used up the
// time for sessions.
func TestMultipathAfterSilentPortal(t *testing.T) {
	w := newWorld(t)
	var timeIsOver context.CancelFunc
	w.d.withTimeout = func(ctx context.Context, _ time.Duration) (context.Context, context.CancelFunc) {
		ctx, timeIsOver = context.WithCancel(ctx)
		return ctx, timeIsOver
	}
	l := w.lun(w.luns[0], func(s *corev1.ISCSIVolumeSource) { s.Portals = []string{"127.0.0.2"} })
	bin := t.TempDir()
	w.must(os.WriteFile(filepath.Join(bin, "multipath"), nil, 0o755))
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	var scans, waits atomic.Int32
	first := make(chan struct{})
	w.d.write = func(file, text string) error {
		if filepath.Base(file) != "scan" {
			return w.sysfs(file, text)
		}
		if scans.Add(1) == 2 { // the device never comes
			<-first
			timeIsOver()
			return nil
		}
		defer close(first)
		return w.sysfs(file, text)
	}
	w.d.cfg.Events = func() (Events, error) {
		if waits.Add(1) <= 2 {
			return quiet{}, nil // of a portal
		}
		return firstEvent{happens: func() error {
			paths, err := filepath.Glob(w.fake("sys/class/block/sd*/holders"))
			w.must(errors.Join(err, os.Mkdir(filepath.Join(paths[0], "dm-2"), 0o755)))
			w.write(w.fake("sys/class/block/dm-2/dm/uuid"), "mpath-y")
			return nil
		}}, nil
	}
	if device, err := w.d.attach(t.Context(), l, t.TempDir(), w.secrets); err != nil || filepath.Base(device) != "dm-2" {
		t.Errorf("device: got %s, %v, want dm-2", device, err)
	}
}

// TestPublishOtherDevice checks that a pod does not get another disk if the sessions end while the driver waits for
// multipathd, and another disk takes the name of the LUN's.
func TestPublishOtherDevice(t *testing.T) {
	w := newWorld(t)
	l := w.lun(w.luns[0], func(s *corev1.ISCSIVolumeSource) { s.Portals = []string{"127.0.0.2"} })
	w.stage(l, true)
	name := w.session(l).block(l.Lun)
	bin := t.TempDir()
	w.must(os.WriteFile(filepath.Join(bin, "multipath"), nil, 0o755))
	t.Setenv("PATH", bin)
	w.d.cfg.Events = func() (Events, error) {
		w.must(os.RemoveAll(w.fake("sys/class/iscsi_session")))
		w.must(os.MkdirAll(w.fake("sys/class/block/"+name+"/holders/dm-2"), 0o755))
		w.write(w.fake("sys/class/block/dm-2/dm/uuid"), "mpath-other")
		return quiet{}, os.Symlink(w.disks[w.luns[1]], w.fake("dev/dm-2"))
	}
	target, err := w.publish(l, true, "pod", false)
	if err == nil || !strings.Contains(err.Error(), "is no longer LUN") {
		t.Errorf("got error %v, want that the device is no longer the LUN's", err)
		w.unpublish(target)
	}
}

// TestRefused checks that the error of a failed command is returned, and the volume is cleaned up completely.
func TestRefused(t *testing.T) {
	for _, command := range []string{"node-new", "node-login", "iface-show", "iface-new", "iface-update"} {
		t.Run(command, func(t *testing.T) {
			w := newWorld(t)
			name := "iqn.2026-01.test.nodelet:me"
			l := w.lun(w.luns[0], func(s *corev1.ISCSIVolumeSource) { s.InitiatorName = &name })
			w.write(w.fake("refuse-"+command), "")
			err := w.tryStage(l, false)
			if err == nil || !strings.Contains(err.Error(), "fails on request") || !strings.Contains(err.Error(), "iscsiadm") {
				t.Errorf("got error %v, want that of iscsiadm", err)
			}
			w.unstage(l, false)
			w.nothing()
		})
	}
}

// TestLogoutFails checks that the LUN is not given up before its session has ended.
func TestLogoutFails(t *testing.T) {
	w := newWorld(t)
	l := w.lun(w.luns[0], nil)
	w.stage(l, false)
	w.write(w.fake("refuse-session-logout"), "")
	if err := w.tryUnstage(l, false); err == nil {
		t.Error("got no error for a logout that the session refuses, want one")
	}
	w.must(os.Remove(w.fake("refuse-session-logout")))
	w.begin()
	w.unstage(l, false)
	w.nothing()
}

// TestMissing checks that what the node lacks is named, with its package; the volume can be given up without it.
func TestMissing(t *testing.T) {
	w := newWorld(t)
	name := "iqn.2026-01.test.nodelet:me"
	l := w.lun(w.luns[0], nil)
	t.Setenv("PATH", t.TempDir())
	if err := w.tryStage(l, false); err == nil || !strings.Contains(err.Error(), "install open-iscsi") {
		t.Errorf("got the error %v, want the advice to install open-iscsi", err)
	}
	w.unstage(l, false)
	l = w.lun(w.luns[0], func(s *corev1.ISCSIVolumeSource) { s.InitiatorName = &name })
	if err := w.tryStage(l, false); err == nil {
		t.Error("got no error for an initiator name without iscsiadm, want one")
	}
	w.unstage(l, false)
	w.nothing()
}

// TestReadOnly checks that a volume that is read-only for one pod is not written to for another, and a blank LUN is
// not formatted for it.
func TestReadOnly(t *testing.T) {
	w := newWorld(t)
	l := w.lun(w.luns[0], nil)
	l.ReadOnly = true
	if err := w.tryStage(l, false); err == nil || !strings.Contains(err.Error(), "not formatted") {
		t.Errorf("blank LUN: got %v, want that it is not formatted", err)
	}
	l.ReadOnly = false
	w.stage(l, false)
	w.unstage(l, false)
	l.ReadOnly = true
	w.stage(l, false)
	a, err := w.publish(l, false, "a", true)
	w.must(err)
	if _, err := w.publish(l, false, "b", false); err == nil || !strings.Contains(err.Error(), "read-only") {
		t.Errorf("pod that writes: got %v, want that it is read-only", err)
	}
	w.unpublish(a)
	w.unstage(l, false)
	w.nothing()
}

// TestReadOnlyOptions checks that the mount options of a volume also count for a pod that may only read it.
func TestReadOnlyOptions(t *testing.T) {
	w := newWorld(t)
	l := w.lun(w.luns[0], nil)
	w.stage(l, false)
	const options = unix.MS_NOEXEC | unix.MS_NOSUID | unix.MS_NODEV
	w.must(unix.Mount("", w.staging(l, false), "", unix.MS_BIND|unix.MS_REMOUNT|options, ""))
	for _, readOnly := range []bool{false, true} {
		a, err := w.publish(l, false, "a", readOnly)
		w.must(err)
		var fs unix.Statfs_t
		w.must(unix.Statfs(a, &fs))
		if fs.Flags&options != options || fs.Flags&unix.ST_RDONLY != 0 != readOnly {
			t.Errorf("readOnly=%t: got flags %x, want %x among them", readOnly, fs.Flags, options)
		}
		w.unpublish(a)
	}
	w.unstage(l, false)
	w.nothing()
}

// TestSecretLacks checks that a secret without what a login needs is named by its keys.
func TestSecretLacks(t *testing.T) {
	w := newWorld(t)
	l := w.lun(w.luns[0], nil)
	for _, secrets := range []map[string]string{nil, {"node.session.auth.username": "u"}} {
		w.secrets = secrets
		if err := w.tryStage(l, false); err == nil || !strings.Contains(err.Error(), "node.session.auth.password") {
			t.Errorf("%v: got %v, want the missing key", secrets, err)
		}
	}
	w.secrets = map[string]string{
		"node.session.auth.username": "u\nnode.startup = automatic",
		"node.session.auth.password": "p",
	}
	if err := w.tryStage(l, false); err == nil || !strings.Contains(err.Error(), "more than one line") {
		t.Errorf("got the error %v, want that a value has more than one line", err)
	}
}

// TestNoPassword checks that a target that wants no password gets none.
func TestNoPassword(t *testing.T) {
	w := newWorld(t)
	w.must(os.Remove(w.fake("password")))
	w.secrets = nil
	l := w.lun(w.luns[0], func(s *corev1.ISCSIVolumeSource) { s.SessionCHAPAuth = false })
	w.stage(l, false)
	text, err := os.ReadFile(w.fake("db/nodes/" + w.target + "/127.0.0.1,3260"))
	if err != nil || strings.Contains(string(text), "CHAP") {
		t.Errorf("record: got %v, want no CHAP in\n%s", err, text)
	}
	w.unstage(l, false)
	w.nothing()
}
