package storage_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/kube/client"
	"github.com/nodelet/nodelet/kube/storage"
	"github.com/nodelet/nodelet/test/kube/apitest"
)

const (
	driver = "d.example.com"
	handle = "vol-1"
	unique = corev1.UniqueVolumeName("kubernetes.io/csi/d.example.com^vol-1")
)

// world is a node with an API server, in a bubble.
type world struct {
	*storage.Storage
	server *apitest.Server
	node   atomic.Pointer[corev1.Node]
	woken  []types.UID
	// problem is the newest problem of the CSINode.
	problem atomic.Pointer[string]
	log     bytes.Buffer
}

func inWorld(t *testing.T, test func(t *testing.T, w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		server, api := apitest.New(t)
		w.server = server
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name:   "node",
			UID:    "node-uid",
			Labels: map[string]string{"zone": "a"},
		}}
		server.Put(n)
		w.node.Store(n)
		w.Storage = storage.New(storage.Config{
			Core:     api.Core,
			Storage:  api.Storage,
			NodeName: "node",
			Node:     w.node.Load,
			InUse: func(name corev1.UniqueVolumeName) bool {
				return slices.Contains(w.node.Load().Status.VolumesInUse, name)
			},
			ControllerAttaches: true,
			Wake:               func(pods []types.UID) { w.woken = append(w.woken, pods...) },
			Problem: func(problem error) {
				text := ""
				if problem != nil {
					text = problem.Error()
				}
				w.problem.Store(&text)
			},
			Log: slog.New(slog.NewTextHandler(&w.log, nil)),
		})
		t.Cleanup(w.Close)
		test(t, w)
	})
}

// see changes the Node as its watch would show it.
func (w *world) see(change func(*corev1.Node)) {
	n := w.node.Load().DeepCopy()
	change(n)
	w.node.Store(n)
	w.NodeSeen(n)
}

func pod() *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web-0", UID: "pod-uid"}}
}

func volume() *corev1.Volume {
	return &corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}
}

var claimUID = types.UID("pvc-uid")

func bound() (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume) {
	pvc := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "data", UID: claimUID},
		Spec:   corev1.PersistentVolumeClaimSpec{VolumeName: "pv"},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound}}
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: corev1.PersistentVolumeSpec{
		ClaimRef: &corev1.ObjectReference{Namespace: "ns", Name: "data", UID: claimUID}}}
	return pvc, pv
}

func TestClaim(t *testing.T) {
	for name, c := range map[string]struct {
		change func(v *corev1.Volume, pvc *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume)
		want   string // in the error; empty: none
	}{
		"bound": {func(*corev1.Volume, *corev1.PersistentVolumeClaim, *corev1.PersistentVolume) {}, ""},
		"not bound": {func(_ *corev1.Volume, pvc *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume) {
			pvc.Status.Phase = "Pending"
		}, "is not bound"},
		"another's": {func(_ *corev1.Volume, _ *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) {
			pv.Spec.ClaimRef.UID = "x"
		}, "names another claim"},
		"no such PVC": {func(v *corev1.Volume, _ *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume) {
			v.PersistentVolumeClaim.ClaimName = "x"
		}, `"x" not found`},
		"elsewhere": {func(_ *corev1.Volume, _ *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) {
			elsewhere := corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{
				Key:      "zone",
				Operator: corev1.NodeSelectorOpIn,
				Values:   []string{"b"},
			}}}
			required := &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{elsewhere}}
			pv.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: required}
		}, `NodeAffinity check failed for volume "pv" : no matching NodeSelectorTerms`},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				v := volume()
				pvc, pv := bound()
				c.change(v, pvc, pv)
				w.server.Put(pvc)
				w.server.Put(pv)
				got, err := w.Claim(t.Context(), pod(), v)
				if err == nil {
					err = w.CheckAffinity(got.PV)
				}
				if c.want == "" && (err != nil || got.PV.Name != "pv") {
					t.Errorf("got %+v, %v", got, err)
				}
				if c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
					t.Errorf("got %v, want %q", err, c.want)
				}
			})
		})
	}
}

// TestVolumeFromMemory checks that a PersistentVolume from the memory of the API server, which may lag, is used only
// if it is the claim's volume, and never while the claim grows.
func TestVolumeFromMemory(t *testing.T) {
	other := types.UID("other")
	for name, c := range map[string]struct {
		memory  *types.UID // whose volume it is in the API server's memory; nil: it is not there
		growing bool
		newest  int // reads of the volume as it is now
	}{
		"is the claim's":   {&claimUID, false, 0},
		"was another's":    {&other, false, 1},
		"is not there yet": {nil, false, 1},
		"the claim grows":  {&claimUID, true, 1},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				pvc, pv := bound()
				if c.growing {
					pvc.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{
						corev1.ResourceStorage: corev1.PersistentVolumeClaimNodeResizePending}
				}
				w.server.Put(pvc)
				if c.memory != nil {
					memory := pv.DeepCopy()
					memory.Spec.ClaimRef.UID = *c.memory
					memory.Spec.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
					w.server.Put(memory)
				}
				pv.Spec.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")}
				newest := 0
				w.server.Intercept(func(r *http.Request) *apierrors.StatusError {
					if strings.HasSuffix(r.URL.Path, "/persistentvolumes/pv") && r.URL.Query().Get("resourceVersion") == "" {
						newest++
						w.server.Put(pv)
					}
					return nil
				})
				got, err := w.Claim(t.Context(), pod(), volume())
				if err != nil {
					t.Fatal(err)
				}
				if newest != c.newest {
					t.Errorf("got %d reads past the memory, want %d", newest, c.newest)
				}
				if c.growing && got.Growth().String() != "2Gi" {
					t.Errorf("it grows to %s, want 2Gi", got.Growth())
				}
			})
		})
	}
}

// TestEphemeralClaim checks that a generic ephemeral volume is only its own pod's.
func TestEphemeralClaim(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		v := &corev1.Volume{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}}
		pvc, pv := bound()
		pvc.Name = "web-0-scratch"
		w.server.Put(pvc)
		w.server.Put(pv)
		if _, err := w.Claim(t.Context(), pod(), v); err == nil || !strings.Contains(err.Error(), "pod is not owner") {
			t.Errorf("got %v", err)
		}
		yes := true
		pvc.OwnerReferences = []metav1.OwnerReference{{UID: "pod-uid", Controller: &yes}}
		w.server.Put(pvc)
		if _, err := w.Claim(t.Context(), pod(), v); err != nil {
			t.Error(err)
		}
	})
}

// TestAuthorizerBehind checks that a request that the node authorizer forbids at first is retried, because the
// authorizer may be behind.
func TestAuthorizerBehind(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		pvc, pv := bound()
		w.server.Put(pvc)
		w.server.Put(pv)
		refusals := 3
		w.server.Intercept(func(*http.Request) *apierrors.StatusError {
			if refusals--; refusals >= 0 {
				return apierrors.NewForbidden(corev1.Resource("persistentvolumeclaims"), "data", nil)
			}
			return nil
		})
		if _, err := w.Claim(t.Context(), pod(), volume()); err != nil {
			t.Error(err)
		}
	})
}

// TestAttached checks that an attachment is waited for on the Node object alone: nothing is asked meanwhile.
func TestAttached(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		type answer struct {
			storage.Attachment
			err error
		}
		got := make(chan answer, 1)
		go func() {
			c, err := w.Attached(context.Background(), "pod-uid", unique, driver, handle)
			got <- answer{c, err}
		}()
		time.Sleep(5 * time.Second)
		w.see(func(n *corev1.Node) { n.Status.VolumesInUse = []corev1.UniqueVolumeName{unique} })
		time.Sleep(5 * time.Second)
		if r := w.server.Requests(); len(r) != 0 {
			t.Errorf("asked meanwhile: got %q, want none", r)
		}
		va := &storagev1.VolumeAttachment{
			ObjectMeta: metav1.ObjectMeta{Name: vaName, UID: "va-uid"},
			Status: storagev1.VolumeAttachmentStatus{
				Attached: true, AttachmentMetadata: map[string]string{"device": "sdb"}},
		}
		w.server.Put(va)
		w.see(func(n *corev1.Node) { n.Status.VolumesAttached = []corev1.AttachedVolume{{Name: unique}} })
		if a := <-got; a.err != nil || a.Context["device"] != "sdb" || a.UID != "va-uid" {
			t.Errorf("got %+v", a)
		}
	})
}

// TestNotAttached checks that a volume is not used while it is being detached, and before the Node's status shows it as
// attached and in use: the controller manager could detach it under the pod.
func TestNotAttached(t *testing.T) {
	inUse := []corev1.UniqueVolumeName{unique}
	attached := []corev1.AttachedVolume{{Name: unique}}
	detaching := metav1.NewTime(time.Now().Truncate(time.Second))
	for name, test := range map[string]struct {
		status  corev1.NodeStatus
		deleted *metav1.Time
		want    string
	}{
		"being detached": {
			corev1.NodeStatus{VolumesInUse: inUse, VolumesAttached: attached}, &detaching, "has to be detached from this node",
		},
		"not shown as attached": {corev1.NodeStatus{VolumesInUse: inUse}, nil, "the Node's status does not show it"},
		"not shown as in use":   {corev1.NodeStatus{VolumesAttached: attached}, nil, "the Node's status does not show it"},
	} {
		inWorld(t, func(t *testing.T, w *world) {
			w.server.Put(&storagev1.VolumeAttachment{
				ObjectMeta: metav1.ObjectMeta{Name: vaName, UID: "va-uid", DeletionTimestamp: test.deleted,
					Finalizers: []string{"external-attacher/csi"}},
				Status: storagev1.VolumeAttachmentStatus{Attached: true},
			})
			w.see(func(n *corev1.Node) { n.Status = test.status })
			if _, err := w.Attached(t.Context(), "pod-uid", unique, driver, handle); err == nil ||
				!strings.Contains(err.Error(), test.want) {
				t.Errorf("%s: got %v, want an error with %q", name, err, test.want)
			}
		})
	}
}

// TestAttachedInTree checks that an in-tree volume is attached when the Node's status shows it; a node that attaches
// volumes by itself does not wait for that.
func TestAttachedInTree(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		const lun = corev1.UniqueVolumeName("kubernetes.io/iscsi/a:b:0")
		alone := storage.New(storage.Config{Problem: func(error) {}})
		t.Cleanup(alone.Close)
		if err := alone.AttachedInTree(t.Context(), "pod-uid", lun); err != nil {
			t.Error(err)
		}
		if err := w.AttachedInTree(t.Context(), "pod-uid", lun); err == nil ||
			!strings.Contains(err.Error(), "has not added it to volumesAttached") {
			t.Errorf("got %v", err)
		}
		w.see(func(n *corev1.Node) {
			n.Status.VolumesInUse, n.Status.VolumesAttached = []corev1.UniqueVolumeName{
				lun,
			}, []corev1.AttachedVolume{
				{Name: lun},
			}
		})
		if err := w.AttachedInTree(t.Context(), "pod-uid", lun); err != nil {
			t.Error(err)
		}
	})
}

// vaName is csi-sha256(handle, driver, node) as the attach/detach controller computes it.
var vaName = "csi-c3173d6146dad00a11dc0cc97bf3f9d53fe2743a19ca8f50ed43a7744d957e9a"

// TestAttachTakesLong checks that a wait that takes long ends with what is awaited, and the pod is woken when it
// comes.
func TestAttachTakesLong(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		_, err := w.Attached(t.Context(), "pod-uid", unique, driver, handle)
		if err == nil || !strings.Contains(err.Error(), "the attach/detach controller has not requested it yet") {
			t.Errorf("got %v", err)
		}
		w.server.Put(&storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: vaName},
			Spec:   storagev1.VolumeAttachmentSpec{Attacher: driver},
			Status: storagev1.VolumeAttachmentStatus{AttachError: &storagev1.VolumeError{Message: "no slot is free"}}})
		_, err = w.Attached(t.Context(), "pod-uid", unique, driver, handle)
		if err == nil || !strings.Contains(err.Error(), "no slot is free") {
			t.Errorf("got %v", err)
		}
		if len(w.woken) != 0 {
			t.Errorf("woken for nothing: got %q, want none", w.woken)
		}
		w.see(func(n *corev1.Node) {
			n.Status.VolumesInUse = []corev1.UniqueVolumeName{unique}
			n.Status.VolumesAttached = []corev1.AttachedVolume{{Name: unique}}
		})
		if !slices.Equal(w.woken, []types.UID{"pod-uid"}) {
			t.Errorf("woken pods: got %q, want pod-uid", w.woken)
		}
	})
}

// TestAttachedAtEndOfWait checks that pods whose volume is attached at the moment at which their wait ends see that, or
// are woken. Which of the two comes first is left to chance.
func TestAttachedAtEndOfWait(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		errs := map[types.UID]chan error{}
		for i := range 200 {
			pod := types.UID(fmt.Sprint("pod-", i))
			ended := make(chan error, 1)
			errs[pod] = ended
			go func() { ended <- w.AttachedInTree(t.Context(), pod, unique) }()
		}
		time.Sleep(15 * time.Second)
		w.see(func(n *corev1.Node) {
			n.Status.VolumesInUse = []corev1.UniqueVolumeName{unique}
			n.Status.VolumesAttached = []corev1.AttachedVolume{{Name: unique}}
		})
		for pod, ended := range errs {
			if err := <-ended; err != nil && !slices.Contains(w.woken, pod) {
				t.Errorf("%s: got %q and was not woken", pod, err)
			}
		}
	})
}

// TestLimitError checks the error for a volume that the driver cannot attach because the node has as many as it allows,
// and when that counts as lasting.
func TestLimitError(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		begun, exhausted := metav1.NewTime(time.Now().Truncate(time.Second)), int32(8)
		other := int32(13)
		for name, test := range map[string]struct {
			code           *int32
			after          time.Duration
			limit, lasting bool
		}{
			"another error":    {&other, time.Hour, false, false},
			"without a code":   {nil, time.Hour, false, false},
			"just now":         {&exhausted, time.Minute, true, false},
			"for some minutes": {&exhausted, 123 * time.Second, true, true},
		} {
			w.server.Put(&storagev1.VolumeAttachment{
				ObjectMeta: metav1.ObjectMeta{Name: vaName, CreationTimestamp: begun},
				Spec:       storagev1.VolumeAttachmentSpec{Attacher: driver},
				Status: storagev1.VolumeAttachmentStatus{AttachError: &storagev1.VolumeError{
					Time:      metav1.NewTime(begun.Add(test.after)),
					Message:   "no slot is free",
					ErrorCode: test.code,
				}},
			})
			_, err := w.Attached(t.Context(), "pod-uid", unique, driver, handle)
			if limit, is := errors.AsType[*storage.LimitError](err); is != test.limit || is && limit.Lasting != test.lasting ||
				!strings.Contains(err.Error(), "no slot is free") {
				t.Errorf("%s: got %#v, want a limit %t, lasting %t", name, err, test.limit, test.lasting)
			}
		}
	})
}

// TestLimitPeriod checks that the period of a driver is that of its CSIDriver, and that changes are reported.
func TestLimitPeriod(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		expect := func(want time.Duration) <-chan struct{} {
			t.Helper()
			got, changed, err := w.LimitPeriod(t.Context(), driver)
			if err != nil || got != want {
				t.Errorf("got %s, %v, want %s", got, err, want)
			}
			return changed
		}
		changed := expect(0)
		seconds := int64(30)
		w.server.Put(&storagev1.CSIDriver{
			ObjectMeta: metav1.ObjectMeta{Name: driver},
			Spec:       storagev1.CSIDriverSpec{NodeAllocatableUpdatePeriodSeconds: &seconds},
		})
		<-changed
		changed = expect(30 * time.Second)
		w.server.Put(&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driver}})
		<-changed
		expect(0)
	})
}

// TestDriver checks that a CSIDriver that does not exist has the defaults; changes are seen by watch.
func TestDriver(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		d, err := w.Driver(t.Context(), driver)
		if err != nil || !*d.Spec.AttachRequired || *d.Spec.PodInfoOnMount ||
			*d.Spec.FSGroupPolicy != storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy {
			t.Errorf("got %+v, %v", d, err)
		}
		no := false
		w.server.Put(&storagev1.CSIDriver{
			ObjectMeta: metav1.ObjectMeta{Name: driver},
			Spec:       storagev1.CSIDriverSpec{AttachRequired: &no},
		})
		synctest.Wait()
		w.server.Requests()
		if d, err = w.Driver(t.Context(), driver); err != nil || *d.Spec.AttachRequired {
			t.Errorf("got %+v, %v", d, err)
		}
		if r := w.server.Requests(); len(r) != 0 {
			t.Errorf("asked again: got %q, want none", r)
		}
	})
}

// TestDriverOfSilentServer checks that the error says what is waited for while the API server does not answer.
func TestDriverOfSilentServer(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.server.Intercept(func(r *http.Request) *apierrors.StatusError { <-r.Context().Done(); return nil })
		_, err := w.Driver(t.Context(), driver)
		if err == nil || !strings.HasSuffix(err.Error(), "the API server has not answered yet") {
			t.Errorf("got the error %v, want that the server has not answered", err)
		}
	})
}

func TestCSINode(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		get := func() *storagev1.CSINode { n, _ := w.server.Get("csinodes", "", "node").(*storagev1.CSINode); return n }
		stop := w.start(t)
		synctest.Wait()
		if n := get(); n == nil || n.OwnerReferences[0].UID != "node-uid" ||
			!strings.Contains(n.Annotations["storage.alpha.kubernetes.io/migrated-plugins"], "aws-ebs") {
			t.Fatalf("got %+v", n)
		}
		d := storage.NodeDriver{Name: driver, NodeID: "n-1", MaxVolumes: 3, Topology: map[string]string{"rack": "7"}}
		if err := w.SetDriver(t.Context(), d); err != nil {
			t.Fatal(err)
		}
		n := get()
		if len(n.Spec.Drivers) != 1 || *n.Spec.Drivers[0].Allocatable.Count != 3 ||
			n.Spec.Drivers[0].TopologyKeys[0] != "rack" {
			t.Errorf("got %+v, want one", n.Spec.Drivers)
		}
		if p := w.server.Patches(); len(p) != 1 || !strings.Contains(p[0], `"labels":{"rack":"7"}`) ||
			!strings.Contains(p[0], `n-1`) {
			t.Errorf("patches of the Node: got %q, want one with the label and the driver", p)
		}
		if err := w.SetDriver(t.Context(), d); err != nil || get().ResourceVersion != n.ResourceVersion {
			t.Errorf("the same again: got another write, or %v, want none", err)
		}
		d.Topology = map[string]string{"zone": "b"}
		if err := w.SetDriver(t.Context(), d); err == nil || !strings.Contains(err.Error(), "topology value collision") {
			t.Errorf("another value of a label: got %v, want an error", err)
		}
		if err := w.RemoveDriver(t.Context(), driver); err != nil || len(get().Spec.Drivers) != 0 {
			t.Errorf("after the removal: got %v, %+v, want no driver", err, get().Spec.Drivers)
		}
		// The Node is recreated: so is its CSINode, with the drivers that are registered.
		d.Name, d.Topology = "other.example.com", map[string]string{"row": "8"}
		if err := w.SetDriver(t.Context(), d); err != nil {
			t.Fatal(err)
		}
		before := len(w.server.Patches())
		second := w.node.Load().DeepCopy()
		second.UID = "node-uid-2"
		w.server.Put(second)
		w.see(func(n *corev1.Node) { n.UID = second.UID })
		time.Sleep(time.Minute)
		if n := get(); n == nil || n.OwnerReferences[0].UID != "node-uid-2" || len(n.Spec.Drivers) != 1 ||
			n.Spec.Drivers[0].Name != d.Name {
			t.Errorf("got %+v, want the other driver alone", n)
		}
		if p := w.server.Patches()[before:]; len(p) != 1 || !strings.Contains(p[0], `"labels":{"row":"8"}`) {
			t.Errorf("patches of the new Node: got %q, want one with the label of the driver", p)
		}
		stop()
	})
}

// TestCSINodeComesBack checks that what the API server loses of the drivers of this node is written again, as after
// etcd was restored from a backup, and that nothing else is written.
func TestCSINodeComesBack(t *testing.T) {
	d := storage.NodeDriver{Name: driver, NodeID: "n-1", Topology: map[string]string{"rack": "7"}}
	for name, lose := range map[string]func(w *world){
		"the CSINode": func(w *world) { w.server.Delete("csinodes", "", "node") },
		"its entry":   func(w *world) { w.changeCSINode(func(n *storagev1.CSINode) { n.Spec.Drivers = nil }) },
		"its later entry": func(w *world) {
			w.changeCSINode(func(n *storagev1.CSINode) { n.Spec.Drivers[0].NodeID = "n-0" })
		},
		"what the Node names": func(w *world) { w.server.Put(w.node.Load()) },
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				stop := w.start(t)
				synctest.Wait()
				if err := w.SetDriver(t.Context(), d); err != nil {
					t.Fatal(err)
				}
				labelled := w.node.Load().DeepCopy() // the server records patches only
				labelled.Labels["rack"] = "7"
				labelled.Annotations = map[string]string{"csi.volume.kubernetes.io/nodeid": `{"d.example.com":"n-1"}`}
				w.server.Put(labelled)
				w.refuseChangedEntries(t)
				written, patches := w.server.Get("csinodes", "", "node"), w.server.Patches()
				time.Sleep(time.Hour)
				now := w.server.Get("csinodes", "", "node")
				if now.GetResourceVersion() != written.GetResourceVersion() || len(w.server.Patches()) != len(patches) {
					t.Error("got something written again without a reason")
				}
				lose(w)
				time.Sleep(10 * time.Minute)
				n, _ := w.server.Get("csinodes", "", "node").(*storagev1.CSINode)
				if n == nil || len(n.Spec.Drivers) != 1 || n.Spec.Drivers[0].NodeID != d.NodeID {
					t.Errorf("got %+v, want the driver", n)
				}
				again := strings.Join(w.server.Patches()[len(patches):], "")
				if name == "what the Node names" && !(strings.Contains(again, `"rack":"7"`) && strings.Contains(again, "n-1")) {
					t.Errorf("got the patches %q, want the label and the node ID again", again)
				}
				stop()
			})
		})
	}
}

// TestDriverGoesWhileRestored checks that a driver that goes while what the API server has lost is written again does
// not get its node ID back.
func TestDriverGoesWhileRestored(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		stop := w.start(t)
		synctest.Wait()
		const goes = "goes.example.com"
		for _, name := range []string{driver, goes} {
			if err := w.SetDriver(t.Context(), storage.NodeDriver{Name: name, NodeID: "id of " + name}); err != nil {
				t.Fatal(err)
			}
		}
		before, gone := len(w.server.Patches()), make(chan error, 1)
		removed := sync.OnceFunc(func() {
			go func() { gone <- w.RemoveDriver(t.Context(), goes) }()
			for stacks := make([]byte, 1<<20); ; goruntime.Gosched() { // until it waits for its turn
				if bytes.Contains(stacks[:goruntime.Stack(stacks, true)], []byte(").writeCSINode(")) {
					return
				}
			}
		})
		w.server.Intercept(func(r *http.Request) *apierrors.StatusError {
			if strings.HasSuffix(r.URL.Path, "/nodes/node") {
				removed()
			}
			return nil
		})
		if err := <-gone; err != nil {
			t.Error(err)
		}
		synctest.Wait()
		again := strings.Join(w.server.Patches()[before:], "")
		if !strings.Contains(again, "id of "+driver) || strings.Contains(again, "id of "+goes) {
			t.Errorf("got the patches %q, want the node ID of %s alone", again, driver)
		}
		stop()
	})
}

// TestCSINodeOfDeletedNode checks that the CSINode of a deleted Node does not come back, that this is no error to log
// each time, and that the CSINode is written again with the next Node.
func TestCSINodeOfDeletedNode(t *testing.T) {
	d := storage.NodeDriver{Name: driver, NodeID: "n-1"}
	for name, drivers := range map[string][]storage.NodeDriver{"no driver": nil, "one driver": {d}} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				stop := w.start(t)
				synctest.Wait()
				for _, d := range drivers {
					if err := w.SetDriver(t.Context(), d); err != nil {
						t.Fatal(err)
					}
				}
				gone := func(when string) {
					t.Helper()
					if n := w.server.Get("csinodes", "", "node"); n != nil {
						t.Errorf("%s: got %+v, want no CSINode", when, n)
					}
				}
				w.server.Delete("nodes", "", "node")
				w.server.Delete("csinodes", "", "node") // as the garbage collector does: its owner is gone
				time.Sleep(time.Hour)
				synctest.Wait()
				gone("after an hour")
				_ = w.RemoveDriver(t.Context(), "other.example.com")
				gone("after a driver has ended")
				if text := w.log.String(); text != "" {
					t.Errorf("got the log %s, want none", text)
				}
				other := w.node.Load().DeepCopy()
				other.UID = "node-uid-2"
				w.server.Put(other)
				_ = w.RemoveDriver(t.Context(), "other.example.com")
				gone("before the agent has seen the next Node")
				w.see(func(n *corev1.Node) { n.UID = other.UID })
				time.Sleep(time.Minute)
				n, _ := w.server.Get("csinodes", "", "node").(*storagev1.CSINode)
				if n == nil || n.OwnerReferences[0].UID != other.UID || len(n.Spec.Drivers) != len(drivers) {
					t.Errorf("got %+v, want one of the next Node with its drivers", n)
				}
				stop()
			})
		})
	}
}

// start runs the storage of the node. stop returns when it has ended.
func (w *world) start(t *testing.T) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { w.Run(ctx); close(ended) }()
	return func() { cancel(); <-ended }
}

// changeCSINode changes the CSINode behind the agent.
func (w *world) changeCSINode(change func(*storagev1.CSINode)) {
	n := w.server.Get("csinodes", "", "node").(*storagev1.CSINode)
	change(n)
	w.server.Put(n)
}

// refuseChangedEntries makes the API server refuse a change of the node ID of a driver in the CSINode, as it does.
func (w *world) refuseChangedEntries(t *testing.T) {
	w.server.Intercept(func(r *http.Request) *apierrors.StatusError {
		if r.Method != http.MethodPut || !strings.Contains(r.URL.Path, "csinodes") {
			return nil
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		next := &storagev1.CSINode{}
		if err := runtime.DecodeInto(client.Codecs.UniversalDeserializer(), body, next); err != nil {
			t.Error(err)
		}
		for _, old := range w.server.Get("csinodes", "", "node").(*storagev1.CSINode).Spec.Drivers {
			for _, d := range next.Spec.Drivers {
				if d.Name == old.Name && d.NodeID != old.NodeID {
					return apierrors.NewInvalid(storagev1.SchemeGroupVersion.WithKind("CSINode").GroupKind(), "node", nil)
				}
			}
		}
		return nil
	})
}

// TestCSINodeProblem checks that the problem of the CSINode is known from the start until the CSINode exists, and that
// a later one does not count.
func TestCSINodeProblem(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		expect := func(when, want string) {
			t.Helper()
			time.Sleep(time.Minute)
			if got := *w.problem.Load(); got != want {
				t.Errorf("%s: got %q, want %q", when, got, want)
			}
		}
		expect("before the start", "CSINode is not yet initialized")
		var refusal atomic.Pointer[apierrors.StatusError]
		w.server.Intercept(func(r *http.Request) *apierrors.StatusError {
			if !strings.Contains(r.URL.Path, "/csinodes") {
				return nil
			}
			return refusal.Load()
		})
		refusal.Store(apierrors.NewForbidden(storagev1.Resource("csinodes"), "node", errors.New("not yours")))
		stop := w.start(t)
		expect("refused", `failed to initialize CSINode: csinodes.storage.k8s.io "node" is forbidden: not yours`)
		refusal.Store(nil)
		expect("allowed", "")
		refusal.Store(apierrors.NewForbidden(storagev1.Resource("csinodes"), "node", errors.New("not yours")))
		w.see(func(n *corev1.Node) { n.UID = "node-uid-2" })
		expect("another Node", "")
		stop()
	})
}

// TestDriverGoes checks that a driver that goes takes its node ID with it and leaves the labels alone, and that without
// any ID the Node has no annotation.
func TestDriverGoes(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		const annotation = "csi.volume.kubernetes.io/nodeid"
		for before, want := range map[string]string{
			`{"d.example.com":"n-1","other.example.com":"n-2"}`: `"{\"other.example.com\":\"n-2\"}"`,
			`{"d.example.com":"n-1"}`:                           "null",
			`{"other.example.com":"n-2"}`:                       "",
		} {
			if want != "" {
				want = `{"metadata":{"annotations":{"` + annotation + `":` + want + `},"labels":{}}}`
			}
			node := w.node.Load().DeepCopy()
			node.Annotations = map[string]string{annotation: before}
			w.server.Put(node)
			seen := len(w.server.Patches())
			if err := w.RemoveDriver(t.Context(), driver); err != nil {
				t.Error(err)
			}
			if got := strings.Join(w.server.Patches()[seen:], ""); got != want {
				t.Errorf("%s: got patch %q, want %q", before, got, want)
			}
		}
	})
}

// TestDriverBesideSlowWebhook checks that drivers register and go if the API server needs half a minute for each write,
// because a webhook does not answer it.
func TestDriverBesideSlowWebhook(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.server.Intercept(func(r *http.Request) *apierrors.StatusError {
			if r.Method != http.MethodGet {
				time.Sleep(30 * time.Second)
			}
			if r.Context().Err() != nil {
				return apierrors.NewTimeoutError("the client has not waited", 0)
			}
			return nil
		})
		names := []string{driver, "other.example.com"}
		for _, name := range names {
			if err := w.SetDriver(t.Context(), storage.NodeDriver{Name: name, NodeID: "n-1"}); err != nil {
				t.Errorf("%s: got %v, want it registered", name, err)
			}
		}
		for left := len(names); left >= 0; left-- {
			n, _ := w.server.Get("csinodes", "", "node").(*storagev1.CSINode)
			if n == nil || len(n.Spec.Drivers) != left {
				t.Fatalf("got %+v, want %d drivers", n, left)
			}
			if left > 0 {
				if err := w.RemoveDriver(t.Context(), names[left-1]); err != nil {
					t.Error(err)
				}
			}
		}
	})
}

// TestDriverBesideNull checks that a driver can register if somebody has set the annotation with the node IDs to null.
func TestDriverBesideNull(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		node := w.node.Load().DeepCopy()
		node.Annotations = map[string]string{"csi.volume.kubernetes.io/nodeid": "null"}
		w.server.Put(node)
		if err := w.SetDriver(t.Context(), storage.NodeDriver{Name: driver, NodeID: "n-1"}); err != nil {
			t.Fatal(err)
		}
		patches := w.server.Patches()
		if len(patches) == 0 || !strings.Contains(patches[len(patches)-1], `\"`+driver+`\":\"n-1\"`) {
			t.Errorf("got patches %q, want one with the node ID", patches)
		}
	})
}

// TestDriverChanges checks that a driver which has another node ID than before can register. The API server accepts no
// change of an entry but of its limit.
func TestDriverChanges(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		d := storage.NodeDriver{Name: driver, NodeID: "n-1"}
		if err := w.SetDriver(t.Context(), d); err != nil {
			t.Fatal(err)
		}
		w.refuseChangedEntries(t)
		d.NodeID = "n-2"
		if err := w.SetDriver(t.Context(), d); err != nil {
			t.Errorf("got %v, want the driver registered", err)
		}
		n, _ := w.server.Get("csinodes", "", "node").(*storagev1.CSINode)
		if len(n.Spec.Drivers) != 1 || n.Spec.Drivers[0].NodeID != "n-2" {
			t.Errorf("got %+v, want one with the new ID", n.Spec.Drivers)
		}
	})
}

func TestGrowth(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		pvc, pv := bound()
		pv.Spec.Capacity = corev1.ResourceList{"storage": resource.MustParse("2Gi")}
		pvc.Status.Capacity = pv.Spec.Capacity
		w.server.Put(pvc)
		w.server.Put(pv)
		c, err := w.Claim(t.Context(), pod(), volume())
		if err != nil || c.Growth() != nil {
			t.Fatalf("growth: got %v, %v, want none", c.Growth(), err)
		}
		pvc.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{
			"storage": corev1.PersistentVolumeClaimNodeResizePending,
		}
		pvc.Status.Conditions = []corev1.PersistentVolumeClaimCondition{
			{Type: corev1.PersistentVolumeClaimFileSystemResizePending},
		}
		w.server.Put(pvc)
		c, err = w.Claim(t.Context(), pod(), volume())
		if err != nil || c.Growth() == nil || c.Growth().String() != "2Gi" {
			t.Fatalf("growth: got %v, %v, want 2Gi", c.Growth(), err)
		}
		if err := w.Growing(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		if err := w.Grown(t.Context(), c, *c.Growth()); err != nil {
			t.Fatal(err)
		}
		p := w.server.Patches()
		if len(p) != 2 || !strings.Contains(p[0], "NodeResizeInProgress") ||
			!strings.Contains(p[1], `"capacity":{"storage":"2Gi"}`) ||
			!strings.Contains(p[1], `"allocatedResourceStatuses":{"storage":null}`) ||
			!strings.Contains(p[1], `"$patch":"delete","type":"FileSystemResizePending"`) {
			t.Errorf("patches: got %q, want one for the start and one for the end of the expansion", p)
		}
	})
}

// TestGrowthToAllocated checks that a volume grows to the size for which the control plane has expanded it, also if the
// storage has rounded that up in the PersistentVolume, and that the difference is no reason to expand it again.
func TestGrowthToAllocated(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		pvc, pv := bound()
		pv.Spec.Capacity = corev1.ResourceList{"storage": resource.MustParse("2Gi")}
		pvc.Status.Capacity = corev1.ResourceList{"storage": resource.MustParse("1Gi")}
		pvc.Status.AllocatedResources = corev1.ResourceList{"storage": resource.MustParse("1500Mi")}
		w.server.Put(pv)
		for _, status := range []corev1.ClaimResourceStatus{
			corev1.PersistentVolumeClaimNodeResizePending, corev1.PersistentVolumeClaimNodeResizeInProgress,
		} {
			pvc.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{"storage": status}
			w.server.Put(pvc)
			claim, err := w.Claim(t.Context(), pod(), volume())
			if err != nil || claim.Growth() == nil || claim.Growth().String() != "1500Mi" {
				t.Fatalf("%s: got %v, %v, want 1500Mi", status, claim.Growth(), err)
			}
		}
		delete(pvc.Status.AllocatedResourceStatuses, "storage")
		pvc.Status.Capacity = pvc.Status.AllocatedResources
		w.server.Put(pvc)
		if claim, err := w.Claim(t.Context(), pod(), volume()); err != nil || claim.Growth() != nil {
			t.Errorf("after the expansion: got %v, %v, want none", claim.Growth(), err)
		}
	})
}

// TestGrowthWithoutStatus checks that a volume is expanded, too, if no external-resizer has written the status of an
// expansion, but the PersistentVolume is larger than the claim's status says. Nothing is written then but the result.
// What the claim requests does not matter: it may be bound to a larger volume.
func TestGrowthWithoutStatus(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		pvc, pv := bound()
		pv.Spec.Capacity = corev1.ResourceList{"storage": resource.MustParse("2Gi")}
		pvc.Spec.Resources.Requests = corev1.ResourceList{"storage": resource.MustParse("1Gi")}
		w.server.Put(pv)
		pending := []corev1.PersistentVolumeClaimCondition{
			{Type: corev1.PersistentVolumeClaimFileSystemResizePending, Status: corev1.ConditionTrue},
		}
		var claim *storage.Claim
		for _, c := range []struct {
			has        string
			conditions []corev1.PersistentVolumeClaimCondition
			allocated  corev1.ResourceList
			want       string
		}{
			{"2Gi", nil, nil, ""},
			{"1Gi", nil, nil, "2Gi"},
			{"1Gi", pending, pv.Spec.Capacity, ""},
			{"1Gi", pending, nil, "2Gi"},
		} {
			pvc.Status.Conditions, pvc.Status.AllocatedResources = c.conditions, c.allocated
			pvc.Status.Capacity = corev1.ResourceList{"storage": resource.MustParse(c.has)}
			w.server.Put(pvc)
			var err error
			if claim, err = w.Claim(t.Context(), pod(), volume()); err != nil {
				t.Fatal(err)
			}
			if got := claim.Growth(); (got == nil) != (c.want == "") || got != nil && got.String() != c.want {
				t.Fatalf("%s, conditions %v, allocated %v: got %v, want %q", c.has, c.conditions, c.allocated, got, c.want)
			}
		}
		err := errors.Join(w.Growing(t.Context(), claim), w.NotGrown(t.Context(), claim, errors.New("no"), true))
		if err != nil {
			t.Fatal(err)
		}
		if p := w.server.Patches(); len(p) != 0 {
			t.Errorf("patches before the end: got %q, want none", p)
		}
		if err := w.Grown(t.Context(), claim, *claim.Growth()); err != nil {
			t.Fatal(err)
		}
		if p := w.server.Patches(); len(p) != 1 || !strings.Contains(p[0], `"capacity":{"storage":"2Gi"}`) ||
			!strings.Contains(p[0], `"$patch":"delete","type":"FileSystemResizePending"`) {
			t.Errorf("patches: got %q, want the new size and no condition", p)
		}
	})
}

// TestNotGrown checks that a failed expansion is retried as long as the claim requests that size, which the storage may
// round up; when it requests another one, the node marks the expansion infeasible, so that the control plane can start
// the new one.
func TestNotGrown(t *testing.T) {
	for _, c := range []struct {
		asked   string
		never   bool
		givesUp bool
	}{{"9Gi", false, false}, {"5Gi", false, true}, {"12Gi", false, true}, {"9Gi", true, true}} {
		inWorld(t, func(t *testing.T, w *world) {
			pvc, pv := bound()
			pv.Spec.Capacity = corev1.ResourceList{"storage": resource.MustParse("10Gi")}
			pvc.Status.AllocatedResources = corev1.ResourceList{"storage": resource.MustParse("9Gi")}
			pvc.Spec.Resources.Requests = corev1.ResourceList{"storage": resource.MustParse(c.asked)}
			pvc.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{
				"storage": corev1.PersistentVolumeClaimNodeResizeInProgress,
			}
			w.server.Put(pvc)
			w.server.Put(pv)
			claim, err := w.Claim(t.Context(), pod(), volume())
			if err != nil {
				t.Fatal(err)
			}
			if err := w.NotGrown(t.Context(), claim, errors.New("no"), c.never); err != nil {
				t.Fatal(err)
			}
			p := w.server.Patches()
			if len(p) != 1 || !strings.Contains(p[0], "NodeResizeError") ||
				strings.Contains(p[0], "NodeResizeInfeasible") != c.givesUp {
				t.Errorf("asked for %s of 9Gi, never %t: got the patches %q, want one with the error", c.asked, c.never, p)
			}
			claim.PVC.Status.Conditions = []corev1.PersistentVolumeClaimCondition{
				{Type: corev1.PersistentVolumeClaimNodeResizeError, Status: corev1.ConditionTrue, Message: "no"},
			}
			err = w.NotGrown(t.Context(), claim, errors.New("no"), c.never)
			if n := len(w.server.Patches()); err != nil || n != 1 && !c.givesUp {
				t.Errorf("the same error again: got %d patches, %v, want no other one", n, err)
			}
		})
	}
}

// TestSecret checks that the values of a secret are returned, and it is read again each time.
func TestSecret(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.server.Put(&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"},
			Data:       map[string][]byte{"k": []byte("v")},
		})
		if got, err := w.Secret(t.Context(), "ns", "s"); err != nil || got["k"] != "v" {
			t.Errorf("got %v, %v", got, err)
		}
		if _, err := w.Secret(t.Context(), "ns", "none"); err == nil || !strings.Contains(err.Error(), "ns/none") {
			t.Errorf("got %v", err)
		}
	})
}
