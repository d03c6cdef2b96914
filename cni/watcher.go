package cni

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"sync"
)

// Dirs are where a runtime looks for its network. Empty means unknown.
type Dirs struct {
	Conf string
	Bins []string
}

// RuntimeDirs reads them from what containerd tells in a verbose CRI status: "config" with cni.confDir, cni.binDirs
// (binDir before 2.2). Other runtimes tell nothing of the kind.
func RuntimeDirs(info map[string]string) Dirs {
	var c struct {
		CNI struct {
			ConfDir string   `json:"confDir"`
			BinDir  string   `json:"binDir"`
			BinDirs []string `json:"binDirs"`
		} `json:"cni"`
	}
	_ = json.Unmarshal([]byte(info["config"]), &c) // what cannot be read is not known
	d := Dirs{Conf: c.CNI.ConfDir, Bins: c.CNI.BinDirs}
	if len(d.Bins) == 0 && c.CNI.BinDir != "" {
		d.Bins = []string{c.CNI.BinDir}
	}
	return d
}

// Watcher looks, in mode "runtime", at what the runtime's network is made of, and names what is missing.
type Watcher struct {
	log *slog.Logger
	// changed is told when something in the directories has changed.
	changed func()
	moved   chan struct{}

	mu   sync.Mutex
	dirs Dirs
	// incomplete is a plugin that the runtime's configuration names and no directory holds; wrong is what else is in the
	// way.
	incomplete, wrong error
}

// NewWatcher makes a watcher. changed is called after something in the directories has changed.
func NewWatcher(changed func(), log *slog.Logger) *Watcher {
	return &Watcher{log: log, changed: changed, moved: make(chan struct{}, 1)}
}

// SetDirs says where to look. What is unknown stays as it was.
func (w *Watcher) SetDirs(d Dirs) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if d.Conf == "" {
		d.Conf = w.dirs.Conf
	}
	if len(d.Bins) == 0 {
		d.Bins = w.dirs.Bins
	}
	if d.Conf == w.dirs.Conf && slices.Equal(d.Bins, w.dirs.Bins) {
		return
	}
	w.dirs = d
	select {
	case w.moved <- struct{}{}:
	default:
	}
}

// Problem says why the network does not work: nil where nothing speaks against it. runtimeReady is what the runtime
// says. A runtime that is content has not looked for the plugins; of everything else it knows best.
func (w *Watcher) Problem(runtimeReady bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if runtimeReady {
		return w.incomplete
	}
	return errors.Join(w.wrong, w.incomplete)
}

// Run watches until ctx ends.
func (w *Watcher) Run(ctx context.Context) {
	for ctx.Err() == nil {
		w.mu.Lock()
		d := w.dirs
		w.mu.Unlock()
		watching, stop := context.WithCancel(ctx)
		go func() {
			select {
			case <-w.moved:
				stop()
			case <-watching.Done():
			}
		}()
		if d.Conf == "" {
			<-watching.Done()
		} else {
			watchDirs(watching, append([]string{d.Conf}, d.Bins...), w.log, func() { w.look(d) })
		}
		stop()
	}
}

func (w *Watcher) look(d Dirs) {
	_, n, wrong := firstNetwork(d.Conf)
	var incomplete error
	if n != nil && len(d.Bins) > 0 {
		if none := missing(n, d.Bins); len(none) > 0 {
			incomplete = missingError(n, none, d.Bins)
		}
	}
	w.mu.Lock()
	w.wrong, w.incomplete = wrong, incomplete
	w.mu.Unlock()
	w.changed()
}
