package shutdown

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/nodelet/nodelet/host/atomicfile"
)

// stateFile is the kubelet's name of the file, below the root directory.
const stateFile = "graceful_node_shutdown_state"

// record is what is kept of a shutdown: the kubelet's two fields, and the index of the last group that has begun.
type record struct {
	StartTime time.Time `json:"startTime"`
	EndTime   time.Time `json:"endTime"`
	Group     int32     `json:"wave"`
}

func (s *Shutdown) path() string { return filepath.Join(s.cfg.RootDir, stateFile) }

// load returns what an earlier run has kept; a record without a group if it has kept nothing. If the file cannot be
// read, the first group counts as begun: its pods must not start again while the machine goes down. If there are fewer
// groups now, the last one does.
func (s *Shutdown) load() (r record) {
	text, err := os.ReadFile(s.path())
	if errors.Is(err, os.ErrNotExist) {
		return record{Group: -1}
	}
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err != nil {
		s.cfg.Log.Warn("cannot read the state of the node shutdown, beginning with the first group",
			"file", s.path(), "err", err)
		return record{}
	}
	r.Group = min(r.Group, int32(len(s.cfg.Groups)-1))
	return r
}

// forgetGroup removes the group from the record of a shutdown that was cut off, as by a power failure. It has not begun
// in the next shutdown.
func (s *Shutdown) forgetGroup() {
	if r := s.load(); r.EndTime.IsZero() && r.Group >= 0 {
		r.Group = -1
		s.save(r)
	}
}

func (s *Shutdown) save(r record) {
	text, err := json.Marshal(r)
	if err == nil {
		err = atomicfile.Write(s.path(), text, 0o644)
	}
	if err != nil {
		s.cfg.Log.Warn("cannot store the state of the node shutdown, a restarted agent begins with the first group",
			"err", err)
	}
}
