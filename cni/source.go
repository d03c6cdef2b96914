package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/nodelet/nodelet/host/atomicfile"
	"github.com/nodelet/nodelet/host/boundedfile"
	"github.com/nodelet/nodelet/host/inotify"
)

// ownFile is where the node's own network is kept, for a DEL without the agent.
const ownFile = "own.conflist"

// rangesFile is where the node's pod ranges are kept: a JSON list. A node that starts while its API server is away
// would have no network otherwise, and static pods, which may be the API server itself, would wait for it.
const rangesFile = "pod-ranges.json"

// settle is how long the writer of a file gets to finish before it is read.
const settle = 100 * time.Millisecond

// Source knows the node's own network: the user's configuration, or one made from the pod ranges. It follows both.
type Source struct {
	SourceConfig

	mu     sync.Mutex
	ranges []netip.Prefix
	now    *Network
	err    error
}

// SourceConfig is what a Source needs.
type SourceConfig struct {
	// Dir is <root-dir>/cni.
	Dir string
	// Conf is the user's configuration: a file, or a directory of which the first is taken. Empty: made from the pod
	// ranges.
	Conf string
	// BinDirs are where plugins must be.
	BinDirs []string
	// Forward says whether pods' traffic needs help through the node's firewall; see Default.
	Forward bool
	// Changed is told whenever Now gives something else.
	Changed func()
	Log     *slog.Logger
}

// NewSource makes a source and looks once, with the pod ranges that were last known.
func NewSource(c SourceConfig) *Source {
	s := &Source{SourceConfig: c}
	s.ranges = s.keptRanges()
	s.refresh()
	return s
}

// Now gives the node's own network, or says what keeps it from being one.
func (s *Source) Now() (*Network, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now, s.err
}

// SetRanges takes the node's pod ranges, and keeps them for the next start. None at all are not known yet.
func (s *Source) SetRanges(ranges []netip.Prefix) {
	s.mu.Lock()
	same := len(ranges) == 0 || slices.Equal(s.ranges, ranges)
	if !same {
		s.ranges = slices.Clone(ranges)
	}
	s.mu.Unlock()
	if same {
		return
	}
	if err := s.keepRanges(ranges); err != nil {
		s.Log.Warn("cannot keep the node's pod ranges for a start without API server", "err", err)
	}
	s.refresh()
}

// Ranges gives the node's pod ranges, as far as they are known.
func (s *Source) Ranges() []netip.Prefix {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ranges
}

func (s *Source) keepRanges(ranges []netip.Prefix) error {
	text, err := json.Marshal(ranges)
	if err == nil {
		err = os.MkdirAll(s.Dir, 0o700)
	}
	if err == nil {
		err = atomicfile.WriteSynced(filepath.Join(s.Dir, rangesFile), text, 0o600)
	}
	return err
}

// keptRanges are those of an earlier life; what cannot be read is as good as none.
func (s *Source) keptRanges() []netip.Prefix {
	text, err := boundedfile.Read(filepath.Join(s.Dir, rangesFile), maxConfig)
	var ranges []netip.Prefix
	if err == nil {
		err = json.Unmarshal(text, &ranges)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.Log.Warn("the node's pod ranges of before cannot be read; waiting for the API server's word", "err", err)
	}
	if err != nil {
		return nil
	}
	return ranges
}

// Run follows the user's configuration and the plugins until ctx ends.
func (s *Source) Run(ctx context.Context) {
	dirs := slices.Clone(s.BinDirs)
	if s.Conf != "" {
		dirs = append(dirs, s.Conf)
		if fi, err := os.Stat(s.Conf); err != nil || !fi.IsDir() {
			dirs = append(dirs, filepath.Dir(s.Conf))
		}
	}
	watchDirs(ctx, dirs, s.Log, s.refresh)
}

// refresh looks again.
func (s *Source) refresh() {
	s.mu.Lock()
	n, err := s.look()
	before, beforeErr := s.now, s.err
	same := before != nil && n != nil && string(before.Bytes) == string(n.Bytes) || before == nil && n == nil && s.err != nil && err.Error() == s.err.Error()
	if n != nil && !same {
		s.keep(n) // before anything is attached to it
	}
	s.now, s.err = n, err
	s.mu.Unlock()
	if same {
		return
	}
	switch {
	case err != nil:
		s.Log.Warn("the node's pod network is not ready", "err", err)
	case beforeErr != nil || before != nil:
		s.Log.Info("the node's pod network has changed", "network", n.Name)
	}
	if s.Changed != nil {
		s.Changed()
	}
}

func (s *Source) look() (n *Network, err error) {
	if s.Conf == "" {
		var text []byte
		if text, err = Default(s.Dir, s.ranges, s.Forward); err == nil {
			n, err = ParseNetwork(text)
		}
	} else if fi, e := os.Stat(s.Conf); e == nil && fi.IsDir() {
		if _, n, err = firstNetwork(s.Conf); n != nil && err != nil {
			s.Log.Warn("a network configuration is passed over", "err", err)
			err = nil
		}
	} else {
		n, err = readNetwork(s.Conf)
	}
	if err != nil {
		return nil, err
	}
	if none := missing(n, s.BinDirs); len(none) > 0 {
		return nil, missingError(n, none, s.BinDirs)
	}
	return n, nil
}

func missingError(n *Network, none, dirs []string) error {
	return fmt.Errorf("network %s needs the plugin %q, which is in none of %q: install it there", n.Name, none[0], dirs)
}

// keep writes the network down for plugins that work without the agent.
func (s *Source) keep(n *Network) {
	text, err := flatten(n, nil)
	if err == nil {
		err = os.MkdirAll(s.Dir, 0o700)
	}
	if err == nil {
		err = atomicfile.Write(filepath.Join(s.Dir, ownFile), text, 0o600)
	}
	if err != nil {
		s.Log.Warn("cannot keep the network's configuration for when the agent is away", "err", err)
	}
}

// watchDirs calls changed after something in one of the directories or files has changed, until ctx ends. Of a
// directory that does not exist the nearest one above is watched.
func watchDirs(ctx context.Context, dirs []string, log *slog.Logger, changed func()) {
	w, err := inotify.New()
	if err != nil {
		log.Warn("cannot watch for changes of the network configuration; restart the agent after changes", "err", err)
		<-ctx.Done()
		return
	}
	defer w.Close()
	add := func() {
		for _, d := range dirs {
			if err := w.Add(nearest(d)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				log.Warn("cannot watch for changes of the network configuration", "dir", d, "err", err)
			}
		}
	}
	add()
	changed() // what has happened since the last look
	due := time.NewTimer(time.Hour)
	due.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.Changes():
			due.Reset(settle)
		case <-due.C:
			add()
			changed()
		}
	}
}

// nearest is the path itself, or the nearest directory above it that exists.
func nearest(path string) string {
	for {
		if _, err := os.Stat(path); err == nil || path == "/" || path == "." {
			return path
		}
		path = filepath.Dir(path)
	}
}
