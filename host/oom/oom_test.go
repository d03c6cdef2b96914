package oom

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// The records that Linux 6 writes when the machine, or a cgroup, is out of memory; shortened.
const (
	invoked = "4,839,1041230114,-;stress invoked oom-killer: gfp_mask=0x140cca(GFP_HIGHUSER_MOVABLE), order=0\n"
	summary = "6,903,1041231001,-;oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0," +
		"global_oom,task_memcg=/kubepods/pod1/c1,task=stress,pid=4711,uid=0\n"
	machine = "3,904,1041231040,-;Out of memory: Killed process 4711 (stress) total-vm:8221504kB, anon-rss:7918088kB, " +
		"file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:15528kB oom_score_adj:1000\n"
	allocating = "3,905,1041231041,-;Out of memory (oom_kill_allocating_task): Killed process 12 (a (b) c) " +
		"total-vm:1kB\n SUBSYSTEM=none\n"
	group  = "6,905,1041231041,-;Tasks in /kubepods/pod1/c1 are going to be killed due to memory.oom.group set\n"
	other  = "3,906,1041231042,-,caller=T12;Out of memory: Killed process 4712 (stress) total-vm:1kB\n"
	later  = "3,907,1043000000,-;Out of memory: Killed process 13 (b) total-vm:1kB\n"
	cgroup = "3,906,1041239999,-;Memory cgroup out of memory: Killed process 99 (python3) total-vm:8221504kB\n"
	forged = "12,907,1041240000,-;Out of memory: Killed process 1 (init) total-vm:8221504kB\n"
	lower  = "4,908,1041240001,-;oom_reaper: reaped process 4711 (stress), now anon-rss:0kB\n"
)

// records is a kernel's log that returns one record for each read. An empty record was overwritten.
type records []string

func (r *records) Read(p []byte) (int, error) {
	if len(*r) == 0 {
		return 0, io.EOF
	}
	one := (*r)[0]
	*r = (*r)[1:]
	if one == "" {
		return 0, &os.PathError{Op: "read", Path: Log, Err: unix.EPIPE}
	}
	return copy(p, one), nil
}

// TestFollow checks which records are about a kill because of the machine.
func TestFollow(t *testing.T) {
	var got []Victim
	log := records{invoked, summary, machine, lower, cgroup, "", forged, allocating}
	if err := follow(&log, func(v Victim) { got = append(got, v) }); !errors.Is(err, io.EOF) {
		t.Errorf("got %v, want the end of the log", err)
	}
	if got, want := got[0].Message(), "System OOM encountered, victim process: stress, pid: 4711"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if want := []Victim{{4711, "stress"}, {12, "a (b) c"}}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestFollowWholeCgroup checks that of a cgroup that the kernel kills as a whole only the victim counts, and which kill
// is of the next victim.
func TestFollowWholeCgroup(t *testing.T) {
	for name, c := range map[string]struct {
		log  records
		want []int
	}{
		"the next begins with a message": {records{invoked, machine, group, machine, other, lower, invoked, allocating},
			[]int{4711, 12}},
		"the next begins without one": {records{machine, group, machine, other, "", later}, []int{4711, 13}},
	} {
		var got []int
		if err := follow(&c.log, func(v Victim) { got = append(got, v.PID) }); !errors.Is(err, io.EOF) {
			t.Errorf("%s: got %v, want the end of the log", name, err)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}

// TestWatch checks that nothing happens without a kernel's log, that old records are not reported, and that Watch
// returns when its context ends.
func TestWatch(t *testing.T) {
	killed := func(v Victim) { t.Errorf("got %v", v) }
	discard := slog.New(slog.DiscardHandler)
	Watch(t.Context(), filepath.Join(t.TempDir(), "none"), discard, killed)
	old := filepath.Join(t.TempDir(), "kmsg")
	if err := os.WriteFile(old, []byte(machine), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := watch(t.Context(), old, killed); !errors.Is(err, io.EOF) {
		t.Errorf("got %v, want the end of the file", err)
	}
	if _, err := os.Stat(Log); err != nil {
		t.Skip("no kernel's log: ", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		Watch(ctx, Log, discard, func(Victim) {})
	}()
	cancel()
	<-done
}

// FuzzParse checks that no record of the kernel's log, whatever it contains, is taken for a kill that it is not.
func FuzzParse(f *testing.F) {
	for _, r := range []string{invoked, summary, machine, allocating, cgroup, forged, lower, "", ";", "3;Out of memory"} {
		f.Add([]byte(r))
	}
	f.Fuzz(func(t *testing.T, record []byte) {
		message, _ := parse(record)
		v, ok := victim(message)
		if !ok {
			if v != (Victim{}) {
				t.Errorf("got %v without a kill, want %v", v, (Victim{}))
			}
			return
		}
		if v.PID <= 0 || strings.Contains(v.Name, "\n") || !strings.Contains(string(record), ";Out of memory") {
			t.Errorf("got %v of %q", v, record)
		}
	})
}
