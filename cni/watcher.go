package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
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
	dirs Dirs
	log  *slog.Logger
	// changed is called when the network configuration or its problem has changed.
	changed func()

	mu sync.Mutex
	// incomplete is an error if a plugin of the configuration is not installed; wrong is any other problem.
	incomplete, wrong error
	// found is the configuration and its problems as text.
	found string
}

// NewWatcher returns a Watcher of these directories. changed is called after the network configuration or its problem
// has changed.
func NewWatcher(d Dirs, changed func(), log *slog.Logger) *Watcher {
	return &Watcher{dirs: d, log: log, changed: changed}
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
	watchDirs(ctx, append([]string{w.dirs.Conf}, w.dirs.Bins...), w.log, w.look)
}

func (w *Watcher) look() {
	n, wrong := firstNetwork(w.dirs.Conf)
	var incomplete error
	var config []byte
	if n != nil {
		config = n.Bytes
	}
	if n != nil && len(w.dirs.Bins) > 0 {
		incomplete = missing(n, w.dirs.Bins)
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
