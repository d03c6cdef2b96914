//go:build e2e

package e2e

import (
	"context"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	podsapi "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
)

const podsAPIPod = `{apiVersion: v1, kind: Pod, metadata: {name: podsapi}, spec: {terminationGracePeriodSeconds: 0,
  containers: [{name: c, image: registry.k8s.io/pause:3.10}]}}`

// podsClient connects to the local pods API of the node.
func podsClient(t *testing.T) podsapi.PodsClient {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+filepath.Join(node().RootDir, "pods-api", "pods-api.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return podsapi.NewPodsClient(conn)
}

// nextPod receives events of a watch until one is about the pod with that name and satisfies ok, and returns the pod.
func nextPod(t *testing.T, w grpc.ServerStreamingClient[podsapi.WatchPodsEvent], name string,
	ok func(podsapi.EventType, *corev1.Pod) bool) *corev1.Pod {
	t.Helper()
	for {
		e, err := w.Recv()
		if err != nil {
			t.Fatalf("watch pod %s: %v", name, err)
		}
		pod := &corev1.Pod{}
		if err := pod.Unmarshal(e.GetPod()); err != nil {
			t.Fatal(err)
		}
		if pod.Name == name && ok(e.GetType(), pod) {
			return pod
		}
	}
}

// TestLocalPodsAPI watches a pod from its creation to its deletion at the node's own API, and lists it again after the
// agent was killed.
func TestLocalPodsAPI(t *testing.T) {
	clean(t)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	w, err := podsClient(t).WatchPods(ctx, &podsapi.WatchPodsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	apply(t, podsAPIPod)
	nextPod(t, w, "podsapi", func(kind podsapi.EventType, _ *corev1.Pod) bool { return kind == podsapi.EventType_ADDED })
	pod := nextPod(t, w, "podsapi", func(kind podsapi.EventType, pod *corev1.Pod) bool {
		return kind == podsapi.EventType_MODIFIED && ready(pod)
	})
	if len(pod.Status.PodIPs) == 0 || len(pod.Status.ContainerStatuses) != 1 {
		t.Errorf("Ready pod: got status %+v, want an address and one container", pod.Status)
	}

	stopAgent(t, unix.SIGKILL)
	startAgent(t)
	client := podsClient(t)
	eventually(t, "the pod is Ready at the API of the next agent", func() (string, bool) {
		one, err := client.GetPod(ctx, &podsapi.GetPodRequest{PodUID: string(pod.UID)})
		if err != nil {
			return err.Error(), false
		}
		got := &corev1.Pod{}
		return "not Ready", got.Unmarshal(one.GetPod()) == nil && ready(got)
	})
	if w, err = client.WatchPods(ctx, &podsapi.WatchPodsRequest{}); err != nil {
		t.Fatal(err)
	}
	kubectl(t, "delete", "pod", "podsapi", "--wait=false")
	nextPod(t, w, "podsapi", func(kind podsapi.EventType, gone *corev1.Pod) bool {
		return kind == podsapi.EventType_DELETED && gone.UID == pod.UID
	})
}
