package iscsi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/test/ownmounts"
)

func TestMain(m *testing.M) { ownmounts.Main(m) }

// world is a node with a target: a stand-in, or, where the environment names one, the real thing.
type world struct {
	*testing.T
	d       *Driver
	dir     string // for all that is made
	real    bool
	target  string
	luns    [2]string
	secrets map[string]string
	disks   map[string]string // loop devices of the stand-in by LUN
}

const portal = "127.0.0.1:3260"

// newWorld gives a test a node. A real target has the LUNs 3 and 4, and wants a password.
func newWorld(t *testing.T) *world {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: volumes are mounted")
	}
	w := &world{
		T:      t,
		dir:    t.TempDir(),
		target: "iqn.2026-01.test.nodelet:one",
		luns:   [2]string{"3", "4"},
		disks:  map[string]string{},
	}
	user, password := "node", "stays-a-secret"
	if w.target = os.Getenv("NODELET_TEST_TARGET"); w.target != "" {
		w.real = true
		user, password, _ = strings.Cut(os.Getenv("NODELET_TEST_CHAP"), ":")
	} else {
		w.target = "iqn.2026-01.test.nodelet:one"
		w.standIn()
		w.write(w.fake("password"), password)
	}
	w.secrets = map[string]string{"node.session.auth.username": user, "node.session.auth.password": password}
	w.begin()
	return w
}

// standIn puts the stand-in for iscsiadm into the way.
func (w *world) standIn() {
	w.Helper()
	here, err := os.Getwd()
	w.must(err)
	w.Setenv("PATH", filepath.Join(here, "testdata")+":"+os.Getenv("PATH"))
	w.Setenv("FAKE", w.fake(""))
	for _, dir := range []string{"sys/devices", "sys/class/iscsi_session", "sys/class/scsi_host", "sys/class/block", "dev",
		"db"} {
		w.must(os.MkdirAll(w.fake(dir), 0o755))
	}
	for _, lun := range w.luns {
		image := filepath.Join(w.dir, "disk"+lun)
		w.must(os.WriteFile(image, nil, 0o600))
		w.must(os.Truncate(image, 20<<20))
		w.disks[lun] = ownmounts.Loop(w, image)
	}
}

func (w *world) fake(path string) string { return filepath.Join(w.dir, "fake", path) }

// begin starts the driver.
func (w *world) begin() {
	c := Config{Dir: filepath.Join(w.dir, "plugin"), State: filepath.Join(w.dir, "state")}
	c.Log = slog.New(slog.DiscardHandler)
	if !w.real {
		c.Sys, c.Dev = w.fake("sys"), w.fake("dev")
		c.DBs = []string{w.fake("nowhere"), w.fake("db")}
		c.Events = func() (Events, error) { return quiet{}, nil }
	}
	w.d = New(c)
	if !w.real {
		w.d.write = w.sysfs
	}
}

// quiet has no events: the devices of the fake are there at once.
type quiet struct{}

func (quiet) Next(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
func (quiet) Close() error                   { return nil }

// sysfs does what the kernel does when its files are written to.
func (w *world) sysfs(file, text string) error {
	if host := filepath.Base(filepath.Dir(file)); filepath.Base(file) == "scan" {
		n, lun := strings.TrimPrefix(host, "host"), strings.TrimPrefix(text, "0 0 ")
		if w.disks[lun] == "" {
			return nil // the target has no such LUN
		}
		name := "sd" + n + "-" + lun
		scsi := w.fake(fmt.Sprintf("sys/devices/host%s/session%[1]s/target%[1]s:0:0/%[1]s:0:0:%s", n, lun))
		return errors.Join(os.MkdirAll(filepath.Join(scsi, "block", name), 0o755),
			os.MkdirAll(w.fake("sys/class/block/"+name+"/holders"), 0o755),
			os.Symlink(scsi, w.fake("sys/class/block/"+name+"/device")), os.Symlink(w.disks[lun], w.fake("dev/"+name)))
	}
	block := filepath.Dir(filepath.Dir(file))
	scsi, err := filepath.EvalSymlinks(filepath.Join(block, "device"))
	return errors.Join(err, os.RemoveAll(scsi), os.RemoveAll(block), os.Remove(w.fake("dev/"+filepath.Base(block))))
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) write(path, text string) {
	w.Helper()
	w.must(os.MkdirAll(filepath.Dir(path), 0o755))
	w.must(os.WriteFile(path, []byte(text), 0o600))
}

// lun is one of the target's as a pod names it.
func (w *world) lun(n string, change func(*corev1.ISCSIVolumeSource)) *LUN {
	s := &corev1.ISCSIVolumeSource{TargetPortal: "127.0.0.1", IQN: w.target, SessionCHAPAuth: true}
	_, err := fmt.Sscan(n, &s.Lun)
	w.must(err)
	if change != nil {
		change(s)
	}
	l, err := Of("vol"+n, s)
	w.must(err)
	return l
}

func capability(block bool) *csipb.VolumeCapability {
	if block {
		return &csipb.VolumeCapability{
			AccessType: &csipb.VolumeCapability_Block{Block: &csipb.VolumeCapability_BlockVolume{}},
		}
	}
	return &csipb.VolumeCapability{
		AccessType: &csipb.VolumeCapability_Mount{Mount: &csipb.VolumeCapability_MountVolume{FsType: "ext4"}},
	}
}

func (w *world) staging(l *LUN, block bool) string {
	if block {
		return filepath.Join(w.dir, "plugin/volumeDevices", l.Directory())
	}
	return filepath.Join(w.dir, "plugin", l.Directory())
}

func (w *world) tryStage(l *LUN, block bool) error {
	w.must(os.MkdirAll(w.staging(l, block), 0o755))
	_, err := w.d.NodeStageVolume(w.Context(), &csipb.NodeStageVolumeRequest{
		StagingTargetPath: w.staging(l, block),
		VolumeCapability:  capability(block),
		VolumeContext:     l.Attributes(),
		Secrets:           w.secrets,
	})
	return err
}

func (w *world) stage(l *LUN, block bool) {
	w.Helper()
	w.must(w.tryStage(l, block))
}

func (w *world) unstage(l *LUN, block bool) {
	w.Helper()
	w.must(w.tryUnstage(l, block))
	w.must(os.Remove(w.staging(l, block)))
}

func (w *world) tryUnstage(l *LUN, block bool) error {
	_, err := w.d.NodeUnstageVolume(context.Background(),
		&csipb.NodeUnstageVolumeRequest{StagingTargetPath: w.staging(l, block)})
	return err
}

// publish shows a LUN to a pod and gives the path.
func (w *world) publish(l *LUN, block bool, pod string, readOnly bool) (string, error) {
	target := filepath.Join(w.staging(l, block), pod)
	if !block {
		target = filepath.Join(w.dir, pod)
		w.must(os.MkdirAll(target, 0o755))
	}
	_, err := w.d.NodePublishVolume(w.Context(), &csipb.NodePublishVolumeRequest{
		StagingTargetPath: w.staging(l, block),
		TargetPath:        target,
		VolumeCapability:  capability(block),
		Readonly:          readOnly,
	})
	return target, err
}

func (w *world) unpublish(target string) {
	w.Helper()
	_, err := w.d.NodeUnpublishVolume(context.Background(), &csipb.NodeUnpublishVolumeRequest{TargetPath: target})
	w.must(err)
	w.must(os.Remove(target))
}

// sessions counts those with the target.
func (w *world) sessions() (n int) {
	all, _ := filepath.Glob(filepath.Join(w.d.cfg.Sys, "class/iscsi_session/*/targetname"))
	for _, file := range all {
		if value(file) == w.target {
			n++
		}
	}
	return n
}

// nothing: no session, record, interface or note is left.
func (w *world) nothing() {
	w.Helper()
	if n := w.sessions(); n != 0 {
		w.Errorf("got %d sessions left, want 0", n)
	}
	for _, db := range w.d.cfg.DBs {
		for _, pattern := range []string{filepath.Join(db, "nodes", w.target, "*"), filepath.Join(db, "ifaces/127*")} {
			if left, _ := filepath.Glob(pattern); len(left) > 0 {
				w.Errorf("left: got %v, want none", left)
			}
		}
	}
	if left, _ := filepath.Glob(filepath.Join(w.d.cfg.State, "*")); len(left) > 0 {
		w.Errorf("left: got %v, want none", left)
	}
}
