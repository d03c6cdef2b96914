//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/nodelet/nodelet/test/testbed"
)

const hostDriver = "host.csi.nodelet.test"

// csiDriver runs the driver of test/csi/fake as a separate process next to the node, with the real external-attacher.
type csiDriver struct {
	program, attacher string
	state, socket     string
	log               *os.File
	driver, helper    *exec.Cmd
}

// startCSI starts driver and attacher. The end of the test stops them and checks that no mount and no loop device is
// left.
func startCSI(t *testing.T) *csiDriver {
	t.Helper()
	dir := t.TempDir()
	d := &csiDriver{program: filepath.Join(dir, "hostdriver"), state: filepath.Join(dir, "state"),
		socket: filepath.Join(node().RootDir, "plugins", hostDriver, "csi.sock")}
	build := exec.Command("go", "build", "-o", d.program, "../csi/fake/cmd/hostdriver")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the CSI driver: %v\n%s", err, out)
	}
	var err error
	if d.log, err = os.Create(filepath.Join(dir, "log")); err != nil {
		t.Fatal(err)
	}
	cache, err := testbed.OpenCache(os.Stderr)
	if err == nil {
		d.attacher, err = cache.Program(t.Context(), "external-attacher", "csi-attacher")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		d.end(d.helper)
		d.kill()
		if t.Failed() {
			text, _ := os.ReadFile(d.log.Name())
			t.Logf("log of driver and attacher:\n%s", text)
		}
		d.nothingLeft(t)
	})
	d.start(t)
	return d
}

// start starts the driver and the attacher, which exits when it loses its driver. While an agent runs, start waits
// until the driver is in the CSINode.
func (d *csiDriver) start(t *testing.T) {
	t.Helper()
	d.driver = d.run(t, d.program, "--name="+hostDriver, "--node="+node().Name, "--state="+d.state, "--socket="+d.socket,
		"--registry="+filepath.Join(node().RootDir, "plugins_registry"), "--max-volumes=16", "--condition")
	d.end(d.helper)
	d.helper = d.run(t, d.attacher, "--kubeconfig="+tb.Kubeconfig, "--csi-address="+d.socket, "--timeout=10s")
	if agentRuns() {
		d.waitRegistered(t)
	}
}

func (d *csiDriver) waitRegistered(t *testing.T) {
	t.Helper()
	eventually(t, "the driver is in the CSINode", func() (string, bool) {
		out, err := tb.Kubectl(context.Background(), "get", "csinode", node().Name, "-o", "jsonpath={.spec.drivers}")
		return fmt.Sprint(out, err), strings.Contains(out, hostDriver)
	})
}

func (d *csiDriver) run(t *testing.T, program string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = d.log, d.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd
}

// kill ends the driver with SIGKILL, as a crash would.
func (d *csiDriver) kill() { d.end(d.driver); d.driver = nil }

func (d *csiDriver) end(cmd *exec.Cmd) {
	if cmd == nil {
		return
	}
	_ = cmd.Process.Kill() // it may have exited already
	_ = cmd.Wait()
}

// controller returns a client of the driver's controller service.
func (d *csiDriver) controller(t *testing.T) csipb.ControllerClient {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+d.socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return csipb.NewControllerClient(conn)
}

// createVolume creates a volume and returns its handle.
func (d *csiDriver) createVolume(t *testing.T, name string, size int64) string {
	t.Helper()
	r, err := d.controller(t).CreateVolume(t.Context(), &csipb.CreateVolumeRequest{Name: name,
		CapacityRange: &csipb.CapacityRange{RequiredBytes: size},
		VolumeCapabilities: []*csipb.VolumeCapability{{
			AccessType: &csipb.VolumeCapability_Mount{Mount: &csipb.VolumeCapability_MountVolume{}},
			AccessMode: &csipb.VolumeCapability_AccessMode{Mode: csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		}}},
		grpc.WaitForReady(true))
	if err != nil {
		t.Fatalf("create volume %s: %v", name, err)
	}
	return r.Volume.VolumeId
}

// mounts lists the mounts of CSI volumes below the agent's root directory.
func (d *csiDriver) mounts(t *testing.T) (found []string) {
	t.Helper()
	all, err := mountinfo.GetMounts(mountinfo.PrefixFilter(node().RootDir))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		if strings.Contains(m.Mountpoint, "kubernetes.io~csi") || strings.Contains(m.Mountpoint, "/kubernetes.io/csi/") {
			found = append(found, m.Mountpoint)
		}
	}
	return found
}

// loops lists the loop devices of the driver's volumes.
func (d *csiDriver) loops() string {
	out, _ := exec.Command("losetup", "--list", "--noheadings", "--output", "NAME,BACK-FILE").Output()
	var ours []string
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, d.state) {
			ours = append(ours, strings.TrimSpace(line))
		}
	}
	return strings.Join(ours, "\n")
}

// nothingLeft fails the test for each mount and loop device that is left, and removes it.
func (d *csiDriver) nothingLeft(t *testing.T) {
	t.Helper()
	for _, m := range d.mounts(t) {
		t.Errorf("mounts left: got %s, want none", m)
		_ = unix.Unmount(m, unix.MNT_DETACH)
	}
	for line := range strings.Lines(d.loops()) {
		t.Errorf("loop devices left: got %s, want none", line)
		_ = exec.Command("losetup", "--detach", strings.Fields(line)[0]).Run()
	}
}

// waitReturned waits until every volume is unstaged and detached.
func (d *csiDriver) waitReturned(t *testing.T) {
	t.Helper()
	eventually(t, "all volumes are unstaged and detached", func() (string, bool) {
		vas, err := tb.Kubectl(context.Background(), "get", "volumeattachments", "-o", "name")
		if err != nil {
			return err.Error(), false
		}
		inUse, err := tb.Kubectl(context.Background(), "get", "node", node().Name, "-o",
			"jsonpath={.status.volumesInUse}{.status.volumesAttached}")
		if err != nil {
			return err.Error(), false
		}
		left := strings.TrimSpace(strings.Join(append(d.mounts(t), d.loops(), vas, inUse), "\n"))
		return left, left == ""
	})
}
