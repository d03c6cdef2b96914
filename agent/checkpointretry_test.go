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

// fullDisk cannot be written to as long as it has an error.
type fullDisk struct {
	noFiles
	err   error
	saves int
}

func (f *fullDisk) Save(map[types.UID]state.PodResources) error {
	f.saves++
	return f.err
}

// TestCheckpointOnFullDisk checks that a failed write is made up for at the next resize, or after a while, and not at
// each update of a pod, and that the log says once why.
func TestCheckpointOnFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := &fullDisk{err: errors.New("full")}
		var log bytes.Buffer
		c := checkpoint{file: disk, gone: func(types.UID) bool { return false },
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
			{"a resize", 0, disk.err, true, 1, 1},
			{"an update", 0, disk.err, false, 1, 1},
			{"an update after a while", time.Minute, disk.err, false, 2, 1},
			{"another", 0, disk.err, false, 2, 1},
			{"the next resize", 0, errors.New("read-only"), true, 3, 2},
			{"there is space again", time.Minute, nil, false, 4, 2},
			{"nothing to do", time.Minute, nil, true, 4, 2},
		} {
			time.Sleep(step.after)
			disk.err = step.err
			c.keep(pod, r, step.resized)
			if lines := bytes.Count(log.Bytes(), []byte("\n")); disk.saves != step.saves || lines != step.lines {
				t.Errorf("%s: got %d writes and %d lines in the log so far, want %d and %d",
					step.what, disk.saves, lines, step.saves, step.lines)
			}
		}
	})
}
