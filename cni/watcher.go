package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"github.com/nodelet/nodelet/internal/latest"
)

// Dirs are the CNI directories of a runtime. Empty means unknown.
type Dirs struct {
	Conf string
	Bins []string
}

// RuntimeDirs returns the directories in the verbose CRI status of containerd: "config" with cni.confDir, cni.binDirs
// (binDir before 2.2). Other runtimes do not report them.
func RuntimeDirs(info map[string]string) Dirs {
	var c struct {
		CNI struct {
			ConfDir string   `json:"confDir"`
			BinDir  string   `json:"binDir"`
			BinDirs []string `json:"binDirs"`
		} `json:"cni"`
	}
	_ = json.Unmarshal([]byte(info["config"]), &c) // unknown if invalid
	d := Dirs{Conf: c.CNI.ConfDir, Bins: c.CNI.BinDirs}
	if len(d.Bins) == 0 && c.CNI.BinDir != "" {
		d.Bins = []string{c.CNI.BinDir}
	}
	return d
}

// Watcher checks, in mode "runtime", the network configuration and the plugins of the runtime.
type Watcher struct {
	log *slog.Logger
	// changed is called when the network configuration or its problem has changed.
	changed func()
	moved   latest.Signal

	mu   sync.Mutex
	dirs Dirs
	// incomplete is an error if a plugin of the configuration is not installed; wrong is any other problem.
	incomplete, wrong error
	// found is the configuration and its problems as text.
	found string
}

// NewWatcher returns a Watcher. changed is called after the network configuration or its problem has changed.
func NewWatcher(changed func(), log *slog.Logger) *Watcher {
	return &Watcher{log: log, changed: changed, moved: latest.NewSignal()}
}

// SetDirs sets the directories. Unknown ones stay as they were.
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
	w.moved.Set()
}

// Problem returns why the network does not work, or nil. runtimeReady is the runtime's own report: it does not check
// plugins, but is right about everything else.
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
	n, wrong := firstNetwork(d.Conf)
	var incomplete error
	var config []byte
	if n != nil {
		config = n.Bytes
	}
	if n != nil && len(d.Bins) > 0 {
		incomplete = missing(n, d.Bins)
	}
	found := fmt.Sprintf("%s %v %v", config, wrong, incomplete)
	w.mu.Lock()
	same := found == w.found
	w.wrong, w.incomplete = wrong, incomplete
	w.found = found
	w.mu.Unlock()
	if !same {
		w.changed()
	}
}
