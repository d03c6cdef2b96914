package allocatable

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nodelet/nodelet/host/cgroups"
)

// tree records the calls that set limits. refuse is how often it refuses a memory limit, missing the reserved cgroup
// that does not exist.
type tree struct {
	calls   []string
	refuse  int
	missing string
	// made is how often the cgroup of all pods was made, lost that it cannot be made.
	made atomic.Int32
	lost bool
}

func (t *tree) Identity() string { return fmt.Sprint(t.made.Load()) }

func (t *tree) record(verb string, r cgroups.Resources) {
	call := fmt.Sprintf("%s memory=%d shares=%d hugepages=%v", verb, r.Memory, r.CPUShares, r.HugePages)
	if r.Unified != nil {
		call += fmt.Sprintf(" unified=%v", r.Unified)
	}
	t.calls = append(t.calls, call)
}

func (t *tree) Ensure() error {
	t.calls = append(t.calls, "ensure")
	if t.lost {
		return errors.New("read-only file system")
	}
	return nil
}

func (t *tree) Limit(r cgroups.Resources) error {
	t.record("limit", r)
	if t.refuse > 0 {
		t.refuse--
		return errors.New("device or resource busy")
	}
	return nil
}

func (t *tree) Enforce(cgroup string, r cgroups.Resources) error {
	t.record("enforce "+cgroup, r)
	if cgroup == t.missing {
		return fmt.Errorf("cgroup %s does not exist", cgroup)
	}
	return nil
}

func list(cpu, memory string) corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse(cpu),
		corev1.ResourceMemory: resource.MustParse(memory),
	}
}

func (t *tree) enforcer(log *slog.Logger, events *[]string, enforce ...string) *Enforcer {
	return New(Config{
		Tree:    t,
		PerQOS:  true,
		Enforce: enforce,
		System:  Reservation{list("500m", "1000"), "/system"},
		Kube:    Reservation{list("250m", "2000"), "/kube"},
		Capacity: func() corev1.ResourceList {
			all := list("4", "10000")
			all["hugepages-2Mi"] = resource.MustParse("4Mi")
			return all
		},
		Systemd: func() bool { return false },
		Event:   func(_, reason, _ string) { *events = append(*events, reason) },
		Log:     log,
	})
}

// TestSetup checks which cgroups are limited, and to what.
func TestSetup(t *testing.T) {
	for _, c := range []struct {
		enforce []string
		want    []string
	}{
		{nil, []string{"ensure", "limit memory=0 shares=4096 hugepages=map[2097152:4194304]"}},
		{[]string{"pods"}, []string{"ensure", "limit memory=0 shares=3328 hugepages=map[2097152:4194304]"}},
		{[]string{"pods", "system-reserved", "kube-reserved-compressible"}, []string{
			"ensure",
			"limit memory=0 shares=3328 hugepages=map[2097152:4194304]",
			"enforce /system memory=1000 shares=512 hugepages=map[]",
			"enforce /kube memory=0 shares=256 hugepages=map[]",
		}},
	} {
		tree, events := &tree{}, []string(nil)
		if err := tree.enforcer(slog.Default(), &events, c.enforce...).Setup(); err != nil {
			t.Errorf("%v: got error %v, want none", c.enforce, err)
		}
		if !slices.Equal(tree.calls, c.want) {
			t.Errorf("%v: got %q, want %q", c.enforce, tree.calls, c.want)
		}
	}
}

// TestRefusedLimits checks that the agent starts although the kernel refuses a limit of all pods, tries it again, and
// logs that once.
func TestRefusedLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tree, out := &tree{refuse: 10}, &bytes.Buffer{}
		var events []string
		e := tree.enforcer(slog.New(slog.NewTextHandler(out, nil)), &events, "pods")
		if err := e.Setup(); err != nil {
			t.Errorf("got error %v, want none", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		e.Run(ctx)
		if got := strings.Count(out.String(), "level=WARN"); got != 1 || tree.refuse > 0 {
			t.Errorf("got %d warnings and %d refusals left, want 1 and none:\n%s", got, tree.refuse, out)
		}
	})
}

// TestExclusiveCPUs checks that all pods are given the CPUs of the machine for systemd, but not where containers may
// have CPUs for themselves: it would break up a partition of CPUs beside the pods.
func TestExclusiveCPUs(t *testing.T) {
	for _, exclusive := range []bool{false, true} {
		e := (&tree{}).enforcer(slog.New(slog.DiscardHandler), nil)
		e.cfg.Systemd, e.cfg.ExclusiveCPUs = func() bool { return true }, exclusive
		if got := e.podLimits().CPUSet; (got == "") != exclusive {
			t.Errorf("exclusive CPUs %t: got the CPUs %q", exclusive, got)
		}
	}
}

// TestRun checks that the memory limit is tried until the kernel accepts it, and not again after that.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tree, events := &tree{refuse: 2}, []string(nil)
		e := tree.enforcer(slog.New(slog.NewTextHandler(t.Output(), nil)), &events, "pods")
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		e.Run(ctx)
		want := []string{"FailedNodeAllocatableEnforcement", "FailedNodeAllocatableEnforcement", "NodeAllocatableEnforced"}
		if !slices.Equal(events, want) {
			t.Errorf("got events %q, want %q", events, want)
		}
		if got := tree.calls[0]; got != "limit memory=7000 shares=3328 hugepages=map[2097152:4194304]" {
			t.Errorf("got %q, want a limit of 7000 bytes", got)
		}
		tree.refuse = 100
		ctx, cancel = context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		e.Run(ctx)
		if tree.refuse > 50 {
			t.Errorf("got %d refusals left after an hour, want fewer than 50", tree.refuse)
		}
	})
}

// TestMachineChanges checks that pods may use the huge pages and the memory that the machine gets while the agent runs:
// the Node object has them then.
func TestMachineChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tree, events := &tree{}, []string(nil)
		e := tree.enforcer(slog.New(slog.NewTextHandler(t.Output(), nil)), &events, "pods")
		before, after := list("4", "10000"), list("4", "20000")
		after["hugepages-2Mi"] = resource.MustParse("4Mi")
		var all atomic.Pointer[corev1.ResourceList]
		all.Store(&before)
		e.cfg.Capacity = func() corev1.ResourceList { return *all.Load() }
		time.AfterFunc(10*time.Minute, func() { all.Store(&after) })
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		e.Run(ctx)
		want := []string{
			"limit memory=7000 shares=3328 hugepages=map[]",
			"limit memory=17000 shares=3328 hugepages=map[2097152:4194304]",
		}
		if !slices.Equal(tree.calls, want) {
			t.Errorf("got %q, want %q", tree.calls, want)
		}
	})
}

// TestRemovedCgroup checks that the cgroup of all pods that somebody has removed, and a runtime has made again, gets
// its limits again; also if it cannot be set up at once.
func TestRemovedCgroup(t *testing.T) {
	for _, failing := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			tree, events := &tree{lost: failing}, []string(nil)
			e := tree.enforcer(slog.New(slog.NewTextHandler(t.Output(), nil)), &events, "pods")
			time.AfterFunc(10*time.Minute+time.Second, func() { tree.made.Add(1) })
			ctx, cancel := context.WithTimeout(t.Context(), 13*time.Minute+time.Second)
			defer cancel()
			e.Run(ctx)
			tree.lost = false
			const limit = "limit memory=7000 shares=3328 hugepages=map[2097152:4194304]"
			want := []string{limit, "ensure", limit}
			if failing {
				want = []string{limit, "ensure", "ensure", "ensure"}
			}
			if !slices.Equal(tree.calls, want) {
				t.Errorf("failing %t: got %q, want %q", failing, tree.calls, want)
			}
		})
	}
}

// TestReservedMemory checks that reserved memory is protected with memory QoS, and only where it is enforced.
func TestReservedMemory(t *testing.T) {
	tree := &tree{}
	var events []string
	e := tree.enforcer(slog.New(slog.DiscardHandler), &events, "system-reserved", "kube-reserved-compressible")
	e.cfg.MemoryQoS = true
	if err := e.Setup(); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"enforce /system memory=1000 shares=512 hugepages=map[] unified=map[memory.min:1000]",
		"enforce /kube memory=0 shares=256 hugepages=map[]",
	}
	if got := tree.calls[2:]; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestReservedEvents checks the events about reserved cgroups.
func TestReservedEvents(t *testing.T) {
	const done, failed = "Normal NodeAllocatableEnforced ", "Warning FailedNodeAllocatableEnforcement "
	for missing, want := range map[string][]string{
		"": {
			done + "Updated limits on system reserved cgroup /system",
			done + "Updated limits on kube reserved cgroup /kube",
		},
		"/kube": {
			done + "Updated limits on system reserved cgroup /system",
			failed + "enforceNodeAllocatable kube-reserved: cgroup /kube does not exist",
		},
	} {
		tree, got := &tree{missing: missing}, []string(nil)
		e := tree.enforcer(slog.New(slog.DiscardHandler), nil, "pods", "system-reserved", "kube-reserved-compressible")
		e.cfg.Event = func(kind, reason, message string) { got = append(got, kind+" "+reason+" "+message) }
		if err := e.Setup(); (err != nil) != (missing != "") {
			t.Errorf("missing %q: got error %v", missing, err)
		}
		if !slices.Equal(got, want) {
			t.Errorf("missing %q: got events %q, want %q", missing, got, want)
		}
	}
}
