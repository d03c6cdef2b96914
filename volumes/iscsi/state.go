package iscsi

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nodelet/nodelet/host/atomicfile"
)

const stateFile = "iscsi.json"

// save writes the LUN's state file, where the kubelet looks for it too.
func (l *LUN) save(staging string) error {
	text, err := json.Marshal(l)
	if err != nil {
		return err
	}
	return atomicfile.WriteSynced(filepath.Join(staging, stateFile), text, 0o600)
}

// load reads the state file of a staging directory. It returns nil if there is none. If the file is damaged, the LUN is
// that which the directory is named after.
func (d *Driver) load(staging string) (*LUN, error) {
	path := filepath.Join(staging, stateFile)
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	l := &LUN{}
	err = json.Unmarshal(text, l)
	if err == nil {
		err = l.check()
	}
	if err == nil {
		return l, nil
	}
	l, ok := d.fromDirectory(staging)
	if !ok {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	d.cfg.Log.Warn("state file of an iSCSI LUN is damaged, using the name of its directory instead",
		"file", path, "err", err)
	return l, nil
}

// fromDirectory reads from the name of a staging directory which LUN is staged there. Only the first portal is in the
// name; the others are those with a recorded session. Sessions without a record are left alone: who created them is not
// known.
func (d *Driver) fromDirectory(staging string) (*LUN, bool) {
	l, ok := parseDirectory(filepath.Join(filepath.Base(filepath.Dir(staging)), filepath.Base(staging)))
	if !ok {
		return nil, false
	}
	l.By = byNodelet
	recorded, _ := filepath.Glob(filepath.Join(d.cfg.State, "*"))
	for _, path := range recorded {
		portal, ok := strings.CutPrefix(filepath.Base(path), l.Iqn+",")
		portal, same := strings.CutSuffix(portal, ","+l.Iface)
		if ok && same && !slices.Contains(l.Portals, portal) {
			l.Portals = append(l.Portals, portal)
		}
	}
	return l, l.check() == nil
}
