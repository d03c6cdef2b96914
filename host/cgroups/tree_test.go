package cgroups

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/systemd"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/host/cgroups/names"
	"github.com/nodelet/nodelet/test/waittest"
)

// onEachDriver runs a test on a real tree, once with each driver that the machine has.
func onEachDriver(t *testing.T, test func(t *testing.T, tree *Tree)) {
	t.Run(DriverCgroupfs, func(t *testing.T) { test(t, newRealTree(t, DriverCgroupfs)) })
	t.Run(DriverSystemd, func(t *testing.T) {
		if !systemd.IsRunningSystemd() {
			t.Skip("needs a machine that runs systemd")
		}
		test(t, newRealTree(t, DriverSystemd))
	})
}

// newRealTree returns a tree below a cgroup of the test's own, which is removed when the test ends.
func newRealTree(t testing.TB, driver string) *Tree {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes cgroups")
	}
	root := fmt.Sprintf("/nodelet-test-%d-%d", os.Getpid(), time.Now().UnixNano())
	tree, err := New(Config{Root: root, Driver: driver})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		dirs := slices.Collect(maps.Values(tree.dirs(names.Parse(root))))
		if err := killAll(context.Background(), dirs); err != nil {
			t.Error(err)
		}
		destroy(t, tree, names.Parse(root))
		for _, dir := range dirs {
			if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s: got it left, %v, want it removed", dir, err)
			}
		}
	})
	return tree
}

// destroy removes n with all below it; systemd needs a call for each slice.
func destroy(t testing.TB, tree *Tree, n names.Name) {
	t.Helper()
	if tree.systemd.Load() {
		for _, qos := range []corev1.PodQOSClass{"Burstable", "BestEffort", "Guaranteed"} {
			destroyOne(t, tree, tree.pods.Class(qos)) // Guaranteed's is kubepods itself
		}
	}
	destroyOne(t, tree, n)
}

func destroyOne(t testing.TB, tree *Tree, n names.Name) {
	t.Helper()
	m, err := tree.manager(n, &cgroups.Resources{SkipDevices: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Destroy(); err != nil {
		t.Error(err)
	}
}

func ensure(t testing.TB, tree *Tree) {
	t.Helper()
	limits := Resources{CPUShares: 2048, Memory: 1 << 30, Pids: 1000, HugePages: map[int64]int64{}}
	if err := errors.Join(tree.Ensure(), tree.Limit(limits)); err != nil {
		t.Fatal(err)
	}
}

// file reads a setting of a cgroup; names are cgroup v1's and v2's.
func file(t *testing.T, tree *Tree, n names.Name, controller, v1, v2 string) string {
	t.Helper()
	path := filepath.Join(tree.dirs(n)[controller], v1)
	if tree.v2 {
		path = filepath.Join(tree.dirs(n)[""], v2)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(raw))
}

func shares(tree *Tree, v uint64) string {
	if tree.v2 {
		v = weight(v)
	}
	return strconv.FormatUint(v, 10)
}

// TestMissingController checks that cgroup v1 without the controller of memory is an error that names it.
func TestMissingController(t *testing.T) {
	mounts := map[string]string{"cpu": "/cpu,cpuacct", "cpuacct": "/cpu,cpuacct", "cpuset": "/cpuset", "pids": "/pids"}
	if err := checkMounts(mounts); err == nil || !strings.Contains(err.Error(), "lacks memory: ") {
		t.Errorf("got %v, want the controller that is missing", err)
	}
	mounts["memory"] = "/memory"
	if err := checkMounts(mounts); err != nil {
		t.Error(err)
	}
}

func TestEnsure(t *testing.T) {
	onEachDriver(t, testEnsure)
}

func testEnsure(t *testing.T, tree *Tree) {
	ensure(t, tree)
	ensure(t, tree) // again, as after a restart
	for _, c := range []struct {
		n      names.Name
		shares uint64
	}{{tree.pods, 2048}, {tree.pods.Class("Burstable"), 2}, {tree.pods.Class("BestEffort"), 2}} {
		if got := file(t, tree, c.n, "cpu", "cpu.shares", "cpu.weight"); got != shares(tree, c.shares) {
			t.Errorf("%s: got %s CPU shares, want %s", c.n.Spell(false), got, shares(tree, c.shares))
		}
	}
	if got := file(t, tree, tree.pods, "memory", "memory.limit_in_bytes", "memory.max"); got != "1073741824" {
		t.Errorf("memory limit of kubepods: got %s, want 1073741824", got)
	}
	if got := file(t, tree, tree.pods, "pids", "pids.max", "pids.max"); got != "1000" {
		t.Errorf("pids limit of kubepods: got %s, want 1000", got)
	}
	if err := tree.SetShares(1500); err != nil {
		t.Fatal(err)
	}
	ensure(t, tree)
	if got := file(t, tree, tree.pods.Class("Burstable"), "cpu", "cpu.shares", "cpu.weight"); got != shares(tree, 1536) {
		t.Errorf("burstable has %s CPU shares, want %s", got, shares(tree, 1536))
	}
	next := newTree(Config{Driver: DriverCgroupfs}, tree.v2) // the restarted agent
	next.pods, next.mounts = tree.pods, tree.mounts
	next.pageSizes, next.hugetlb = tree.pageSizes, tree.hugetlb
	next.systemd.Store(tree.systemd.Load())
	ensure(t, next)
	if got := file(t, tree, tree.pods.Class("Burstable"), "cpu", "cpu.shares", "cpu.weight"); got != shares(tree, 1536) {
		t.Errorf("burstable has %s CPU shares after a restart, want %s", got, shares(tree, 1536))
	}
}

// TestIdentity checks that the cgroup of all pods has another identity when it was removed and made again.
func TestIdentity(t *testing.T) {
	onEachDriver(t, testIdentity)
}

func testIdentity(t *testing.T, tree *Tree) {
	if got := tree.Identity(); got != "" {
		t.Errorf("got the identity %q of no cgroup, want none", got)
	}
	ensure(t, tree)
	first := tree.Identity()
	ensure(t, tree)
	if got := tree.Identity(); got != first || got == "" {
		t.Errorf("got the identity %q, want %q, as before", got, first)
	}
	destroy(t, tree, tree.pods)
	ensure(t, tree)
	if got := tree.Identity(); got == first || got == "" {
		t.Errorf("got the identity %q, want another one than before", got)
	}
}

// TestUse checks that Use sets the driver and rejects one that cannot work on this machine with advice on what to do.
func TestUse(t *testing.T) {
	tree := newTree(Config{Driver: DriverSystemd}, true)
	if err := tree.Use(DriverCgroupfs); err != nil || tree.spell(tree.pods) != "/kubepods" {
		t.Errorf("got cgroup %s, error %v, want /kubepods", tree.spell(tree.pods), err)
	}
	if err := tree.Use("magic"); err == nil || !strings.Contains(err.Error(), `cgroupDriver "magic" is unknown`) {
		t.Error(err)
	}
	err := tree.Use(DriverSystemd)
	running := systemd.IsRunningSystemd()
	if (err == nil) != running || err != nil && !strings.Contains(err.Error(), "cgroupDriver: cgroupfs") {
		t.Errorf("systemd is running: %v; got error %v", running, err)
	}
}

func TestCreateUpdateRemovePod(t *testing.T) {
	onEachDriver(t, testCreateUpdateRemovePod)
}

func testCreateUpdateRemovePod(t *testing.T, tree *Tree) {
	ensure(t, tree)
	p := Pod{UID: "cycle", QOS: "Burstable"}
	if ok, err := tree.PodExists(p); ok || err != nil {
		t.Fatalf("PodExists before CreatePod: got %v, %v, want false", ok, err)
	}
	suffix := map[bool]string{true: ".slice"}[tree.systemd.Load()]
	r := Resources{CPUShares: 102, CPUQuota: 10000, CPUPeriod: 100000, Memory: 64 << 20, Pids: 50}
	for range 2 { // the second time as after a crash
		if err := tree.CreatePod(p, r); err != nil {
			t.Fatal(err)
		}
	}
	if parent, err := tree.PodParent(p); err != nil || !strings.HasSuffix(parent, "podcycle"+suffix) {
		t.Errorf("PodParent: got %q, %v, want the pod's cgroup", parent, err)
	}
	n, _ := tree.pods.Pod(p.UID, p.QOS)
	if got := file(t, tree, n, "memory", "memory.limit_in_bytes", "memory.max"); got != strconv.Itoa(64<<20) {
		t.Errorf("memory limit: got %s, want 64 MiB", got)
	}
	if err := tree.UpdatePod(p, Resources{Memory: 128 << 20}); err != nil {
		t.Fatal(err)
	}
	if got := file(t, tree, n, "memory", "memory.limit_in_bytes", "memory.max"); got != strconv.Itoa(128<<20) {
		t.Errorf("memory limit after the update: got %s, want 128 MiB", got)
	}
	if got := file(t, tree, n, "pids", "pids.max", "pids.max"); got != "50" {
		t.Errorf("pids limit after an update of memory alone: got %s, want 50", got)
	}
	if ok, err := tree.PodExists(p); !ok || err != nil {
		t.Errorf("PodExists: got %v, %v, want true", ok, err)
	}
	if used, err := tree.PodMemoryUsage(p); used > 64<<20 || err != nil {
		t.Errorf("PodMemoryUsage without a process: got %d, %v, want less than 64 MiB", used, err)
	}
	for range 2 {
		if err := tree.RemovePod(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	if ok, err := tree.PodExists(p); ok || err != nil {
		t.Errorf("PodExists after RemovePod: got %v, %v, want false", ok, err)
	}
}

// TestPodHalfRemoved checks that a cgroup which a crash has left in only one controller of cgroup v1 is found and
// removed.
func TestPodHalfRemoved(t *testing.T) {
	onEachDriver(t, testPodHalfRemoved)
}

func testPodHalfRemoved(t *testing.T, tree *Tree) {
	ensure(t, tree)
	p := Pod{UID: "half", QOS: "BestEffort"}
	n, _ := tree.pods.Pod(p.UID, p.QOS)
	for controller, dir := range tree.dirs(n) {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if ok, err := tree.PodExists(p); !ok || err != nil {
			t.Errorf("PodExists with a cgroup in controller %q only: got %v, %v, want true", controller, ok, err)
		}
		if err := tree.RemovePod(t.Context(), p); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("RemovePod: got %s left, %v, want it removed", dir, err)
		}
	}
}

func TestPodsListsOnlyPods(t *testing.T) {
	onEachDriver(t, testPodsListsOnlyPods)
}

func testPodsListsOnlyPods(t *testing.T, tree *Tree) {
	ensure(t, tree)
	for _, p := range []Pod{{"one", "Guaranteed"}, {"two", "Burstable"}, {"three", "BestEffort"}} {
		if err := tree.CreatePod(p, Resources{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := tree.create(tree.pods.Below("other"), Resources{}); err != nil {
		t.Fatal(err)
	}
	got, err := tree.Pods()
	if want := []types.UID{"one", "two", "three"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("Pods: got %v, %v, want %v", got, err, want)
	}
}

// TestRemovePodKills checks that RemovePod kills all processes of a pod: those of nested cgroups, stopped ones, and
// ones that fork as fast as they can.
func TestRemovePodKills(t *testing.T) {
	onEachDriver(t, testRemovePodKills)
}

func testRemovePodKills(t *testing.T, tree *Tree) {
	ensure(t, tree)
	p := Pod{UID: "kill", QOS: "BestEffort"}
	if err := tree.CreatePod(p, Resources{Pids: 200}); err != nil {
		t.Fatal(err)
	}
	n, _ := tree.pods.Pod(p.UID, p.QOS)
	inner, other := n.Below("container", "deep"), n.Below("other")
	for _, container := range []names.Name{inner, other} {
		if err := tree.create(container, Resources{}); err != nil {
			t.Fatal(err)
		}
	}
	bystander := start(t, tree, names.Name{}, "exec sleep 1000")
	quiet := start(t, tree, inner, "trap '' TERM INT; exec sleep 1000")
	stopped := start(t, tree, other, "kill -STOP $$; sleep 1000")
	forking := start(t, tree, other, "f() { sleep 0.01; f & f; }; f")
	alone := start(t, tree, names.Name{}, "exec sleep 1000") // in one controller only
	dir := tree.dirs(other)["pids"]
	if tree.v2 {
		dir = tree.dirs(other)[""]
	}
	if err := cgroups.WriteFile(dir, "cgroup.procs", strconv.Itoa(alone.Process.Pid)); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := tree.RemovePod(waittest.Context(t), p); err != nil {
		t.Fatal(err)
	}
	t.Logf("took %v", time.Since(began))
	for _, cmd := range []*exec.Cmd{quiet, stopped, forking, alone} {
		if end := endedBy(cmd); end != syscall.SIGKILL {
			t.Errorf("%s: got it ended by %q, want SIGKILL", cmd, end)
		}
	}
	if end := endedBy(bystander); end != syscall.SIGTERM {
		t.Errorf("process outside the pod: got it ended by %q, want it to run", end)
	}
	if ok, err := tree.PodExists(p); ok || err != nil {
		t.Errorf("PodExists: got %v, %v, want false", ok, err)
	}
}

// TestKillSparesReusedPID checks that a process outside of the pod's cgroup is not killed, although its PID was read
// from there: the process that had it then has ended.
func TestKillSparesReusedPID(t *testing.T) {
	tree := newRealTree(t, DriverCgroupfs)
	ensure(t, tree)
	p := Pod{UID: "reused", QOS: "BestEffort"}
	if err := tree.CreatePod(p, Resources{}); err != nil {
		t.Fatal(err)
	}
	n, _ := tree.pods.Pod(p.UID, p.QOS)
	bystander := start(t, tree, names.Name{}, "exec sleep 1000")
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // do not wait for its end
	pids := map[int]bool{bystander.Process.Pid: true}
	if err := killRoundOf(ctx, slices.Collect(maps.Values(tree.dirs(n))), pids); err != nil {
		t.Fatal(err)
	}
	if end := endedBy(bystander); end != syscall.SIGTERM {
		t.Errorf("process outside the pod: got it ended by %q, want it to run", end)
	}
}

// endedBy sends SIGTERM to a process, and returns by which signal it ended: another one if it had got that before.
func endedBy(cmd *exec.Cmd) syscall.Signal {
	_ = cmd.Process.Signal(syscall.SIGTERM)
	exit, ok := errors.AsType[*exec.ExitError](cmd.Wait())
	if !ok {
		return 0
	}
	return exit.Sys().(syscall.WaitStatus).Signal()
}

// start runs a shell script in a cgroup (the root: that of the test) and returns when it runs in it.
func start(t *testing.T, tree *Tree, n names.Name, script string) *exec.Cmd {
	t.Helper()
	ready, started, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer ready.Close()
	join := ""
	if tree.spell(n) != "/" {
		for _, dir := range tree.dirs(n) {
			join += fmt.Sprintf("[ ! -e %[1]s ] || echo $$ > %[1]s/cgroup.procs || exit 9\n", dir)
		}
	}
	cmd := exec.Command("bash", "-c", join+"echo >&3; exec 3>&-\n"+script)
	cmd.ExtraFiles, cmd.Stderr = []*os.File{started}, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	started.Close()
	t.Cleanup(func() { _ = cmd.Process.Kill(); _, _ = cmd.Process.Wait() })
	if _, err := ready.Read(make([]byte, 1)); err != nil {
		t.Fatalf("%s did not join its cgroup: %v", script, err)
	}
	return cmd
}

func TestKillGivesUpWithNames(t *testing.T) {
	onEachDriver(t, testKillGivesUpWithNames)
}

func testKillGivesUpWithNames(t *testing.T, tree *Tree) {
	ensure(t, tree)
	p := Pod{UID: "late", QOS: "Burstable"}
	if err := tree.CreatePod(p, Resources{}); err != nil {
		t.Fatal(err)
	}
	n, _ := tree.pods.Pod(p.UID, p.QOS)
	cmd := start(t, tree, n, "exec sleep 1000")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := tree.RemovePod(ctx, p)
	want := fmt.Sprintf("%d (", cmd.Process.Pid)
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), want) {
		t.Errorf("got error %v, want one that names %s", err, want)
	}
}

func TestEnforceNeedsAnExistingCgroup(t *testing.T) {
	onEachDriver(t, testEnforceNeedsAnExistingCgroup)
}

func testEnforceNeedsAnExistingCgroup(t *testing.T, tree *Tree) {
	ensure(t, tree)
	n := tree.pods.Below("reserved")
	err := tree.Enforce(tree.spell(n), Resources{CPUShares: 512})
	if !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "enforceNodeAllocatable") {
		t.Errorf("missing cgroup: got %v, want an error that names the setting", err)
	}
	if err := tree.create(n, Resources{}); err != nil {
		t.Fatal(err)
	}
	if dir, both := tree.dirs(n)[""]; both && !tree.v2 {
		// On a machine with both hierarchies, that of cgroup v2 has no controllers, and the cgroup may not exist in it.
		if err := os.Remove(dir); err != nil {
			t.Fatal(err)
		}
	}
	if err := tree.Enforce(tree.spell(n), Resources{CPUShares: 512}); err != nil {
		t.Fatal(err)
	}
	if got := file(t, tree, n, "cpu", "cpu.shares", "cpu.weight"); got != shares(tree, 512) {
		t.Errorf("CPU shares: got %s, want %s", got, shares(tree, 512))
	}
}

func TestBadConfig(t *testing.T) {
	for _, cfg := range []Config{{Driver: ""}, {Driver: "docker"}, {Driver: DriverCgroupfs, Root: "/a/../.."}} {
		if _, err := New(cfg); err == nil {
			t.Errorf("%+v: got no error, want one", cfg)
		}
	}
}

func BenchmarkPod(b *testing.B) {
	tree := newRealTree(b, DriverCgroupfs)
	ensure(b, tree)
	limits := Resources{CPUShares: 102, CPUQuota: 10000, CPUPeriod: 100000, Memory: 64 << 20, Pids: 100}
	i := 0
	for b.Loop() {
		p := Pod{UID: types.UID(fmt.Sprint(i)), QOS: "Burstable"}
		i++
		if err := tree.CreatePod(p, limits); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := tree.RemovePod(b.Context(), p); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

func BenchmarkRemoveEmptyPod(b *testing.B) {
	tree := newRealTree(b, DriverCgroupfs)
	ensure(b, tree)
	p := Pod{UID: "x", QOS: "Burstable"}
	for b.Loop() {
		b.StopTimer()
		if err := tree.CreatePod(p, Resources{}); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		if err := tree.RemovePod(b.Context(), p); err != nil {
			b.Fatal(err)
		}
	}
}
