package volumes

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/kube/storage"
)

// fullNode is an API server with one claim, whose volume cannot be attached to the node.
type fullNode struct {
	oneVolume
	err error
}

func (c *fullNode) Attached(context.Context, types.UID, corev1.UniqueVolumeName, string, string) (
	storage.Attachment, error) {
	return storage.Attachment{}, c.err
}

// TestLimitExceeded checks that a pod is given up if its volume cannot be attached for long because of the driver's
// limit, and only if that limit can change.
func TestLimitExceeded(t *testing.T) {
	yes, period := true, int64(60)
	claim := &storage.Claim{
		PVC: &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "claim"}},
		PV: &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "pv"},
			Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: "h"},
			}},
		},
	}
	for name, test := range map[string]struct {
		err    error
		period *int64
		want   bool
	}{
		"lasting":           {&storage.LimitError{Lasting: true}, &period, true},
		"not for long":      {&storage.LimitError{}, &period, false},
		"a fixed limit":     {&storage.LimitError{Lasting: true}, nil, false},
		"any other failure": {fmt.Errorf("the attacher is gone"), &period, false},
	} {
		t.Run(name, func(t *testing.T) {
			driver := &storagev1.CSIDriver{Spec: storagev1.CSIDriverSpec{
				AttachRequired:                     &yes,
				VolumeLifecycleModes:               []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent},
				NodeAllocatableUpdatePeriodSeconds: test.period,
			}}
			var given []string
			m := newTestManager(t, Config{
				Root:    t.TempDir(),
				Cluster: &fullNode{oneVolume{claim: claim, driver: driver}, test.err},
				LimitExceeded: func(_ context.Context, pod *corev1.Pod, message string) {
					given = append(given, fmt.Sprintf("%s: %s", pod.UID, message))
				},
			}, nil)
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "pod", UID: "uid"}}
			pod.Spec.Containers = []corev1.Container{{VolumeMounts: []corev1.VolumeMount{{Name: "data"}}}}
			d := &driven{
				mounting: &mounting{m, requestFor(pod, claimVolume), nil},
				driver:   driver,
				volume:   persistentVolume(claim, driver, false),
				pv:       claim.PV,
			}
			d.attach = d.attachCSI
			if err := d.attached(t.Context()); err == nil {
				t.Error("got no error, want one: the volume is not attached")
			}
			if got := len(given) == 1; got != test.want {
				t.Errorf("given up: got %q, want %t", given, test.want)
			}
			want := "uid: Node has reached its volume attachment limit, rejecting pod. unattached volumes=[data]"
			if test.want && !strings.HasPrefix(given[0], want) {
				t.Errorf("got %q, want %q", given[0], want)
			}
		})
	}
}
