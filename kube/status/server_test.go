package status

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/nodelet/nodelet/kube/client"
	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/test/waittest"
)

// kubeconfigEnv names a kubeconfig of an administrator; with it the tests below run against a real API server.
const kubeconfigEnv = "NODELET_TEST_KUBECONFIG"

func realAPI(t testing.TB) rest.Interface {
	path := os.Getenv(kubeconfigEnv)
	if path == "" {
		t.Skipf("needs an API server: set %s", kubeconfigEnv)
	}
	cfg, err := client.LoadConfig(path)
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(cfg, 1000, 1000, "nodelet-test")
	if err != nil {
		t.Fatal(err)
	}
	return c.Core
}

// server is a real API server with a publisher.
type server struct {
	t    *testing.T
	api  rest.Interface
	p    *Publisher
	seen chan *corev1.Pod
}

func newServer(t *testing.T) *server {
	s := &server{t: t, api: realAPI(t), seen: make(chan *corev1.Pod, 100)}
	s.p = New(Config{Log: discard, Client: s.api,
		Published: func(pod *corev1.Pod, took time.Duration) { t.Logf("published in %v", took); s.seen <- pod }})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); s.p.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return s
}

func (s *server) create(name string) *corev1.Pod {
	s.t.Helper()
	no := false
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: corev1.PodSpec{NodeName: "no-such-node", AutomountServiceAccountToken: &no,
			RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "app", Image: "i"}}}}
	out := &corev1.Pod{}
	if err := s.api.Post().Namespace("default").Resource("pods").Body(pod).Do(s.t.Context()).Into(out); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = s.remove(context.Background(), name) })
	return out
}

func (s *server) remove(ctx context.Context, name string) error {
	now := int64(0)
	return s.api.Delete().Namespace("default").Resource("pods").Name(name).
		Body(&metav1.DeleteOptions{GracePeriodSeconds: &now}).Do(ctx).Error()
}

func (s *server) get(name string) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	return pod, s.api.Get().Namespace("default").Resource("pods").Name(name).Do(s.t.Context()).Into(pod)
}

func (s *server) awaitDeleted(uid types.UID) {
	s.t.Helper()
	waittest.Until(s.t, "the publisher knows that the pod is deleted", func() bool {
		_, known := s.p.newest(uid)
		return !known
	})
}

func TestRealServerAcceptsStatuses(t *testing.T) {
	s := newServer(t)
	pod := s.create("nodelet-status-updates")
	status := fullStatus(1)
	status.ContainerStatuses[0].Name, status.QOSClass = "app", ""
	status.Conditions = append(status.Conditions, corev1.PodCondition{
		Type:   corev1.PodResizePending,
		Status: "True",
		Reason: "Deferred",
	})
	s.p.Set(pod, status)
	got := <-s.seen
	settled, _ := Settle(pod, &got.Status, status)
	if !unchanged(&got.Status, &settled) {
		body, _ := patchFor(pod.UID, &got.Status, &settled)
		t.Errorf("after the API server applied the patch: got %s still to send, want nothing", body)
	}
	status.Conditions = status.Conditions[:5]
	status.PodIPs = []corev1.PodIP{{IP: "10.1.0.9"}, {IP: "fd00::9"}}
	status.PodIP = "10.1.0.9"
	s.p.Set(pod, status)
	got = <-s.seen
	if podutil.Condition(got.Status.Conditions, corev1.PodResizePending) != nil || got.Status.PodIPs[0].IP != "10.1.0.9" ||
		len(got.Status.PodIPs) != 2 {
		t.Errorf("got conditions %v, podIPs %v, want no resize, and 10.1.0.9 first of two",
			got.Status.Conditions, got.Status.PodIPs)
	}
	status.Phase = corev1.PodSucceeded
	status.ContainerStatuses[0].State = corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{Reason: "Completed"},
	}
	for i, c := range status.Conditions {
		if c.Type == corev1.PodReady || c.Type == corev1.ContainersReady {
			status.Conditions[i].Status, status.Conditions[i].Reason = corev1.ConditionFalse, "PodCompleted"
		}
	}
	deleted := &corev1.Pod{}
	err := s.api.Delete().Namespace("default").Resource("pods").Name(pod.Name).Do(t.Context()).Into(deleted)
	if err != nil {
		t.Fatal(err)
	}
	s.p.SetGone(deleted, status)
	if got = <-s.seen; got.Status.Phase != corev1.PodSucceeded || isReady(&got.Status) {
		t.Errorf("got phase %s, ready %v, want Succeeded, false", got.Status.Phase, isReady(&got.Status))
	}
	s.awaitDeleted(pod.UID)
	if _, err := s.get(pod.Name); !apierrors.IsNotFound(err) {
		t.Errorf("get after the final delete: got %v, want NotFound", err)
	}
}

// TestRealServerReplacedPods checks how a real API server refuses a patch and a delete with another pod's UID.
func TestRealServerReplacedPods(t *testing.T) {
	for _, gone := range []bool{false, true} {
		s := newServer(t)
		old := s.create("nodelet-status-replaced")
		if err := s.remove(t.Context(), old.Name); err != nil {
			t.Fatal(err)
		}
		if !gone { // a name without a pod
			s.p.Set(old, running(old, true))
			s.awaitDeleted(old.UID)
		}
		next := s.create(old.Name)
		status := running(old, true)
		if gone { // nothing to patch: the delete is the first to notice
			old.Status, old.DeletionTimestamp = status, new(metav1.Now())
			old.Status.Phase, old.Status.Conditions = corev1.PodFailed, nil
			old.Status.StartTime, old.Status.ObservedGeneration = &metav1.Time{Time: time.Unix(1, 0)}, old.Generation
			status = *old.Status.DeepCopy()
		}
		s.p.set(old, status, gone)
		s.awaitDeleted(old.UID)
		if len(s.seen) > 0 {
			t.Errorf("gone=%v: got an accepted patch, want none", gone)
		}
		if got, err := s.get(next.Name); err != nil || got.ResourceVersion != next.ResourceVersion {
			t.Errorf("gone=%v: got %v or another version, want the new pod as it was", gone, err)
		}
		if err := s.remove(t.Context(), next.Name); err != nil {
			t.Fatal(err)
		}
	}
}

func TestRealServerAcceptsEvents(t *testing.T) {
	api := realAPI(t)
	r := NewRecorder(RecorderConfig{Log: discard, Client: api, Node: "node-1"})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); r.Run(ctx) }()
	defer func() { cancel(); <-done }()
	uid := fmt.Sprintf("nodelet-events-%d", time.Now().UnixNano())
	watch, err := api.Get().Namespace("default").Resource("events").
		Param("watch", "true").Param("fieldSelector", "involvedObject.uid="+uid).Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	for want := int32(1); want <= 2; want++ {
		r.Event(Ref{
			Kind:      "Pod",
			Namespace: "default",
			Name:      "nodelet-events",
			UID:       types.UID(uid),
		}, "Normal", "Pulled", "m")
		select {
		case e := <-watch.ResultChan():
			event, ok := e.Object.(*corev1.Event)
			if !ok || event.Count != want || event.Source.Component != "kubelet" {
				t.Fatalf("watch: got %+v, want count %d", e.Object, want)
			}
		case <-waittest.Context(t).Done():
			t.Fatalf("got no event with the count %d, want one", want)
		}
	}
}
