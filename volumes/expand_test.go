package volumes

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/kube/storage"
	"github.com/nodelet/nodelet/test/csi/fake"
)

// TestExpandedElsewhere checks that a ReadWriteMany volume which another node has expanded is expanded on this node
// too, once.
func TestExpandedElsewhere(t *testing.T) {
	m := newMigration(t)
	pvc := m.bind().PVC
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "pod", UID: "uid"}}
	pod.Spec.Containers = []corev1.Container{{VolumeMounts: []corev1.VolumeMount{{Name: "data"}}}}
	const annotation = "volume.kubernetes.io/node-expansion-not-required"
	once := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	many := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	for _, c := range []struct {
		what  string
		modes []corev1.PersistentVolumeAccessMode
		size  string
		notes map[string]string
		calls int
	}{
		{"first mount", many, "1Gi", nil, 0},
		{"one node alone uses it", once, "2Gi", nil, 0},
		{"nodes have nothing to do", many, "2Gi", map[string]string{annotation: "true"}, 0},
		{"another node has expanded it", many, "2Gi", nil, 1},
		{"again", many, "2Gi", nil, 1},
		{"expanded once more", many, "3Gi", nil, 2},
	} {
		pvc.Spec.AccessModes, pvc.Annotations = c.modes, c.notes
		pvc.Status.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(c.size)}
		if _, err := m.manager.Mount(t.Context(), requestFor(pod, claimVolume), nil); err != nil {
			t.Fatalf("%s: %v", c.what, err)
		}
		calls := slices.DeleteFunc(m.driver.Calls(), func(call string) bool { return call != "NodeExpandVolume "+m.id })
		if len(calls) != c.calls {
			t.Errorf("%s: got %d calls of NodeExpandVolume so far, want %d", c.what, len(calls), c.calls)
		}
	}
	m.takeDown(t, pod.UID)
}

// bind gives the pod's volume a claim, with the driver's volume.
func (m *migration) bind() *storage.Claim {
	m.claim = &storage.Claim{
		PVC: &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "claim"}},
		PV: &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "pv"},
			Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: ebs, VolumeHandle: m.id},
			}},
		},
	}
	return m.claim
}

// TestExpansionEvents checks that an expansion causes events about the pod and about the claim. If the pod only reads
// the volume, which is not expanded then, it causes them when the volume is mounted and not with each refresh.
func TestExpansionEvents(t *testing.T) {
	m := newMigration(t)
	m.askToGrow()
	readOnly := claimVolume.DeepCopy()
	readOnly.PersistentVolumeClaim.ReadOnly = true
	expanded := []string{"pod FileSystemResizeSuccessful", "claim FileSystemResizeSuccessful"}
	refused := []string{"pod FileSystemResizeFailed", "claim FileSystemResizeFailed"}
	for _, c := range []struct {
		what    string
		volume  *corev1.Volume
		refresh bool
		want    []string
	}{
		{"for writing", claimVolume, false, expanded},
		{"read-only", readOnly, false, refused},
		{"read-only, refreshed", readOnly, true, nil},
	} {
		m.events = nil
		r := lunRequest(c.volume)
		r.Refresh = c.refresh
		if _, err := m.manager.Mount(t.Context(), r, nil); err != nil || !slices.Equal(m.events, c.want) {
			t.Errorf("%s: got %v and events %q, want %q", c.what, err, m.events, c.want)
		}
	}
	m.takeDown(t, "uid")
}

// askToGrow gives the pod's volume a claim that asks the node to expand it.
func (m *migration) askToGrow() {
	claim := m.bind()
	claim.PV.Spec.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")}
	claim.PVC.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{
		corev1.ResourceStorage: corev1.PersistentVolumeClaimNodeResizePending,
	}
}

// TestExpansionFails checks that an expansion that fails has an error of its own type, unlike the mount before it.
func TestExpansionFails(t *testing.T) {
	m := newMigration(t)
	m.askToGrow()
	for _, c := range []struct {
		method    string
		expansion bool
	}{{"NodePublishVolume", false}, {"NodeExpandVolume", true}} {
		if err := fake.Fail(filepath.Join(m.Dir, "state"), c.method, "Internal", 1); err != nil {
			t.Fatal(err)
		}
		_, err := m.manager.Mount(t.Context(), lunRequest(claimVolume), nil)
		if _, ok := errors.AsType[*ExpansionError](err); err == nil || ok != c.expansion {
			t.Errorf("%s: got %v, want an error, and that of an expansion: %t", c.method, err, c.expansion)
		}
	}
	m.takeDown(t, "uid")
}

// TestDriverThatCannotExpand checks that a claim which asks the node for an expansion says that its driver cannot do it
// there. Its pod runs all the same. One that only reads would not have it expanded.
func TestDriverThatCannotExpand(t *testing.T) {
	m := newMigration(t, func(c *fake.Config) { c.NoExpand = true })
	m.askToGrow()
	for _, readOnly := range []bool{true, false} {
		v := claimVolume.DeepCopy()
		v.PersistentVolumeClaim.ReadOnly = readOnly
		if _, err := m.manager.Mount(t.Context(), lunRequest(v), nil); err != nil {
			t.Error(err)
		}
		var want []string
		if !readOnly {
			want = []string{"NodeExpand is not supported by the CSI driver " + ebs}
		}
		if !slices.Equal(m.notGrown, want) {
			t.Errorf("read-only %t: got the reasons %q, want %q", readOnly, m.notGrown, want)
		}
	}
	m.takeDown(t, "uid")
}

// TestExpandInUse checks that a volume that cannot grow while it is in use does not keep its pod from running, and that
// its claim says why it does not grow.
func TestExpandInUse(t *testing.T) {
	m := newMigration(t)
	m.askToGrow()
	if err := fake.Fail(filepath.Join(m.Dir, "state"), "NodeExpandVolume", "FailedPrecondition", 0); err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "pod", UID: "uid"}}
	pod.Spec.Containers = []corev1.Container{{VolumeMounts: []corev1.VolumeMount{{Name: "data"}}}}
	if _, err := m.manager.Mount(t.Context(), requestFor(pod, claimVolume), nil); err != nil {
		t.Error(err)
	}
	if len(m.notGrown) != 1 || !strings.Contains(m.notGrown[0], "FailedPrecondition") {
		t.Errorf("got the reasons %q, want that of the driver", m.notGrown)
	}
	m.takeDown(t, pod.UID)
}

// TestRefusedExpansion checks that a driver that cannot expand a volume in use is not asked again and again for the
// same size, but for another pod, and if the claim asks for another size: its control plane waits for that. That its
// storage rounds the size up is no other size.
func TestRefusedExpansion(t *testing.T) {
	m := newMigration(t)
	m.askToGrow()
	if err := fake.Fail(filepath.Join(m.Dir, "state"), "NodeExpandVolume", "FailedPrecondition", 0); err != nil {
		t.Fatal(err)
	}
	pvc := m.claim.PVC
	for _, c := range []struct {
		what, asked, allocated, size string
		pod                          types.UID
		refresh                      bool
		calls                        int
	}{
		{"mount", "2G", "2G", "2Gi", "uid", false, 1},
		{"refresh", "2G", "2G", "2Gi", "uid", true, 1},
		{"mount for another pod", "2G", "2G", "2Gi", "uid-2", false, 2},
		{"refresh for another pod", "2G", "2G", "2Gi", "uid-2", true, 2},
		{"the claim asks for another size", "3Gi", "2G", "2Gi", "uid", true, 3},
		{"the volume has another size", "3Gi", "3Gi", "3Gi", "uid", true, 4},
		{"refresh with that size", "3Gi", "3Gi", "3Gi", "uid", true, 4},
	} {
		pvc.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(c.asked)}
		pvc.Status.AllocatedResources = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(c.allocated)}
		m.claim.PV.Spec.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(c.size)}
		r := lunRequest(claimVolume)
		r.Pod.UID, r.Refresh = c.pod, c.refresh
		if _, err := m.manager.Mount(t.Context(), r, nil); err != nil {
			t.Fatalf("%s: %v", c.what, err)
		}
		if n := len(m.notGrown); n != c.calls {
			t.Errorf("%s: got %d refusals so far, want %d", c.what, n, c.calls)
		}
	}
	m.unmount(t, "uid-2")
	m.takeDown(t, "uid")
}

// growing is a node with a claim that asks to be expanded, whose status changes as that of the API server does.
type growing struct {
	*migration
	mu    sync.Mutex
	reads int
}

func (g *growing) Claim(context.Context, *corev1.Pod, *corev1.Volume) (*storage.Claim, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.reads++
	return &storage.Claim{PVC: g.claim.PVC.DeepCopy(), PV: g.claim.PV}, nil
}

func (g *growing) readsSoFar() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.reads
}

// Growing notes the new status, of an old claim as little as the API server.
func (g *growing) Growing(_ context.Context, c *storage.Claim) error {
	return g.change(c, func(s *corev1.PersistentVolumeClaimStatus) {
		s.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{
			corev1.ResourceStorage: corev1.PersistentVolumeClaimNodeResizeInProgress,
		}
	})
}

func (g *growing) Grown(_ context.Context, c *storage.Claim, size resource.Quantity) error {
	return g.change(c, func(s *corev1.PersistentVolumeClaimStatus) {
		s.AllocatedResourceStatuses = nil
		s.Capacity = corev1.ResourceList{corev1.ResourceStorage: size}
	})
}

func (g *growing) change(c *storage.Claim, do func(*corev1.PersistentVolumeClaimStatus)) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c.PVC.ResourceVersion != g.claim.PVC.ResourceVersion {
		return errors.New("the object has been modified")
	}
	pvc := g.claim.PVC.DeepCopy()
	pvc.ResourceVersion += "+"
	do(&pvc.Status)
	g.claim.PVC, c.PVC = pvc, pvc
	return nil
}

// TestTwoPodsExpandOneVolume checks that a volume of two pods that look for an expansion at the same time is expanded
// once, and that none of them has an error.
func TestTwoPodsExpandOneVolume(t *testing.T) {
	g := &growing{migration: newMigration(t)}
	g.bind()
	g.manager.cfg.Cluster = g
	mount := func(uid types.UID) error {
		r := lunRequest(claimVolume)
		r.Pod.UID = uid
		_, err := g.manager.Mount(t.Context(), r, nil)
		return err
	}
	if err := errors.Join(mount("uid"), mount("uid-2")); err != nil {
		t.Fatal(err)
	}
	g.askToGrow()
	if err := fake.Fail(filepath.Join(g.Dir, "state"), "NodeExpandVolume", "busy", 0); err != nil {
		t.Fatal(err)
	}
	var both sync.WaitGroup
	look := func(uid types.UID) {
		if err := mount(uid); err != nil {
			t.Errorf("pod %s: %v", uid, err)
		}
	}
	calls := func() int { return strings.Count(strings.Join(g.driver.Calls(), "\n"), "NodeExpandVolume") }
	both.Go(func() { look("uid") })
	g.Until("the volume is being expanded", func() bool { return calls() == 1 })
	before := g.readsSoFar()
	both.Go(func() { look("uid-2") })
	g.Until("the second pod has read the claim", func() bool { return g.readsSoFar() > before })
	if err := fake.Heal(filepath.Join(g.Dir, "state"), "NodeExpandVolume"); err != nil {
		t.Fatal(err)
	}
	both.Wait()
	if calls() != 1 {
		t.Errorf("got the calls %q, want one expansion", g.driver.Calls())
	}
	g.unmount(t, "uid-2")
	g.takeDown(t, "uid")
}
