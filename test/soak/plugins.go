package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"

	csifake "github.com/nodelet/nodelet/test/csi/fake"
	devicefake "github.com/nodelet/nodelet/test/plugins/devices/fake"
)

const (
	driverName     = "soak.csi.nodelet.test"
	deviceResource = "nodelet.test/soak"
	// deviceCount is more than all slots can use at a time.
	deviceCount = 64
)

// plugin is a plugin of the node, in a process of its own so that it can be killed. The program is this one; see
// servePlugin.
type plugin struct {
	name, root, node, state string
	cmd                     *exec.Cmd
}

// start starts the plugin. It ends when this process ends.
func (p *plugin) start() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	p.cmd = exec.Command(self, servePluginArg, p.name, p.root, p.node, p.state)
	p.cmd.Stdout, p.cmd.Stderr = os.Stderr, os.Stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return p.cmd.Start()
}

// kill kills the plugin, if it runs.
func (p *plugin) kill() {
	if p.cmd != nil {
		_ = p.cmd.Process.Kill() // it may have ended already
		_ = p.cmd.Wait()
		p.cmd = nil
	}
}

// servePluginArg as the first argument makes this program a plugin.
const servePluginArg = "serve-plugin"

// servePlugin serves a plugin until it is killed or gets SIGTERM. args are its name, the agent's root directory, the
// node's name and a directory for the plugin's state.
func servePlugin(args []string) error {
	if len(args) != 4 {
		return fmt.Errorf("serve plugin: got %d arguments, want 4", len(args))
	}
	name, root := args[0], args[1]
	node, state := args[2], args[3]
	var end func()
	switch name {
	case "csi":
		d, err := csifake.Start(csifake.Config{
			Name:     driverName,
			NodeID:   node,
			State:    state,
			Socket:   csiSocket(root),
			Registry: filepath.Join(root, "plugins_registry"),
			Loop:     true,
		})
		if err != nil {
			return err
		}
		end = d.Close
	case "device":
		c := devicefake.Config{Root: root, Resource: deviceResource, Registry: true}
		for i := range deviceCount {
			c.Devices = append(c.Devices, fmt.Sprintf("soak%d", i))
		}
		p, err := devicefake.Start(c)
		if err != nil {
			return err
		}
		end = p.Close
	default:
		return fmt.Errorf("serve plugin %q: use csi or device", name)
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, unix.SIGTERM)
	<-stop
	end()
	return nil
}

func csiSocket(root string) string { return filepath.Join(root, "plugins", driverName, "csi.sock") }

// startPlugins starts the node's plugins, and makes a CSI volume for each slot of the churn and for the steady pod.
func (s *soak) startPlugins(ctx context.Context) error {
	dir := filepath.Join(filepath.Dir(s.node.RootDir), "soak-plugins")
	for _, name := range []string{"csi", "device"} {
		p := &plugin{name: name, root: s.node.RootDir, node: s.node.Name, state: filepath.Join(dir, name)}
		if err := p.start(); err != nil {
			return err
		}
		s.plugins = append(s.plugins, p)
	}
	if err := s.apply(ctx, csiObjects); err != nil {
		return err
	}
	problem := within(ctx, settleLimit, func() string {
		n := &corev1.Node{}
		err := s.api.Core.Get().Resource("nodes").Name(s.node.Name).Do(ctx).Into(n)
		if free := n.Status.Allocatable[deviceResource]; err != nil || free.Value() != deviceCount {
			return fmt.Sprintf("the node offers %s devices (%v)", free.String(), err)
		}
		return ""
	})
	if problem != "" {
		return errors.New(problem)
	}
	claims := []string{claimOf("steady-csi")}
	for slot := range s.opts.slots {
		claims = append(claims, claimOf(fmt.Sprintf("churn-%d-0", slot)))
	}
	for _, claim := range claims {
		if err := s.makeVolume(ctx, claim); err != nil {
			return err
		}
	}
	return nil
}

// makeVolume has the driver make a volume, and makes a claim that is bound to it.
func (s *soak) makeVolume(ctx context.Context, claim string) error {
	conn, err := grpc.NewClient("unix://"+csiSocket(s.node.RootDir),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	v, err := csipb.NewControllerClient(conn).CreateVolume(ctx, &csipb.CreateVolumeRequest{
		Name:          claim,
		CapacityRange: &csipb.CapacityRange{RequiredBytes: 8 << 20},
		VolumeCapabilities: []*csipb.VolumeCapability{{
			AccessType: &csipb.VolumeCapability_Mount{Mount: &csipb.VolumeCapability_MountVolume{}},
			AccessMode: &csipb.VolumeCapability_AccessMode{Mode: csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		}},
	}, grpc.WaitForReady(true))
	if err != nil {
		return fmt.Errorf("create volume: %w", err)
	}
	return s.apply(ctx, strings.NewReplacer("CLAIM", claim, "HANDLE", v.Volume.VolumeId).Replace(claimObjects))
}

// claimOf returns the name of the claim that a pod uses. Pods of one slot follow each other and use the same.
func claimOf(pod string) string {
	parts := strings.Split(pod, "-")
	return "claim-" + parts[0] + "-" + parts[1]
}

const csiObjects = `
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: ` + driverName + `}
spec: {attachRequired: false, podInfoOnMount: true, volumeLifecycleModes: [Persistent, Ephemeral]}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: manual}
provisioner: none.nodelet.test
`

const claimObjects = `
apiVersion: v1
kind: PersistentVolume
metadata: {name: CLAIM}
spec:
  capacity: {storage: 8Mi}
  accessModes: [ReadWriteOnce]
  persistentVolumeReclaimPolicy: Retain
  storageClassName: manual
  claimRef: {namespace: default, name: CLAIM}
  csi: {driver: ` + driverName + `, volumeHandle: HANDLE, fsType: ext4}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: CLAIM, namespace: default}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: manual
  volumeName: CLAIM
  resources: {requests: {storage: 8Mi}}
`

// apply creates objects.
func (s *soak) apply(ctx context.Context, objects string) error {
	file := filepath.Join(filepath.Dir(s.node.RootDir), "soak-objects.yaml")
	if err := os.WriteFile(file, []byte(objects), 0o600); err != nil {
		return err
	}
	_, err := s.tb.Kubectl(ctx, "apply", "-f", file)
	return err
}

// withPlugin injects the death of a plugin. It is started again after a while.
func withPlugin(name string) func(context.Context, *lane) error {
	return func(ctx context.Context, l *lane) error {
		for range 2 {
			for _, p := range l.plugins {
				if p.name != name {
					continue
				}
				p.kill()
				l.report.killed(name + " plugin")
				l.wait(ctx, l.between(0, 6*time.Second))
				if err := p.start(); err != nil {
					return err
				}
			}
			l.wait(ctx, l.between(0, 6*time.Second))
		}
		return nil
	}
}

// detachLoops detaches the loop devices whose images were removed with the testbed: a CSI driver that is killed keeps
// them.
func detachLoops(ctx context.Context) error {
	out, err := exec.CommandContext(ctx, "losetup", "--noheadings", "--raw", "--output", "NAME,BACK-FILE").Output()
	if err != nil {
		return fmt.Errorf("list loop devices: %w", err)
	}
	var errs []error
	for line := range strings.Lines(string(out)) {
		device, file, _ := strings.Cut(line, " ")
		if strings.Contains(file, "/soak-plugins/csi/volumes/") && strings.Contains(file, "deleted") {
			errs = append(errs, exec.CommandContext(ctx, "losetup", "--detach", device).Run())
		}
	}
	return errors.Join(errs...)
}
