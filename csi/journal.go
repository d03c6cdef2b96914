package csi

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nodelet/nodelet/host/atomicfile"
	"github.com/nodelet/nodelet/kube/poddir"
)

// Each volume's record has a journal of its own: a file in which each line is a whole record with its checksum. The
// last valid line counts. An appended line cannot harm those before it, whatever a power failure leaves of it, so it is
// synced only if the change must survive one.

// durability says what a change of a record must survive.
type durability int

const (
	// memoryOnly: no driver call depends on the change yet. After a crash the pod simply begins its use again.
	memoryOnly durability = iota
	// surviveCrash: a power failure may lose the change. It describes mounts, which are lost then too, or without it the
	// record says too much, so that the driver is called again.
	surviveCrash
	// survivePowerLoss: the driver is about to stage or publish the volume, and may keep what it does beyond a reboot.
	survivePowerLoss
)

// maxLines is the length at which a journal is rewritten.
const maxLines = 100

// sealed is a line of a journal.
type sealed struct {
	Sum    string          `json:"sum"`
	Record json.RawMessage `json:"record"`
}

func recordPath(k key) string {
	return filepath.Join(recordsDir, fmt.Sprintf("%x.json", sha256.Sum256([]byte(k.driver+"\x00"+k.handle))))
}

// append adds a record to its journal, to which this process has written a number of lines, or rewrites the journal. It
// returns the new number of lines; after an error 0, so that the next call rewrites the journal.
func (f files) append(r *record, lines int, must durability) (int, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return lines, err
	}
	path, line := recordPath(r.key()), seal(body)
	if lines >= maxLines {
		lines = 0
	}
	if lines == 0 {
		err = f.replace(path, line, 0o600, atomicfile.Durable)
	} else {
		err = f.addLine(path, line, must == survivePowerLoss)
	}
	if err != nil {
		return 0, err
	}
	return lines + 1, nil
}

// seal returns a record with its checksum.
func seal(body []byte) []byte {
	return fmt.Appendf(nil, "{\"sum\":\"%x\",\"record\":%s}\n", sha256.Sum256(body), body)
}

// forget removes a record.
func (f files) forget(k key) error {
	if err := f.remove(recordPath(k)); err != nil {
		return fmt.Errorf("remove the record of CSI volume %s: %w", k, err)
	}
	return f.syncRecords()
}

// records reads all records. A damaged one is renamed: the kubelet's files have most of it too. One that cannot be read
// just now is an error: its volume may be in use.
func (f files) records(damaged func(path string, err error)) ([]*record, error) {
	names, err := f.names(recordsDir)
	if err != nil {
		return nil, fmt.Errorf("list the CSI records: %w", err)
	}
	var all []*record
	for _, name := range names {
		path := filepath.Join(recordsDir, name)
		switch {
		case atomicfile.IsLeftover(name):
			if err := f.remove(path); err != nil {
				return nil, err
			}
			continue
		case !strings.HasSuffix(name, ".json"):
			continue
		}
		text, err := f.root.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("read a CSI record (move the file away to start without it): %w", err)
		}
		r, err := parseJournal(text)
		if err != nil {
			damaged(f.abs(path), errors.Join(err, f.root.Rename(path, path+".bad")))
			continue
		}
		all = append(all, r)
	}
	return all, nil
}

// parseJournal returns the last valid record of a journal.
func parseJournal(text []byte) (r *record, err error) {
	lines := bytes.Split(bytes.TrimSuffix(text, []byte("\n")), []byte("\n"))
	for _, line := range slices.Backward(lines) {
		r, bad := parseRecord(line)
		if bad == nil {
			return r, nil
		}
		err = bad
	}
	return nil, err
}

func parseRecord(text []byte) (*record, error) {
	var s sealed
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, fmt.Errorf("parse record: %w", err)
	}
	if s.Sum != fmt.Sprintf("%x", sha256.Sum256(s.Record)) {
		return nil, errors.New("record does not match its checksum")
	}
	r := &record{}
	if err := json.Unmarshal(s.Record, r); err != nil {
		return nil, fmt.Errorf("parse record: %w", err)
	}
	if err := errors.Join(checkDriver(r.Driver), checkPath(r.Staging)); err != nil || r.Handle == "" {
		return nil, fmt.Errorf("record does not name a volume: %w", err)
	}
	if r.Uses == nil { // of a volume that is not used
		r.Uses = map[string]*use{}
	}
	for id, u := range r.Uses {
		if u == nil || id != useID(u.Pod, u.Name) {
			return nil, fmt.Errorf("record has a use %q that does not match its pod and volume", id)
		}
		err := errors.Join(poddir.CheckName("pod UID", string(u.Pod)),
			poddir.CheckName("volume", u.Name), checkPath(u.Target))
		if err != nil {
			return nil, err
		}
	}
	return r, nil
}

func checkPath(path string) error {
	if !filepath.IsLocal(path) || filepath.Clean(path) != path || path == "." {
		return fmt.Errorf("path %q is not below the root directory", path)
	}
	return nil
}
