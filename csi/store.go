package csi

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/internal/keylock"
)

// store holds the records of all volumes, in memory and in their journals.
type store struct {
	files   files
	log     *slog.Logger
	boot    string // the ID of this boot
	changed func()
	calling sync.Mutex // held while changed is called
	// writing are locks of volumes (key.String) whose records change. They are held for no call.
	writing keylock.Keyed

	mu      sync.Mutex
	volumes map[key]*volume
	// hidden has the uses, by useID, of which no file says which volume it is: one of those that are kept. The values are
	// the paths where they are published.
	hidden map[string]string
}

// volume is a record in use. store.mu guards its fields; rec is replaced, never written through.
type volume struct {
	rec *record
	// fresh: staged by this process.
	fresh bool
	// kept: it was there when the process began, or has the name of a hidden use, which may be one of it. It is not
	// unstaged while there is a hidden use.
	kept bool
	// begun has the uses, by useID, that this process has begun or gone on with, and wanted is the SELinux label that the
	// first of them wants, see SELinux.
	begun  map[string]bool
	wanted *string
	// refused is the size that its driver has refused because the volume is in use; 0: none.
	refused int64
	// lines of the journal that this process has written; store.writing guards it.
	lines int
}

// get returns a volume's record, nil if there is none. The caller must not change it.
func (s *store) get(k key) *record {
	rec, _ := s.state(k)
	return rec
}

// state returns a volume's record, and whether this process has staged the volume.
func (s *store) state(k key) (rec *record, fresh bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v := s.volumes[k]; v != nil {
		return v.rec, v.fresh
	}
	return nil, false
}

// target returns where a volume is published for a pod that uses it.
func (s *store) target(pod types.UID, v *Volume) string {
	return s.files.abs(s.get(v.key()).Uses[useID(pod, v.Name)].Target)
}

// update changes a record: first on disk, if it must survive anything, then in memory. The record of a volume of which
// nothing is left is removed.
func (s *store) update(k key, must durability, change func(*record)) error {
	unlock, err := s.writing.Lock(context.Background(), k.String())
	if err != nil {
		return err
	}
	defer unlock()
	s.mu.Lock()
	v := s.volumes[k]
	s.mu.Unlock()
	if v == nil {
		v = &volume{rec: &record{Driver: k.driver, Handle: k.handle, Boot: s.boot}}
	}
	old, next := v.rec, v.rec.clone()
	change(next)
	if err := s.write(v, next, must); err != nil {
		return err
	}
	s.mu.Lock()
	v.rec, s.volumes[k] = next, v
	maps.DeleteFunc(v.begun, func(id string, _ bool) bool { return next.Uses[id] == nil })
	if next.over() {
		delete(s.volumes, k)
	}
	s.mu.Unlock()
	if !slices.Equal(inUse(old), inUse(next)) {
		s.calling.Lock()
		defer s.calling.Unlock()
		s.changed()
	}
	return nil
}

// refuse notes that a driver has refused to expand a volume in use to a size.
func (s *store) refuse(k key, size int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.volumes[k].refused = size
}

// refuses reports whether a driver has refused to expand the volume in use to a size.
func (s *store) refuses(k key, size int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.volumes[k]
	return v != nil && v.refused == size
}

// mark records the progress of publishing for one pod.
func (s *store) mark(k key, id string, to state) error {
	must := surviveCrash
	if to == intent {
		must = survivePowerLoss
	}
	return s.update(k, must, func(r *record) {
		u := r.Uses[id]
		u.Publish, u.Found = to, false
		u.Mounted = to == done && s.files.mounted(u.Target)
		r.Boot = s.boot
	})
}

// begin notes that this process knows of a use, and calls SELinux.Begun if that is new.
func (s *store) begin(v *Volume, id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	of, label := s.volumes[v.key()], &v.SELinux
	if of == nil || of.begun[id] {
		return
	}
	first := len(of.begun) == 0
	if first {
		of.begun, of.wanted = map[string]bool{}, label.Wanted
	}
	of.begun[id] = true
	if label.Begun != nil {
		label.Begun(first, differ(of.wanted, label.Wanted))
	}
}

// hasBegun reports whether this process knows of a use.
func (s *store) hasBegun(k key, id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.volumes[k]
	return v != nil && v.begun[id]
}

// setSize changes the recorded size of a volume that a pod uses, and returns the new one.
func (s *store) setSize(k key, to func(has int64) int64) (int64, error) {
	rec := s.get(k)
	if rec == nil {
		return 0, fmt.Errorf("CSI volume %s is not on this node any more", k)
	}
	size := to(rec.Size)
	if size == rec.Size {
		return size, nil
	}
	err := s.update(k, surviveCrash, func(r *record) {
		size = to(r.Size)
		r.Size = size
	})
	return size, err
}

// write puts a record on disk. Failures to persist a change that a power failure may lose are only logged: a stale
// record makes the agent repeat an idempotent call, and a full disk must not keep pods from terminating.
func (s *store) write(v *volume, next *record, must durability) (err error) {
	if next.over() {
		return s.files.forget(next.key())
	}
	if must == memoryOnly {
		return nil
	}
	v.lines, err = s.files.append(next, v.lines, must)
	if err != nil && must == surviveCrash {
		s.log.Warn("cannot write the record of a CSI volume; after a restart its driver is called again",
			"volume", next.key(), "err", err)
		return nil
	}
	return err
}

// markFresh notes that this process has staged a volume.
func (s *store) markFresh(k key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.volumes[k].fresh = true
}

// unused returns the volumes that no pod uses.
func (s *store) unused() []key {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []key
	for k, v := range s.volumes {
		if s.unusedNow(v) {
			all = append(all, k)
		}
	}
	return all
}

// isUnused reports whether there is a record of a volume and no pod uses it.
func (s *store) isUnused(k key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.volumes[k]
	return v != nil && s.unusedNow(v)
}

// unusedNow reports whether certainly no pod uses a volume. The caller holds store.mu.
func (s *store) unusedNow(v *volume) bool {
	return len(v.rec.Uses) == 0 && !(v.kept && len(s.hidden) > 0)
}

// keepHidden keeps a volume of a CSI driver if a hidden use has its name.
func (s *store) keepHidden(v *Volume) {
	if inTree(v.Driver) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.hidden {
		if filepath.Base(id) == v.Name {
			s.volumes[v.key()].kept = true
		}
	}
}

// replaced reports whether the directories of a block volume are those of another one by now, whose PersistentVolume
// has the same name, or a pod has a device in them.
func (s *store) replaced(rec *record) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := filepath.Base(rec.Staging)
	for k, v := range s.volumes {
		if k != rec.key() && v.rec.Staging == rec.Staging && (v.rec.Stage != none || len(v.rec.Uses) > 0) {
			return true
		}
		for _, u := range v.rec.Uses {
			if rec.Block && v.rec.Block && u.Name == name && u.Publish != none {
				return true
			}
		}
	}
	return false
}

// has reports whether a mount point is where a volume with a record is staged or published. The root directory may be
// mounted elsewhere too. Volumes of some drivers share a file system: each would wait for the others.
func (s *store) has(point string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range s.volumes {
		if strings.Contains(point, "/"+v.rec.Staging) {
			return true
		}
		for _, u := range v.rec.Uses {
			if strings.Contains(point, "/"+u.Target) {
				return true
			}
		}
	}
	return false
}

// reveal notes that a use is not hidden any more, because its volume is known. It also forgets those of which nothing
// is mounted any more. It reports whether the last one went, so that what was kept may be unused.
func (s *store) reveal(id string) (last bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := len(s.hidden)
	maps.DeleteFunc(s.hidden, func(other, path string) bool { return other == id || !s.files.mounted(path) })
	return before > 0 && len(s.hidden) == 0
}

// inUse returns the names of a volume that must not be detached.
func inUse(r *record) []corev1.UniqueVolumeName {
	switch {
	case !r.Attachable || r.empty():
		return nil
	case len(r.APINames) == 0:
		return []corev1.UniqueVolumeName{UniqueName(r.Driver, r.Handle)}
	}
	return r.APINames
}

func (s *store) inUse() []corev1.UniqueVolumeName {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := []corev1.UniqueVolumeName{}
	for _, v := range s.volumes {
		names = append(names, inUse(v.rec)...)
	}
	slices.Sort(names)
	return names
}

func (s *store) pods() []types.UID {
	found := map[types.UID]bool{}
	s.eachUse(func(_ key, u *use) { found[u.Pod] = true })
	return slices.Sorted(maps.Keys(found))
}

func (s *store) used(pod types.UID) []string {
	var names []string
	s.eachUse(func(_ key, u *use) {
		if u.Pod == pod {
			names = append(names, u.Name)
		}
	})
	slices.Sort(names)
	return slices.Compact(names)
}

// find returns the volume that a pod uses by a name.
func (s *store) find(pod types.UID, name string) (k key, found bool) {
	s.eachUse(func(at key, u *use) {
		if u.Pod == pod && u.Name == name {
			k, found = at, true
		}
	})
	return k, found
}

func (s *store) eachUse(do func(key, *use)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, v := range s.volumes {
		for _, u := range v.rec.Uses {
			do(k, u)
		}
	}
}
