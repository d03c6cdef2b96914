package volumes

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/csi"
	"github.com/nodelet/nodelet/kube/pluginname"
	"github.com/nodelet/nodelet/kube/storage"
	"github.com/nodelet/nodelet/test/csi/fake"
	"github.com/nodelet/nodelet/test/plugins/plugintest"
	"github.com/nodelet/nodelet/volumes/iscsi"
	"github.com/nodelet/nodelet/volumes/podfs"
)

// ebs is the CSI driver that replaces awsElasticBlockStore. Its volumes keep their IDs.
const ebs = "ebs.csi.aws.com"

// TestReplacedKinds checks that the kinds of volumes that are said to be replaced are those that can be translated, and
// that pods with them are admitted.
func TestReplacedKinds(t *testing.T) {
	for f := range reflect.TypeFor[corev1.VolumeSource]().Fields() {
		v := &corev1.Volume{Name: "data"}
		reflect.ValueOf(&v.VolumeSource).Elem().FieldByIndex(f.Index).Set(reflect.New(f.Type.Elem()))
		translated := inTree.IsInlineMigratable(v)
		if got := podfs.Replaced(v.VolumeSource); got != translated {
			t.Errorf("%s: got replaced %t, but the library translates it: %t, want %t", f.Name, got, translated, translated)
		}
		if err := podfs.Supported(v); translated && err != nil {
			t.Errorf("%s: got %v, want it supported", f.Name, err)
		}
	}
}

// migration is a node with an EBS driver that has a volume, and with an API server whose claims are bound to that.
type migration struct {
	oneVolume
	*plugintest.Node
	manager *Manager
	driver  *fake.Driver
	id      string
	// attached is the volume whose attachment was asked for last, as driver and handle.
	attached  string
	attaching sync.Mutex
	// notGrown are the reasons why a volume did not grow.
	notGrown []string
	// events are the objects and reasons of the events.
	events []string
}

func (m *migration) Growing(context.Context, *storage.Claim) error { return nil }

func (m *migration) Grown(context.Context, *storage.Claim, resource.Quantity) error { return nil }

func (m *migration) NotGrown(_ context.Context, _ *storage.Claim, cause error, _ bool) error {
	m.notGrown = append(m.notGrown, cause.Error())
	return nil
}

func (m *migration) Attached(_ context.Context, _ types.UID, name corev1.UniqueVolumeName, driver, handle string) (
	storage.Attachment, error) {
	m.attaching.Lock()
	defer m.attaching.Unlock()
	m.attached = driver + " " + handle
	if name != csi.UniqueName(driver, handle) {
		return storage.Attachment{}, errors.New("the volume has the name " + string(name))
	}
	return storage.Attachment{}, nil
}

// newMigration makes such a node; change changes the driver.
func newMigration(t *testing.T, change ...func(*fake.Config)) *migration {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: the driver mounts")
	}
	m := &migration{Node: plugintest.New(t)}
	yes, no := true, false
	policy := storagev1.NoneFSGroupPolicy
	m.oneVolume.driver = &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: ebs}, Spec: storagev1.CSIDriverSpec{
		AttachRequired:               &yes,
		PodInfoOnMount:               &no,
		RequiresRepublish:            &no,
		SELinuxMount:                 &no,
		ServiceAccountTokenInSecrets: &no,
		FSGroupPolicy:                &policy,
		VolumeLifecycleModes:         []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent},
	}}
	cfg := fake.Config{
		Name:     ebs,
		NodeID:   "node",
		State:    filepath.Join(m.Dir, "state"),
		Socket:   filepath.Join(m.Dir, "plugins", ebs, "csi.sock"),
		Registry: filepath.Join(m.Dir, "plugins_registry"),
	}
	for _, f := range change {
		f(&cfg)
	}
	var err error
	if m.driver, err = fake.Start(cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.driver.Close)
	made, err := m.driver.CreateVolume(t.Context(), &csipb.CreateVolumeRequest{
		Name:               "data",
		VolumeCapabilities: []*csipb.VolumeCapability{{}},
	})
	if err != nil {
		t.Fatal(err)
	}
	m.id = made.Volume.VolumeId
	pods, err := podfs.New(podfs.Config{Log: slog.New(slog.DiscardHandler), Root: m.Dir})
	if err != nil {
		t.Fatal(err)
	}
	if m.manager, err = newManager(Config{
		Root:     m.Dir,
		NodeName: "node",
		Log:      slog.New(slog.DiscardHandler),
		Pods:     pods,
		Cluster:  m,
		Metrics:  noMetrics{},
		Event: func(pod *corev1.Pod, _, reason, _ string) {
			m.events = append(m.events, pod.Name+" "+reason)
		},
		ClaimEvent: func(claim *corev1.PersistentVolumeClaim, _, reason, _ string) {
			m.events = append(m.events, claim.Name+" "+reason)
		},
		InUse: func([]corev1.UniqueVolumeName) {},
		Wake:  m.Wake,
	}, csi.InTreeDriver{Plugin: pluginname.ISCSI, Node: &lunNode{}, Handle: iscsi.HandleOf}); err != nil {
		t.Fatal(err)
	}
	m.Run(m.Dir, csi.PluginType, m.manager.csi)
	m.Until("the driver is registered", func() bool { return len(m.manager.csi.Drivers()) == 1 })
	return m
}

// check mounts a volume of a pod, and takes it down.
func (m *migration) check(t *testing.T, v *corev1.Volume, readOnly bool) {
	t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "pod", UID: "uid"}}
	pod.Spec.Containers = []corev1.Container{{VolumeMounts: []corev1.VolumeMount{{Name: v.Name}}}}
	got, err := m.manager.Mount(t.Context(), requestFor(pod, v), nil)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(got.HostPath, "/pods/uid/volumes/kubernetes.io~csi/") || got.ReadOnly != readOnly {
		t.Errorf("got %+v, want it below the pod's directory, read-only %t", got, readOnly)
	}
	if want := ebs + " " + m.id; m.attached != want {
		t.Errorf("the attachment of %q was asked for, want %q", m.attached, want)
	}
	m.takeDown(t, pod.UID)
}

// unmount unmounts the volume of a pod.
func (m *migration) unmount(t *testing.T, pod types.UID) {
	t.Helper()
	all, err := m.manager.List(pod)
	if err != nil || len(all) != 1 {
		t.Fatalf("got volumes %v, %v, want one", all, err)
	}
	if err := m.manager.Unmount(t.Context(), pod, all[0]); err != nil {
		t.Error(err)
	}
}

// takeDown takes down the volume of the last pod that has it.
func (m *migration) takeDown(t *testing.T, pod types.UID) {
	t.Helper()
	m.unmount(t, pod)
	m.Until("the volume is unstaged", func() bool {
		staged, err := filepath.Glob(filepath.Join(m.Dir, "plugins/kubernetes.io/csi", ebs, "*"))
		return err == nil && len(staged) == 0
	})
}

// TestMigratedClaim mounts a claim whose PersistentVolume is of an in-tree kind.
func TestMigratedClaim(t *testing.T) {
	m := newMigration(t)
	m.claim = &storage.Claim{
		PVC: &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "claim"}},
		PV: &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "pv"},
			Spec: corev1.PersistentVolumeSpec{
				Capacity:    corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				PersistentVolumeSource: corev1.PersistentVolumeSource{
					AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "aws://zone-a/" + m.id},
				},
			},
		},
	}
	m.check(t, claimVolume, false)
	if m.claim.PV.Spec.CSI != nil {
		t.Error("the PersistentVolume of the API server: got it changed, want it as it was")
	}
}

// TestMigratedVolume mounts a pod's own volume of an in-tree kind.
func TestMigratedVolume(t *testing.T) {
	m := newMigration(t)
	m.check(t, &corev1.Volume{Name: "disk", VolumeSource: corev1.VolumeSource{
		AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: m.id, ReadOnly: true},
	}}, true)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "pod", UID: "uid"}}
	bad := &corev1.Volume{Name: "disk", VolumeSource: corev1.VolumeSource{
		AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "aws://zone-a/b/c/d"},
	}}
	if _, err := m.manager.Mount(t.Context(), requestFor(pod, bad), nil); err == nil ||
		!strings.Contains(err.Error(), `translate volume "disk"`) {
		t.Errorf("an ID that cannot be translated: got %v", err)
	}
}
