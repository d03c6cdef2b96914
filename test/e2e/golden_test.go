//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// golden overwrites the expected output in testdata. That is the output of the kubelet, so use the flag only with a
// testbed whose agent is the kubelet:
//
//	go run ./test/testbed/cmd/testbed up --name oracle --agent kubelet --runtime containerd
//	NODELET_E2E_TESTBED=oracle go test -tags e2e ./test/e2e -run TestEverything -golden
var golden = flag.Bool("golden", false, "write testdata from the agent of the testbed, which must be the kubelet")

// compareGolden compares a pod's status with the kubelet's, except for what differs from run to run.
func compareGolden(t *testing.T, file string, pod *corev1.Pod) {
	t.Helper()
	st := pod.Status.DeepCopy()
	// On cgroup v1 the kubelet reads a memory limit of 8 EiB from the pod's cgroup and shows it.
	st.Resources = nil
	text, err := json.MarshalIndent(st, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	compareText(t, file, string(text))
}

// compareEvents compares the events about a pod with the kubelet's. It leaves out failed probes: their number depends
// on the speed of the machine.
func compareEvents(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	all := slices.DeleteFunc(events(pod.UID), func(e string) bool { return strings.HasPrefix(e, "Warning Unhealthy") })
	slices.Sort(all)
	compareText(t, pod.Name+".events.txt", strings.Join(all, "\n"))
}

func compareText(t *testing.T, file, got string) {
	t.Helper()
	path := filepath.Join("testdata", node().Runtime.Name, file)
	got = strings.ReplaceAll(stable(got), node().Name, "NODE") + "\n"
	if *golden {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
		t.Errorf("%s: want, as the kubelet (-), got (+):\n%s", file, diff)
	}
}

// lastOf calls act, which deletes a pod, and returns the last version of the pod in the API.
func lastOf(t *testing.T, name string, act func()) *corev1.Pod {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	last, done := getPod(t, name), make(chan struct{})
	go func() {
		defer close(done)
		_ = follow(ctx, "pods", named(name), func(e watch.Event) bool {
			last = e.Object.(*corev1.Pod)
			return e.Type == watch.Deleted
		})
	}()
	act()
	<-done
	return last
}
