package podcgroups

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/agent/spec"
	"github.com/nodelet/nodelet/host/cgroups"
)

// TestPidsAfterRemoval checks that a pod may start processes although the removal of the cgroup of an earlier one with
// its UID, such as a static pod, has forbidden that and was not completed.
func TestPidsAfterRemoval(t *testing.T) {
	tree, mounts := newTree(t)
	var operations []string
	c := New(tree, func() *spec.Node { return &spec.Node{} },
		func(operation string, _ time.Duration) { operations = append(operations, operation) })
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{UID: "again"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app"}}},
	}
	parent, err := tree.PodParent(nameOf(pod))
	if err != nil {
		t.Fatal(err)
	}
	limit := filepath.Join(mounts["pids"], parent, "pids.max")
	for range 2 {
		if _, err := c.Prepare(pod); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(limit); err != nil || strings.TrimSpace(string(got)) != "max" {
			t.Errorf("%s: got %q, %v, want max", limit, got, err)
		}
		if err := os.WriteFile(limit, []byte("0"), 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Remove(t.Context(), pod); err != nil {
		t.Error(err)
	}
	if want := []string{"create", "update", "destroy"}; !slices.Equal(operations, want) {
		t.Errorf("counted %q, want %q", operations, want)
	}
}

// newTree makes a hierarchy of its own, and returns where its controllers are mounted.
func newTree(t *testing.T) (tree *cgroups.Tree, mounts map[string]string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes cgroups")
	}
	root := fmt.Sprintf("/nodelet-test-%d-%d", os.Getpid(), time.Now().UnixNano())
	tree, err := cgroups.New(cgroups.Config{Root: root, Driver: cgroups.DriverCgroupfs})
	if err != nil {
		t.Fatal(err)
	}
	mounts = tree.Mounts()
	if tree.Version() == 2 {
		mounts = map[string]string{"pids": "/sys/fs/cgroup"}
	}
	for _, mount := range mounts {
		t.Cleanup(func() { removeCgroups(t, filepath.Join(mount, root)) })
	}
	if err := tree.Ensure(); err != nil {
		t.Fatal(err)
	}
	return tree, mounts
}

// TestRestore checks that the cgroup of a pod that somebody has removed gets its limits again, also if it was removed
// from one controller of v1 only, and that one which is there keeps those that it has.
func TestRestore(t *testing.T) {
	tree, mounts := newTree(t)
	node := &spec.Node{Limits: spec.Limits{PodPidsLimit: 100}}
	c := New(tree, func() *spec.Node { return node }, func(string, time.Duration) {})
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{UID: "removed"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app"}}},
	}
	limit := filepath.Join(mounts["pids"], c.Path(pod), "pids.max")
	check := func(want string) {
		t.Helper()
		if err := c.Restore(pod); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(limit); err != nil || strings.TrimSpace(string(got)) != want {
			t.Errorf("%s: got %q, %v, want %s", limit, got, err, want)
		}
	}
	if _, err := c.Prepare(pod); err != nil {
		t.Fatal(err)
	}
	if err := tree.RemovePod(t.Context(), nameOf(pod)); err != nil {
		t.Fatal(err)
	}
	check("100")
	if err := os.Remove(filepath.Dir(limit)); err != nil { // on v1, systemd leaves it in controllers of others
		t.Fatal(err)
	}
	check("100")
	if err := os.WriteFile(limit, []byte("7"), 0); err != nil {
		t.Fatal(err)
	}
	check("7")
	if err := c.Remove(t.Context(), pod); err != nil {
		t.Error(err)
	}
}

// TestThrottledByTheLimitInForce checks that the cgroup of a pod which is to get less memory is throttled by its limit
// until that is lowered: also when the pod is prepared again, and when its CPU grows first.
func TestThrottledByTheLimitInForce(t *testing.T) {
	node := &spec.Node{CgroupV2: true, MemoryQoS: &spec.MemoryQoS{ThrottlingFactor: 0.9, PageSize: 4096}}
	of := func(limit string) spec.PodResources {
		return spec.PodCgroup(&corev1.Pod{Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "app"}},
			Resources: &corev1.ResourceRequirements{
				Requests: corev1.ResourceList{"memory": resource.MustParse("1Gi")},
				Limits:   corev1.ResourceList{"memory": resource.MustParse(limit)},
			}}}, node)
	}
	const keeps, of3Gi, of2Gi = "", "3006476288", "2040107008"
	has3Gi, has2Gi := cgroups.Resources{Memory: 3 << 30}, cgroups.Resources{Memory: 2 << 30}
	for _, c := range []struct {
		what string
		gets cgroups.Resources
		want string
	}{
		{"a new cgroup", created(of("3Gi")), of3Gi},
		{"prepared again", kept(of("2Gi"), has3Gi), keeps},
		{"more CPU", resized(of("2Gi"), has3Gi, podstate.Size{Shares: 2048, Memory: 3 << 30}), keeps},
		{"less memory", resized(of("2Gi"), has3Gi, podstate.Size{Shares: 2048, Memory: 2 << 30}), of2Gi},
		{"prepared with that", kept(of("2Gi"), has2Gi), of2Gi},
	} {
		if high := c.gets.Unified["memory.high"]; high != c.want {
			t.Errorf("%s: got memory.high %q, want %q", c.what, high, c.want)
		}
	}
}

// removeCgroups removes a cgroup and those below it, which have no processes.
func removeCgroups(t *testing.T, root string) {
	t.Helper()
	var dirs []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // not in every controller of v1
		t.Error(err)
	}
	for _, dir := range slices.Backward(dirs) {
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	}
}

// TestRemoveNamesProcesses checks that an attempt to remove a cgroup ends although a process in it does not, with an
// error that names the process.
func TestRemoveNamesProcesses(t *testing.T) {
	tree, mounts := newTree(t)
	c := New(tree, func() *spec.Node { return &spec.Node{} }, func(string, time.Duration) {})
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{UID: "stuck"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app"}}},
	}
	if _, err := c.Prepare(pod); err != nil {
		t.Fatal(err)
	}
	process := exec.CommandContext(t.Context(), "sleep", "1000")
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- process.Wait() }()
	pid := strconv.Itoa(process.Process.Pid)
	procs := filepath.Join(mounts["pids"], c.Path(pod), "cgroup.procs")
	if err := os.WriteFile(procs, []byte(pid), 0); err != nil {
		t.Fatal(err)
	}
	c.removeTimeout = 0 // it has no time to end
	if err := c.Remove(t.Context(), pod); err == nil || !strings.Contains(err.Error(), pid+" (") {
		t.Errorf("got error %v, want one that names %s", err, pid)
	}
	c.removeTimeout = removeTimeout
	if err := c.Remove(t.Context(), pod); err != nil {
		t.Error(err)
	}
	<-ended
}
