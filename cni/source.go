package cni

import (
	"context"
	"encoding/json"
	"errors"
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

// ownFile contains the node's own network, for a DEL without the agent, and for its bridge in the next process.
const ownFile = "own.conflist"

// rangesFile contains the node's pod CIDRs as a JSON list. Without it, a node that starts while its API server is away
// would have no network, and static pods, which may be the API server itself, would wait for one.
const rangesFile = "pod-ranges.json"

// settle is the time between a change of a file and reading it, so that the writer can finish.
const settle = 100 * time.Millisecond

// lookAnyway is the longest time between two looks at files: not every change is reported. That of a permission is not,
// nor a mount, nor what a network needs beside its files.
const lookAnyway = 10 * time.Second

// Source provides the node's own network: the user's configuration, or one generated from the pod CIDRs. It follows
// changes of both.
type Source struct {
	SourceConfig

	mu       sync.Mutex
	ranges   []netip.Prefix
	unstored error  // why ranges could not be stored
	bridge   string // of the generated network
	now      *Network
	err      error
	// ignored says which files are ignored beside now, so that it is logged once.
	ignored string
}

// SourceConfig is what a Source needs.
type SourceConfig struct {
	// Dir is <root-dir>/cni.
	Dir string
	// Conf is the user's configuration: a file, or a directory whose first configuration is used. Empty: generated from
	// the pod CIDRs.
	Conf string
	// BinDirs are the directories of plugins.
	BinDirs []string
	// Fallback are the pod CIDRs until SetRanges is called, unless an earlier process has stored some; may be empty.
	Fallback []netip.Prefix
	// Changed is called whenever Now returns something else.
	Changed func()
	Log     *slog.Logger
}

// NewSource returns a Source with the pod CIDRs that were last known.
func NewSource(c SourceConfig) *Source {
	s := &Source{SourceConfig: c}
	if s.ranges = s.keptRanges(); len(s.ranges) == 0 && len(c.Fallback) > 0 {
		s.ranges = c.Fallback
		s.Log.Info("podCIDR is not set, pods get addresses of the default range", "podCIDR", c.Fallback)
	}
	s.refresh()
	return s
}

// Now returns the node's own network, or why there is none.
func (s *Source) Now() (*Network, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now, s.err
}

// SetRanges sets the node's pod CIDRs and stores them for the next start. It ignores an empty list: the ranges are not
// known yet.
func (s *Source) SetRanges(ranges []netip.Prefix) {
	s.mu.Lock()
	same := len(ranges) == 0 || slices.Equal(s.ranges, ranges)
	if !same {
		s.ranges = slices.Clone(ranges)
		if s.unstored = s.keepRanges(ranges); s.unstored != nil {
			s.Log.Warn("cannot store the node's pod CIDRs for a start without the API server, retrying", "err", s.unstored)
		}
	}
	s.mu.Unlock()
	if !same {
		s.refresh()
	}
}

// Ranges returns the node's pod CIDRs, or nil.
func (s *Source) Ranges() []netip.Prefix {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ranges
}

// AllRanges returns the node's pod CIDRs, and the earlier ones of sandboxes that are still there. It removes the
// bridges of the others.
func (s *Source) AllRanges() ([]netip.Prefix, error) {
	s.mu.Lock()
	ranges, current := s.ranges, s.bridge
	s.mu.Unlock()
	if current == "" {
		return ranges, nil
	}
	earlier, err := earlierRanges(current)
	return slices.Concat(ranges, earlier), err
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

// keptRanges returns the ranges that an earlier process has stored, or nil.
func (s *Source) keptRanges() []netip.Prefix {
	text, err := boundedfile.Read(filepath.Join(s.Dir, rangesFile), maxConfig)
	var ranges []netip.Prefix
	if err == nil {
		err = json.Unmarshal(text, &ranges)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.Log.Warn("cannot read the node's stored pod CIDRs, waiting for the API server", "err", err)
	}
	if err != nil {
		return nil
	}
	return ranges
}

// Run follows changes of the user's configuration and of the plugins until ctx ends.
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

// refresh reads the configuration again.
func (s *Source) refresh() {
	s.mu.Lock()
	if s.unstored != nil {
		s.unstored = s.keepRanges(s.ranges)
	}
	n, err := s.look(s.generate)
	ignored, ignoredBefore := "", s.ignored
	if n != nil && err != nil {
		ignored, err = err.Error(), nil
	}
	before, beforeErr := s.now, s.err
	same := before != nil && n != nil && string(before.Bytes) == string(n.Bytes) ||
		before == nil && n == nil && s.err != nil && err.Error() == s.err.Error()
	if n != nil && !same {
		s.keep(n) // before any sandbox is attached to it
	}
	s.now, s.err = n, err
	s.ignored = ignored
	s.mu.Unlock()
	if ignored != "" && ignored != ignoredBefore {
		s.Log.Warn("ignoring a network configuration", "err", ignored)
	}
	if same {
		return
	}
	switch {
	case err != nil:
		s.Log.Warn("the node's pod network is not ready", "err", err)
	case beforeErr != nil || before != nil:
		s.Log.Info("the node's pod network has changed", "network", n.Name)
	}
	s.Changed()
}

// Check returns why a node with these pod CIDRs would have no network, as far as its files say that. It only reads.
func (c SourceConfig) Check(ranges []netip.Prefix) error {
	n, err := c.look(func() (*Network, error) {
		text, err := defaultConfig(c.Dir, bridgeNames()[0], ranges)
		if err != nil {
			return nil, err
		}
		return parseNetwork(text)
	})
	if n != nil {
		return nil
	}
	return err
}

// look returns the user's network, or the generated one, if its plugins are there. With a network, the error is about
// files that are ignored.
func (c SourceConfig) look(generate func() (*Network, error)) (n *Network, err error) {
	var more []string
	if c.Conf == "" {
		n, err = generate()
		more = []string{hostLocal} // the bridge runs it
	} else if fi, e := os.Stat(c.Conf); e == nil && fi.IsDir() {
		// In the runtime's own directory, the first configuration is nodelet's for the runtime.
		n, err = firstNetwork(c.Conf, installedFile)
	} else {
		n, err = readNetwork(c.Conf)
	}
	if n == nil {
		return nil, err
	}
	if err := missing(n, c.BinDirs, more...); err != nil {
		return nil, err
	}
	return n, err
}

// generate returns the network for the pod CIDRs.
func (s *Source) generate() (*Network, error) {
	current := s.bridge
	if current == "" {
		current = s.keptBridge()
	}
	bridge, err := chooseBridge(s.ranges, current)
	if err != nil {
		return nil, err
	}
	text, err := defaultConfig(s.Dir, bridge, s.ranges)
	if err != nil {
		return nil, err
	}
	s.bridge = bridge
	return parseNetwork(text)
}

// keptBridge returns the bridge of the network that an earlier process has stored, or "".
func (s *Source) keptBridge() string {
	var kept struct {
		Bridge string `json:"bridge"`
	}
	if n, err := readNetwork(filepath.Join(s.Dir, ownFile)); err == nil {
		_ = json.Unmarshal(n.Plugins[0].Bytes, &kept) // that of a user may have another type
	}
	return kept.Bridge
}

// keep stores the network for plugins that work without the agent.
func (s *Source) keep(n *Network) {
	text, err := flatten(n, nil)
	if err == nil {
		err = os.MkdirAll(s.Dir, 0o700)
	}
	if err == nil {
		err = atomicfile.Write(filepath.Join(s.Dir, ownFile), text, 0o600)
	}
	if err != nil {
		s.Log.Warn("cannot store the network configuration for calls while the agent is down", "err", err)
	}
}

// watchDirs calls look at once, after each change in one of the directories or files, and at intervals, until ctx ends.
func watchDirs(ctx context.Context, dirs []string, log *slog.Logger, look func()) {
	inotify.Follow(ctx, dirs, settle, lookAnyway, look, func(err error, retryIn time.Duration) {
		log.Warn("cannot watch the network configuration and plugins, polling them", "err", err, "retryIn", retryIn)
	})
}
