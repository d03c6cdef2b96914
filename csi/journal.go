package csi

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Each volume's record lies in a journal of its own: a file whose lines are the record as it was noted, each whole and with its
// checksum. The last whole line holds. An appended line cannot harm those before it, whatever a power cut leaves of it; so a
// change is waited for only where it must survive one.

// keep says what a change of a record must survive.
type keep int

const (
	// inMemory: the driver has not been asked for anything by it, so a crash takes nothing but the claim, which the pod makes again.
	inMemory keep = iota
	// overCrash: it speaks of mounts, which are there after a crash of the agent and gone after a power cut.
	overCrash
	// overPowerCut: the driver is about to be asked, and may keep what it does beyond a reboot.
	overPowerCut
)

// maxLines is where a journal is begun anew. A volume whose pods come and go gets there.
const maxLines = 100

// sealed is a record as a line of its journal.
type sealed struct {
	Sum    string          `json:"sum"`
	Record json.RawMessage `json:"record"`
}

func recordPath(k key) string {
	return filepath.Join(recordsDir, fmt.Sprintf("%x.json", sha256.Sum256([]byte(k.driver+"\x00"+k.handle))))
}

// note adds a record to its journal, of which this life has written some lines, or begins it anew. It gives the number of lines
// that there are then.
func (f files) note(r *record, lines int, must keep) (int, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return lines, err
	}
	path, line := recordPath(r.key()), seal(body)
	if lines >= maxLines {
		lines = 0
	}
	if lines == 0 {
		err = f.replace(path, line, 0o600, true)
	} else if err = f.write(path, os.O_APPEND, line, 0, must == overPowerCut); err != nil {
		err = fmt.Errorf("write %s: %w", f.abs(path), err)
	}
	if err != nil {
		return 0, err // there may be half a line
	}
	return lines + 1, nil
}

// seal adds the checksum to a record.
func seal(body []byte) []byte {
	return fmt.Appendf(nil, "{\"sum\":\"%x\",\"record\":%s}\n", sha256.Sum256(body), body)
}

// forget removes a record.
func (f files) forget(k key) error {
	if err := f.remove(recordPath(k)); err != nil {
		return fmt.Errorf("remove the record of CSI volume %s: %w", k, err)
	}
	return f.sync(recordsDir)
}

// records reads all records. A damaged one is renamed: the kubelet's files have most of it too. One that cannot be read
// just now is an error: its volume may be in use.
func (f files) records(trouble func(path string, err error)) ([]*record, error) {
	names, err := f.names(recordsDir)
	if err != nil {
		return nil, fmt.Errorf("list the CSI records: %w", err)
	}
	var all []*record
	for _, name := range names {
		path := filepath.Join(recordsDir, name)
		switch {
		case strings.HasSuffix(name, ".new"): // of a write that a crash has cut
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
			trouble(f.abs(path), errors.Join(err, f.root.Rename(path, path+".bad")))
			continue
		}
		all = append(all, r)
	}
	return all, nil
}

func (f files) record(path string) (*record, error) {
	text, err := f.root.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return parseJournal(text)
}

// parseJournal gives the last whole record of a journal.
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
		return nil, fmt.Errorf("record is no JSON: %w", err)
	}
	if s.Sum != fmt.Sprintf("%x", sha256.Sum256(s.Record)) {
		return nil, errors.New("record does not match its checksum")
	}
	r := &record{}
	if err := json.Unmarshal(s.Record, r); err != nil {
		return nil, fmt.Errorf("record is not understood: %w", err)
	}
	if err := errors.Join(checkDriver(r.Driver), checkPath(r.Staging)); err != nil || r.Handle == "" {
		return nil, fmt.Errorf("record names no volume: %w", err)
	}
	for id, u := range r.Uses {
		if u == nil || id != useID(u.Pod, u.Name) {
			return nil, fmt.Errorf("record has a claim %q of nobody", id)
		}
		if err := errors.Join(checkName("pod UID", string(u.Pod)), checkName("volume", u.Name), checkPath(u.Target)); err != nil {
			return nil, err
		}
	}
	return r, nil
}

func checkPath(path string) error {
	if !filepath.IsLocal(path) || filepath.Clean(path) != path || path == "." {
		return fmt.Errorf("path %q does not lie below the root directory", path)
	}
	return nil
}
