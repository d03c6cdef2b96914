package volumes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/kube/pluginname"
	"github.com/nodelet/nodelet/kube/storage"
)

// lunNode takes down what it is asked for, and mounts nothing. For a device it creates the file.
type lunNode struct {
	csipb.NodeClient
	mu        sync.Mutex
	staged    *csipb.NodeStageVolumeRequest
	published *csipb.NodePublishVolumeRequest
	taken     []string
}

func (n *lunNode) NodeStageVolume(_ context.Context, in *csipb.NodeStageVolumeRequest,
	_ ...grpc.CallOption) (*csipb.NodeStageVolumeResponse, error) {
	n.staged = in
	return nil, nil
}

func (n *lunNode) NodePublishVolume(_ context.Context, in *csipb.NodePublishVolumeRequest,
	_ ...grpc.CallOption) (*csipb.NodePublishVolumeResponse, error) {
	n.published = in
	if in.VolumeCapability.GetBlock() != nil {
		return nil, os.WriteFile(in.TargetPath, nil, 0o600)
	}
	return nil, nil
}

func (n *lunNode) NodeUnpublishVolume(_ context.Context, in *csipb.NodeUnpublishVolumeRequest,
	_ ...grpc.CallOption) (*csipb.NodeUnpublishVolumeResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.taken = append(n.taken, in.TargetPath)
	return nil, nil
}

func (n *lunNode) NodeUnstageVolume(context.Context, *csipb.NodeUnstageVolumeRequest,
	...grpc.CallOption) (*csipb.NodeUnstageVolumeResponse, error) {
	return nil, nil
}

// chapSecrets has the one Secret that is asked for.
type chapSecrets struct{ Objects }

func (chapSecrets) Secret(_ context.Context, namespace, name string) (*corev1.Secret, error) {
	if namespace+"/"+name != "team/chap" {
		return nil, errors.New("no such secret")
	}
	return &corev1.Secret{Data: map[string][]byte{"node.session.auth.password": []byte("p")}}, nil
}

// lunManager is a node without an API server whose driver for LUNs is a lunNode.
func lunManager(t *testing.T, cluster Cluster) (*Manager, *lunNode, string) {
	t.Helper()
	root, node := t.TempDir(), &lunNode{}
	return newTestManager(t, Config{Root: root, Cluster: cluster}, node), node, root
}

// lunRequest is for a volume of the pod team/pod.
func lunRequest(v *corev1.Volume) Request {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "pod", UID: "uid"}}
	return requestFor(pod, v)
}

func lunOf(secret string) *corev1.Volume {
	return &corev1.Volume{
		Name: "data",
		VolumeSource: corev1.VolumeSource{ISCSI: &corev1.ISCSIVolumeSource{TargetPortal: "10.0.0.1",
			IQN: "iqn.2026-01.test:a", Lun: 2, FSType: "xfs", SessionCHAPAuth: true,
			SecretRef: &corev1.LocalObjectReference{Name: secret}}},
	}
}

// TestPodISCSI checks a LUN that a pod names: claimed, staged with its password, published at the kubelet's path,
// found there and taken down.
func TestPodISCSI(t *testing.T) {
	t.Parallel()
	manager, node, root := lunManager(t, nil)
	m, err := manager.Mount(t.Context(), lunRequest(lunOf("chap")), chapSecrets{})
	if err != nil {
		t.Fatal(err)
	}
	if want := filepath.Join(root, "pods/uid/volumes/kubernetes.io~iscsi/data"); m.HostPath != want || !m.SELinuxRelabel ||
		m.ReadOnly {
		t.Errorf("mounted %+v, want %s", m, want)
	}
	in := node.staged
	if in.Secrets["node.session.auth.password"] != "p" || in.VolumeCapability.GetMount().GetFsType() != "xfs" ||
		!strings.Contains(in.VolumeContext["lun"], `"Portals":["10.0.0.1:3260"],"Iqn":"iqn.2026-01.test:a","Lun":"2"`) ||
		node.published.Secrets != nil ||
		in.StagingTargetPath != filepath.Join(root,
			"plugins/kubernetes.io/iscsi/iface-default/10.0.0.1:3260-iqn.2026-01.test:a-lun-2") {
		t.Errorf("got staged %v, want the LUN with its secret", in)
	}
	if in := manager.csi.InUse(); len(in) != 1 || in[0] != "kubernetes.io/iscsi/10.0.0.1:iqn.2026-01.test:a:2" {
		t.Errorf("in use: got %q, want one, with the portal as the pod names it", in)
	}
	disk, err := manager.List("uid")
	if err != nil || len(disk) != 1 || disk[0] != (OnDisk{Plugin: pluginname.ISCSI, Name: "data"}) {
		t.Fatalf("on disk: got %v, %v, want the volume data", disk, err)
	}
	if err := manager.Unmount(t.Context(), "uid", disk[0]); err != nil {
		t.Error(err)
	}
	if len(node.taken) != 1 || len(manager.csi.Used("uid")) != 0 {
		t.Errorf("got taken down %q and used %q, want one and none", node.taken, manager.csi.Used("uid"))
	}
}

// listedLUN is an API server whose controller manager lists one LUN as attached.
type listedLUN struct {
	noCluster
	name corev1.UniqueVolumeName
}

func (c *listedLUN) AttachedInTree(_ context.Context, _ types.UID, name corev1.UniqueVolumeName) error {
	if name != c.name {
		return fmt.Errorf("the controller manager lists %s, not %s", c.name, name)
	}
	return nil
}

// TestNameOfLUN checks that a LUN has the name that the controller manager gives it: that of the portal as the volume
// has it, with a port or without. For the node both are one LUN.
func TestNameOfLUN(t *testing.T) {
	t.Parallel()
	cluster := &listedLUN{}
	manager, node, _ := lunManager(t, cluster)
	for i, portal := range []string{"10.0.0.1", "10.0.0.1:3260"} {
		r := lunRequest(lunOf("chap"))
		r.Volume.ISCSI.TargetPortal, r.Pod.UID = portal, types.UID(portal)
		cluster.name = corev1.UniqueVolumeName("kubernetes.io/iscsi/" + portal + ":iqn.2026-01.test:a:2")
		if _, err := manager.Mount(t.Context(), r, chapSecrets{}); err != nil {
			t.Fatalf("%s: %v", portal, err)
		}
		if in := manager.csi.InUse(); len(in) != i+1 || !slices.Contains(in, cluster.name) {
			t.Errorf("%s: got in use %q, want the names so far", portal, in)
		}
		if id := node.staged.VolumeId; id != "10.0.0.1:3260:iqn.2026-01.test:a:2" {
			t.Errorf("%s: got the LUN %s staged, want one LUN", portal, id)
		}
	}
}

// TestGoneBeforeRefresh checks that a volume that goes while the refresh waits for its turn is not staged without its
// password, and that the next attempt stages it.
func TestGoneBeforeRefresh(t *testing.T) {
	t.Parallel()
	manager, node, root := lunManager(t, nil)
	r := lunRequest(lunOf("chap"))
	m, err := manager.Mount(t.Context(), r, chapSecrets{})
	if err != nil {
		t.Fatal(err)
	}
	again := newTestManager(t, Config{Root: root}, node) // it stages before it publishes
	node.staged = nil
	r.Limit = func(_ context.Context, call func() error) error { return errors.Join(os.Remove(m.HostPath), call()) }
	if _, err := again.Mount(t.Context(), r, chapSecrets{}); err == nil || node.staged != nil {
		t.Errorf("got error %v and staged %v, want an error and nothing", err, node.staged)
	}
	r.Limit = noLimit
	if _, err := again.Mount(t.Context(), r, chapSecrets{}); err != nil || node.staged.Secrets == nil {
		t.Errorf("next attempt: got error %v and staged %v, want it with its secret", err, node.staged)
	}
}

// TestPodISCSISecret checks that without its password nothing is staged.
func TestPodISCSISecret(t *testing.T) {
	t.Parallel()
	manager, node, _ := lunManager(t, nil)
	if _, err := manager.Mount(t.Context(), lunRequest(lunOf("other")), chapSecrets{}); err == nil ||
		!strings.Contains(err.Error(), "couldn't get secret team/other") {
		t.Errorf("got the error %v, want that of the secret", err)
	}
	vol := lunOf("")
	vol.ISCSI.SecretRef = nil
	if _, err := manager.Mount(t.Context(), lunRequest(vol), chapSecrets{}); err == nil ||
		!strings.Contains(err.Error(), "no secretRef") {
		t.Errorf("got the error %v, want that there is no secretRef", err)
	}
	if node.staged != nil {
		t.Errorf("got staged %v, want nothing", node.staged)
	}
}

// TestPodISCSINames checks that names which lead to the directory of another pod's LUN are refused before the LUN is in
// use: to take it down would take down that other LUN.
func TestPodISCSINames(t *testing.T) {
	t.Parallel()
	for what, change := range map[string]func(*corev1.ISCSIVolumeSource){
		"portal":    func(s *corev1.ISCSIVolumeSource) { s.TargetPortal = "x/../10.0.0.1:3260" },
		"interface": func(s *corev1.ISCSIVolumeSource) { s.ISCSIInterface = "x/../volumeDevices/iface-default" },
		"target":    func(s *corev1.ISCSIVolumeSource) { s.IQN = "iqn.2026-01.test:x/../10.0.0.1:3260-iqn.2026-01.test:a" },
	} {
		manager, node, _ := lunManager(t, nil)
		vol := lunOf("chap")
		change(vol.ISCSI)
		if _, err := manager.Mount(t.Context(), lunRequest(vol), chapSecrets{}); err == nil ||
			!strings.Contains(err.Error(), "is not ") {
			t.Errorf("%s: got the error %v, want that it is not valid", what, err)
		}
		if used := manager.csi.Used("uid"); len(used) != 0 || node.staged != nil {
			t.Errorf("%s: got used %q, staged %v, want nothing", what, used, node.staged)
		}
	}
}

// TestPersistentISCSI checks the LUN of a PersistentVolume, as a device and as a file system that the pod only reads.
func TestPersistentISCSI(t *testing.T) {
	t.Parallel()
	initiator, block := "iqn.2026-01.test:me", corev1.PersistentVolumeBlock
	annotated := "noatime,sync"
	cluster := &oneVolume{}
	manager, node, root := lunManager(t, cluster)
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv", Annotations: map[string]string{corev1.MountOptionAnnotation: annotated}},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany},
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				ISCSI: &corev1.ISCSIPersistentVolumeSource{
					TargetPortal:  "10.0.0.1:3261",
					IQN:           "iqn.2026-01.test:a",
					Portals:       []string{"10.0.0.2"},
					InitiatorName: &initiator,
				}},
		},
	}
	cluster.claim = &storage.Claim{PVC: &corev1.PersistentVolumeClaim{}, PV: pv}
	readOnly := claimVolume.DeepCopy()
	readOnly.PersistentVolumeClaim.ReadOnly = true
	m, err := manager.Mount(t.Context(), lunRequest(readOnly), chapSecrets{})
	if err != nil || m.HostPath != filepath.Join(root, "pods/uid/volumes/kubernetes.io~iscsi/pv") || m.Name != "pv" ||
		!m.ReadOnly {
		t.Errorf("got %+v, %v, want the read-only volume pv", m, err)
	}
	if got := node.staged.VolumeCapability.GetMount().GetMountFlags(); strings.Join(got, ",") != annotated ||
		!node.published.Readonly {
		t.Errorf("got flags %q, read-only %t, want %q, true", got, node.published.Readonly, annotated)
	}
	for _, want := range []string{`"VolName":"pv"`, `"Portals":["10.0.0.1:3261","10.0.0.2:3260"]`,
		`"Iface":"10.0.0.1:3261:pv"`, `"InitiatorName":"` + initiator, `"ReadOnly":true`} {
		if !strings.Contains(node.staged.VolumeContext["lun"], want) {
			t.Errorf("lun: got %s, want %s in it", node.staged.VolumeContext["lun"], want)
		}
	}
	pv.Name = "raw"
	pv.Spec.VolumeMode, pv.Spec.ISCSI.Lun = &block, 1
	m, err = manager.Mount(t.Context(), lunRequest(claimVolume), chapSecrets{})
	if err != nil || m.HostPath != "" || m.Device == "" || m.Device != node.published.TargetPath ||
		node.published.VolumeCapability.GetBlock() == nil {
		t.Errorf("got %+v, %v, want a device and no directory", m, err)
	}
}
