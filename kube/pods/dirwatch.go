package pods

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"github.com/nodelet/nodelet/host/inotify"
	"github.com/nodelet/nodelet/internal/latest"
	"github.com/nodelet/nodelet/internal/periodic"
)

const (
	defaultCheck = 20 * time.Second
	// quiet is how long no change may happen before files are read: programs open, write and close a file in steps.
	quiet = 100 * time.Millisecond
	// quietLimit bounds the wait for quiet.
	quietLimit = time.Second
)

// run scans at once, after each change that inotify reports, and every FileCheck, until ctx ends.
func (d *directory) run(ctx context.Context, out latest.Value[delivery]) {
	tick := time.After(periodic.Until(d.cfg.FileCheck))
	w := newPathWatch(d.cfg.Manifests)
	defer w.close()

	var settle <-chan time.Time // set while a change waits for quiet
	var since time.Time         // of the first such change
	wait := func() {
		if settle == nil {
			since = time.Now()
		}
		settle = time.After(max(0, min(quiet, quietLimit-time.Since(since))))
	}
	for scan := true; ; {
		if scan && d.look(w, out) {
			wait()
		}
		scan = false
		select {
		case <-ctx.Done():
			return
		case <-settle:
			settle, scan = nil, true
		case <-tick:
			tick, scan = time.After(periodic.Until(d.cfg.FileCheck)), settle == nil
		case changed := <-w.changes():
			if w.concerns(changed.Path) {
				d.absent[changed.Path] = d.absent[changed.Path] || changed.Removed
				wait()
			}
		}
	}
}

// look scans and delivers a changed state. It reports whether to look again soon.
func (d *directory) look(w *pathWatch, out latest.Value[delivery]) (again bool) {
	w.renew() // before the scan, so that no change is missed
	state, again := d.scan(time.Now())
	if w.failure != "" {
		state.problems = append(state.problems, Problem{Source: SourceFile, File: d.cfg.Manifests, Message: w.failure})
	}
	if d.last == nil || !d.last.same(state) {
		d.last = &state
		out.Put(state)
	}
	return again
}

// pathWatch reports changes at a path, a directory or a file, which need not exist. It also watches the nearest
// directory above that exists: files are replaced, directories are removed and created.
type pathWatch struct {
	path    string
	w       *inotify.Watcher
	failure string // why changes are only noticed by FileCheck
}

func newPathWatch(path string) *pathWatch {
	return &pathWatch{path: filepath.Clean(path)}
}

// renew watches what exists now. It does nothing for a path that is watched already.
func (p *pathWatch) renew() {
	if p.w == nil {
		w, err := inotify.New()
		if err != nil {
			p.failure = "cannot use inotify, so changes are noticed late: " + err.Error()
			return
		}
		p.w = w
	}
	p.failure = ""
	for dir := filepath.Dir(p.path); ; dir = filepath.Dir(dir) {
		// For a path that is created later. It may be forbidden, which does not matter.
		if err := p.w.Add(dir); !errors.Is(err, fs.ErrNotExist) || dir == filepath.Dir(dir) {
			break
		}
	}
	if err := p.w.Add(p.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		p.failure = "cannot watch it with inotify, so changes are noticed late: " + err.Error()
	}
}

// concerns reports whether a change may be one of the path itself, of a directory above it or of a file in it. An empty
// name means that changes were lost. A hidden name may be the link behind visible ones (..data of a mounted ConfigMap),
// so only names with a single leading dot, as of the swap files of editors, are left out.
func (p *pathWatch) concerns(changed string) bool {
	if changed == p.path || changed == "" || strings.HasPrefix(p.path, changed+"/") {
		return true
	}
	base := filepath.Base(changed)
	return filepath.Dir(changed) == p.path && (!strings.HasPrefix(base, ".") || strings.HasPrefix(base, ".."))
}

func (p *pathWatch) changes() <-chan inotify.Change {
	if p.w == nil {
		return nil
	}
	return p.w.Changes()
}

func (p *pathWatch) close() {
	if p.w != nil {
		p.w.Close()
	}
}
