package cni

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/containernetworking/cni/libcni"
	"golang.org/x/sys/unix"
)

// undoLimit bounds the undoing of a failed ADD.
const undoLimit = 2 * time.Minute

// Driver attaches sandboxes to networks by running chains of plugins, and keeps a record of each sandbox.
type Driver struct {
	store   store
	bins    []string
	limit   time.Duration
	observe func(Call)
	cache   string              // where libcni keeps the results of plugins, except for this package
	seen    map[string]sighting // by trace; only Reap uses it
}

// sighting is when this process first saw a trace of a sandbox that has no record.
type sighting struct{ written, since time.Time }

// DriverConfig is what a Driver needs.
type DriverConfig struct {
	// Dir contains the records: <root-dir>/cni.
	Dir string
	// BinDirs are the directories of plugins, searched in this order.
	BinDirs []string
	// CallLimit bounds one call of a plugin; 0 means a minute.
	CallLimit time.Duration
	// Observe is called after each run of a plugin, for metrics. Nil: it is not called.
	Observe func(Call)
}

// NewDriver returns a Driver.
func NewDriver(c DriverConfig) *Driver {
	if c.Observe == nil {
		c.Observe = func(Call) {}
	}
	return &Driver{
		store:   store{filepath.Join(c.Dir, "sandboxes")},
		bins:    c.BinDirs,
		limit:   cmp.Or(c.CallLimit, callLimit),
		observe: c.Observe,
		cache:   libcni.CacheDir,
		seen:    map[string]sighting{},
	}
}

// Wanted is a network that a sandbox should be attached to.
type Wanted struct {
	Network *Network
	IfName  string
	// Label is the network's name in the pod's annotation, NAMESPACE/NAME; empty for the node's own network.
	Label string
	// Capabilities are capability arguments such as portMappings; plugins get those that they declare.
	Capabilities map[string]any
	// Args become args.cni of the configuration.
	Args map[string]any
}

// Records returns the records of all sandboxes.
func (d *Driver) Records() ([]*Record, error) { return d.store.all() }

// HasRecord reports whether a sandbox has a record, which is so from before ADD until after DEL.
func (d *Driver) HasRecord(sandbox string) bool {
	_, err := os.Stat(d.store.path(sandbox))
	return !errors.Is(err, fs.ErrNotExist)
}

func (d *Driver) runner() *runner { return &runner{limit: d.limit, observe: d.observe} }

// chain runs plugins for one sandbox. libcni keeps its cache in the sandbox's directory.
func (d *Driver) chain(sandbox string, r *runner) *libcni.CNIConfig {
	return libcni.NewCNIConfigWithCacheDir(d.bins, d.store.path(sandbox), r)
}

// Attach attaches a sandbox to networks, in their order. It writes the record first. If one network fails, it detaches
// all; what cannot be detached stays on record.
func (d *Driver) Attach(ctx context.Context, rec *Record, wanted []Wanted) error {
	unlock, err := d.begin(ctx, rec)
	if err != nil {
		return err
	}
	defer unlock()
	rec.Attachments = nil
	for _, w := range wanted {
		config, err := flatten(asked(w.Network, w.Capabilities), w.Args)
		if err == nil {
			_, err = parseNetwork(config) // what cannot be read again can never be detached
		}
		if err != nil {
			return fmt.Errorf("network %s: %w", w.Network.Name, err)
		}
		rec.Attachments = append(rec.Attachments, Attachment{Network: w.Network.Name, IfName: w.IfName, Label: w.Label,
			Config: config, Capabilities: w.Capabilities})
	}
	if err := d.store.write(rec); err != nil {
		return err
	}
	if err := d.addAll(ctx, rec); err != nil {
		return d.undo(ctx, rec, err)
	}
	rec.Whole = true
	if err := d.store.write(rec); err != nil {
		return d.undo(ctx, rec, err)
	}
	return nil
}

// begin locks a sandbox without a record. An earlier ADD that was not undone is undone before: the same container must
// not be added twice.
func (d *Driver) begin(ctx context.Context, rec *Record) (unlock func(), err error) {
	for {
		old, unlock, err := d.store.open(rec.Sandbox)
		if err != nil || old == nil {
			return unlock, err
		}
		err = d.detach(ctx, old, rec.NetNS)
		unlock() // what was locked has been removed
		if err != nil {
			return nil, fmt.Errorf("undo an earlier ADD of sandbox %s: %w", rec.Sandbox, err)
		}
	}
}

func (d *Driver) addAll(ctx context.Context, rec *Record) error {
	for i := range rec.Attachments {
		a := &rec.Attachments[i]
		if err := d.add(ctx, rec, a); err != nil {
			return fmt.Errorf("attach %s to network %s: %w", a.IfName, a.name(), err)
		}
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}

func (d *Driver) add(ctx context.Context, rec *Record, a *Attachment) (err error) {
	n, err := parseNetwork(a.Config)
	if err != nil {
		return err
	}
	defer func() { // libcni may panic on the output of plugins
		if p := recover(); p != nil {
			err = fmt.Errorf("invalid result of a plugin: %v", p)
		}
	}()
	r := d.runner()
	result, err := d.chain(rec.Sandbox, r).AddNetworkList(ctx, n, rec.runtimeConf(a, rec.NetNS))
	a.Calls = r.calls
	if err != nil {
		return err
	}
	a.Result, err = json.Marshal(result)
	return err
}

// undo detaches after a failed ADD and returns its error. It ignores the end of ctx: the networks must be released.
func (d *Driver) undo(ctx context.Context, rec *Record, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
	defer cancel()
	if err := d.detach(ctx, rec, rec.NetNS); err != nil {
		return fmt.Errorf("%w (detaching failed too and will be tried again: %w)", cause, err)
	}
	return cause
}

// Detach detaches a sandbox from all its networks, the last one first, and removes its record. netns is empty if the
// namespace does not exist any more. Without a record, the networks of otherwise are detached. Detaching twice is not
// an error.
func (d *Driver) Detach(ctx context.Context, sandbox, netns string, otherwise *Record) error {
	rec, unlock, err := d.store.open(sandbox)
	if errors.Is(err, unix.ENOSPC) { // it has no directory, so it has no record, and another call cannot attach it
		unlock, err = func() {}, nil
	}
	if err != nil {
		return err
	}
	defer unlock()
	if rec == nil {
		rec = d.fromCache(sandbox)
	}
	if rec == nil {
		rec = otherwise
	}
	if rec == nil {
		return d.store.remove(sandbox)
	}
	return d.detach(ctx, rec, netns)
}

// fromCache rebuilds a lost record from the cache of libcni. It returns nil if that is empty.
func (d *Driver) fromCache(sandbox string) *Record {
	all, err := d.chain(sandbox, d.runner()).GetCachedAttachments(sandbox)
	if err != nil || len(all) == 0 {
		return nil
	}
	rec := &Record{Sandbox: sandbox, NetNS: all[0].NetNS, Args: all[0].CniArgs}
	for _, a := range all {
		rec.Attachments = append(rec.Attachments, Attachment{
			Network:      a.Network,
			IfName:       a.IfName,
			Config:       a.Config,
			Capabilities: a.CapabilityArgs,
		})
	}
	made := rec.Attachments
	slices.SortStableFunc(made, func(a, b Attachment) int { return cmp.Compare(a.IfName, b.IfName) })
	return rec
}

// detach tries all networks even if one fails. The caller holds the sandbox's lock.
func (d *Driver) detach(ctx context.Context, rec *Record, netns string) error {
	if !isNamespace(netns) {
		netns = rec.NetNS
	}
	if !isNamespace(netns) {
		netns = ""
	}
	var errs []error
	for i := range slices.Backward(rec.Attachments) {
		a := &rec.Attachments[i]
		n, err := parseNetwork(a.Config)
		if err == nil {
			err = d.chain(rec.Sandbox, d.runner()).DelNetworkList(ctx, n, rec.runtimeConf(a, netns))
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("detach %s from network %s: %w", a.IfName, a.name(), err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		rec.Whole = false
		return errors.Join(err, d.store.write(rec))
	}
	return d.store.remove(rec.Sandbox)
}

// errDetached says that no ADD of a sandbox has ended, or that a DEL has begun.
var errDetached = errors.New("not attached to its networks")

// Check runs CHECK of the plugins of a sandbox. It skips networks whose CNI version has no CHECK.
func (d *Driver) Check(ctx context.Context, sandbox string) error {
	rec, unlock, err := d.store.open(sandbox)
	if err != nil {
		return err
	}
	defer unlock()
	if rec == nil {
		_ = d.store.remove(sandbox) // lock has created it
	}
	if rec == nil || !rec.Whole {
		return fmt.Errorf("sandbox %s: %w", sandbox, errDetached)
	}
	var errs []error
	for i := range rec.Attachments {
		a := &rec.Attachments[i]
		n, err := parseNetwork(a.Config)
		if err == nil {
			err = d.chain(sandbox, d.runner()).CheckNetworkList(ctx, n, rec.runtimeConf(a, rec.NetNS))
		}
		if err != nil && !errors.Is(err, libcni.ErrorCheckNotSupp) {
			errs = append(errs, fmt.Errorf("%s in network %s: %w", a.IfName, a.name(), err))
		}
	}
	return errors.Join(errs...)
}

// Status asks the plugins of a network whether they can attach sandboxes. It skips CNI versions before 1.1.0.
func (d *Driver) Status(ctx context.Context, n *Network) error {
	return libcni.NewCNIConfig(d.bins, d.runner()).GetStatusNetworkList(ctx, n)
}

func (r *Record) runtimeConf(a *Attachment, netns string) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{
		ContainerID:    r.Sandbox,
		NetNS:          netns,
		IfName:         a.IfName,
		Args:           r.Args,
		CapabilityArgs: a.Capabilities,
	}
}

// name returns the network's name as users know it.
func (a *Attachment) name() string { return cmp.Or(a.Label, a.Network) }

// flatten writes a network as one list: plugins that came from other files are in it, and args as args.cni of each.
func flatten(n *Network, args map[string]any) (json.RawMessage, error) {
	var plugins []json.RawMessage
	for _, p := range n.Plugins {
		if len(args) > 0 {
			var err error
			if p, err = withArgs(p, args); err != nil {
				return nil, err
			}
		}
		plugins = append(plugins, p.Bytes)
	}
	return json.Marshal(map[string]any{
		"cniVersion":             n.CNIVersion,
		"name":                   n.Name,
		"disableCheck":           n.DisableCheck,
		"loadOnlyInlinedPlugins": true,
		"plugins":                plugins,
	})
}

func withArgs(p *libcni.PluginConfig, args map[string]any) (*libcni.PluginConfig, error) {
	var config struct {
		Args map[string]any `json:"args"`
	}
	if err := json.Unmarshal(p.Bytes, &config); err != nil {
		return nil, err
	}
	all := config.Args
	if all == nil {
		all = map[string]any{}
	}
	before, _ := all["cni"].(map[string]any)
	merged := map[string]any{}
	maps.Copy(merged, before)
	maps.Copy(merged, args)
	all["cni"] = merged
	return libcni.InjectConf(p, map[string]any{"args": all})
}
