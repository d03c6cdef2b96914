package agent

import (
	"bytes"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/agent/placement/state"
)

// disk counts the writes of the kubelet's file. It cannot be written to as long as it has an error.
type disk struct {
	noFiles
	err   error
	saves int
	// saving is called at each write.
	saving func()
}

func (d *disk) Save(map[types.UID]state.PodResources) error {
	d.saves++
	if d.saving != nil {
		d.saving()
	}
	return d.err
}

// TestCheckpointOnFullDisk checks that a failed write is made up for after a while, whether or not a pod changes, and
// not at once, and that the log says once why.
func TestCheckpointOnFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		full := &disk{err: errors.New("full")}
		var log bytes.Buffer
		c := checkpoint{file: full, gone: func(types.UID) bool { return false },
			log: slog.New(slog.NewTextHandler(&log, nil))}
		pod := limited(1, "2Mi")
		r := &podResources{allocated: desiredResources(pod), pod: pod}
		for _, step := range []struct {
			what         string
			after        time.Duration
			err          error
			resized      bool
			saves, lines int
		}{
			{"an update", 0, full.err, false, 0, 0},
			{"a resize", 0, full.err, true, 1, 1},
			{"another", 0, full.err, true, 1, 1},
			{"after a while", time.Minute, full.err, false, 2, 1},
			{"at once", 0, full.err, false, 2, 1},
			{"another error", time.Minute, errors.New("read-only"), false, 3, 2},
			{"there is space again", time.Minute, nil, false, 4, 2},
			{"nothing to do", time.Minute, nil, true, 4, 2},
		} {
			time.Sleep(step.after)
			full.err = step.err
			if step.resized {
				c.keep(pod, r, true)
			}
			c.save()
			if lines := bytes.Count(log.Bytes(), []byte("\n")); full.saves != step.saves || lines != step.lines {
				t.Errorf("%s: got %d writes and %d lines in the log so far, want %d and %d",
					step.what, full.saves, lines, step.saves, step.lines)
			}
		}
	})
}

// TestOneWriteForAllResizes checks that the file is written once for all resizes that are decided together, and before
// a worker learns of its own.
func TestOneWriteForAllResizes(t *testing.T) {
	file := &disk{}
	d := dispatcherFor(file)
	var entries []*entry
	for _, uid := range []types.UID{"a", "b", "c"} {
		before, after := limited(1, "2Mi"), limited(2, "4Mi")
		before.UID, after.UID = uid, uid
		e := d.add(before)
		d.update(e, after)
		entries = append(entries, e)
	}
	ordered := func() (n int) {
		for _, e := range entries {
			n += len(e.worker.inbox)
		}
		return n
	}
	file.saving = func() {
		if n := ordered(); n > 0 {
			t.Errorf("got %d orders before the write, want none", n)
		}
	}
	d.evaluateResizes()
	if n := ordered(); file.saves != 1 || n != len(entries) {
		t.Errorf("got %d writes and %d orders, want 1 and %d", file.saves, n, len(entries))
	}
}
