package allocation

import (
	"bytes"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/agent/placement/state"
)

// disk counts the writes of the kubelet's file. It cannot be written to as long as it has an error.
type disk struct {
	err   error
	saves int
}

func (d *disk) Load() (map[types.UID]state.PodResources, error) { return nil, nil }

func (d *disk) Save(map[types.UID]state.PodResources) error {
	d.saves++
	return d.err
}

// TestCheckpointOnFullDisk checks that a failed write is made up for after a while, whether or not a pod changes, and
// not at once, and that the log says once why.
func TestCheckpointOnFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		full := &disk{err: errors.New("full")}
		var log bytes.Buffer
		k := kubeletFile{file: full, gone: func(types.UID) bool { return false },
			log: slog.New(slog.NewTextHandler(&log, nil))}
		pod := &corev1.Pod{}
		r := &Resources{allocated: desiredResources(pod), pod: pod}
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
				k.keep(pod, r, true)
			}
			k.save()
			if lines := bytes.Count(log.Bytes(), []byte("\n")); full.saves != step.saves || lines != step.lines {
				t.Errorf("%s: got %d writes and %d lines in the log so far, want %d and %d",
					step.what, full.saves, lines, step.saves, step.lines)
			}
		}
	})
}
