package pods

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"github.com/nodelet/nodelet/host/inotify"
)

const (
	defaultCheck = 20 * time.Second
	// quiet is how long nothing must have happened before files are read: writers open, write and close a file in steps.
	quiet = 100 * time.Millisecond
	// restless bounds the wait for quiet.
	restless = time.Second
)

// run scans at once, when inotify tells of a change, and every FileCheck, until ctx ends.
func (d *directory) run(ctx context.Context, out mailbox) {
	period := d.cfg.FileCheck
	if period <= 0 {
		period = defaultCheck
	}
	tick := time.NewTicker(period)
	defer tick.Stop()
	w := newPathWatch(d.cfg.Manifests)
	defer w.close()

	var settle <-chan time.Time // set while a change waits for quiet
	var since time.Time         // of the first such change
	wait := func() {
		if settle == nil {
			since = time.Now()
		}
		settle = time.After(max(0, min(quiet, restless-time.Since(since))))
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
		case <-tick.C:
			scan = settle == nil
		case changed := <-w.changes():
			if w.concerns(changed) {
				wait()
			}
		}
	}
}

// look scans and delivers what is new. It reports whether to look again soon.
func (d *directory) look(w *pathWatch, out mailbox) (again bool) {
	w.renew() // before the scan, so that no change falls between
	state, again := d.scan(time.Now())
	if w.failure != "" {
		state.problems = append(state.problems, Problem{Source: SourceFile, File: d.cfg.Manifests, Message: w.failure})
	}
	if d.last == nil || !d.last.same(state) {
		d.last = &state
		out.put(state)
	}
	return again
}

// pathWatch tells of changes at a path, a directory or a file, which need not exist. It also watches the directory the path
// is in, since files are replaced, and directories come and go.
type pathWatch struct {
	path    string
	w       *inotify.Watcher
	failure string // why changes are only seen by looking now and then
}

func newPathWatch(path string) *pathWatch {
	p := &pathWatch{path: filepath.Clean(path)}
	var err error
	if p.w, err = inotify.New(); err != nil {
		p.failure = "changes are noticed late, since inotify cannot be used: " + err.Error()
	}
	return p
}

// renew watches what exists now. It does nothing for what is watched already.
func (p *pathWatch) renew() {
	if p.w == nil {
		return
	}
	p.failure = ""
	_ = p.w.Add(filepath.Dir(p.path)) // helps with a path that comes later; it may be forbidden, and the path is what counts
	if err := p.w.Add(p.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		p.failure = "changes are noticed late, since inotify cannot watch it: " + err.Error()
	}
}

// concerns says whether a change is one of the path itself or of a file in it that is not hidden, or may be, for changes were
// lost. A hidden name may be the link behind visible ones (..data of a mounted ConfigMap), so only editors' swap files are left
// out.
func (p *pathWatch) concerns(changed string) bool {
	if changed == p.path || changed == "" {
		return true
	}
	base := filepath.Base(changed)
	return filepath.Dir(changed) == p.path && (!strings.HasPrefix(base, ".") || strings.HasPrefix(base, ".."))
}

func (p *pathWatch) changes() <-chan string {
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
