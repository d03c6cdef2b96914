package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
)

// undoLimit is how long it may take to give back what a failed ADD has taken.
const undoLimit = 2 * time.Minute

// Driver attaches sandboxes to networks by running chains of plugins, and keeps a record of each.
type Driver struct {
	store store
	bins  []string
	limit time.Duration
	// observe is told of each run of a plugin; nil for nobody.
	observe func(Call)
	log     *slog.Logger
}

// DriverConfig is what a Driver needs.
type DriverConfig struct {
	// Dir is where the records are: <root-dir>/cni.
	Dir string
	// BinDirs are where the plugins are, searched in this order.
	BinDirs []string
	// CallLimit is how long one plugin may take for one call; 0 means a minute.
	CallLimit time.Duration
	// Observe is told of each run of a plugin, for metrics; nil for nobody.
	Observe func(Call)
	Log     *slog.Logger
}

// NewDriver makes a driver.
func NewDriver(c DriverConfig) *Driver {
	return &Driver{store: store{filepath.Join(c.Dir, "sandboxes")}, bins: c.BinDirs, limit: c.CallLimit, observe: c.Observe, log: c.Log}
}

// Wanted is a network that a sandbox is to be attached to.
type Wanted struct {
	Network *Network
	IfName  string
	// Label is how the pod's annotation names it, NAMESPACE/NAME; empty for the node's own network.
	Label string
	// Capabilities are the capability arguments, such as portMappings: plugins get those that they declare.
	Capabilities map[string]any
	// Args become args.cni of the configuration.
	Args map[string]any
}

// Records gives the records of all sandboxes.
func (d *Driver) Records() ([]*Record, error) { return d.store.all() }

func (d *Driver) runner() *runner { return &runner{limit: d.limit, observe: d.observe} }

// chain drives the plugins for one sandbox. libcni keeps its files in the sandbox's directory.
func (d *Driver) chain(sandbox string, r *runner) *libcni.CNIConfig {
	return libcni.NewCNIConfigWithCacheDir(d.bins, d.store.path(sandbox), r)
}

// Attach attaches a sandbox to networks, in their order. The intent is written down first. When one fails, all are
// detached again, and what could not be given back stays on record.
func (d *Driver) Attach(ctx context.Context, rec *Record, wanted []Wanted) error {
	unlock, err := d.store.lock(rec.Sandbox)
	if err != nil {
		return err
	}
	defer unlock()
	if old, err := d.store.read(rec.Sandbox); err != nil {
		return err
	} else if old != nil {
		// An ADD that nobody has undone: the same container may not be added twice.
		if err := d.detach(ctx, old, rec.NetNS); err != nil {
			return fmt.Errorf("undo an earlier ADD of sandbox %s: %w", rec.Sandbox, err)
		}
	}
	rec.Attachments = nil
	for _, w := range wanted {
		config, err := flatten(asked(w.Network, w.Capabilities), w.Args)
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
	n, err := ParseNetwork(a.Config)
	if err != nil {
		return err
	}
	defer func() { // libcni trusts what plugins print further than one may
		if p := recover(); p != nil {
			err = fmt.Errorf("a plugin's result cannot be used: %v", p)
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

// undo gives back what a failed ADD has taken and returns its error. The caller may be gone: this is done in any case.
func (d *Driver) undo(ctx context.Context, rec *Record, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
	defer cancel()
	if err := d.detach(ctx, rec, rec.NetNS); err != nil {
		return fmt.Errorf("%w (and giving it back failed too, it will be tried again: %w)", cause, err)
	}
	return cause
}

// Detach takes a sandbox off all its networks, the last first, and forgets it. netns is empty when the namespace is
// gone. Where there is no record of the sandbox, it is taken off the networks given; detaching twice is no error.
func (d *Driver) Detach(ctx context.Context, sandbox, netns string, otherwise *Record) error {
	unlock, err := d.store.lock(sandbox)
	if err != nil {
		return err
	}
	defer unlock()
	rec, err := d.store.read(sandbox)
	if err != nil {
		return err
	}
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

// fromCache rebuilds a lost record from the files that libcni keeps; nil if there are none.
func (d *Driver) fromCache(sandbox string) *Record {
	all, err := d.chain(sandbox, d.runner()).GetCachedAttachments(sandbox)
	if err != nil || len(all) == 0 {
		return nil
	}
	rec := &Record{Sandbox: sandbox, NetNS: all[0].NetNS, Args: all[0].CniArgs}
	for _, a := range all {
		rec.Attachments = append(rec.Attachments, Attachment{Network: a.Network, IfName: a.IfName, Config: a.Config, Capabilities: a.CapabilityArgs})
	}
	slices.SortStableFunc(rec.Attachments, func(a, b Attachment) int { return strings.Compare(a.IfName, b.IfName) })
	return rec
}

// detach goes through all networks even if one fails. The caller holds the sandbox's lock.
func (d *Driver) detach(ctx context.Context, rec *Record, netns string) error {
	if !isNamespace(netns) {
		netns = rec.NetNS
	}
	if !isNamespace(netns) {
		netns = ""
	}
	var errs []error
	for i := len(rec.Attachments) - 1; i >= 0; i-- {
		a := &rec.Attachments[i]
		n, err := ParseNetwork(a.Config)
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

// Check asks the plugins of a sandbox whether all is as they have made it. Networks whose version of CNI has no CHECK
// are left out.
func (d *Driver) Check(ctx context.Context, sandbox string) error {
	unlock, err := d.store.lock(sandbox)
	if err != nil {
		return err
	}
	defer unlock()
	rec, err := d.store.read(sandbox)
	if err != nil {
		return err
	}
	if rec == nil {
		_ = d.store.remove(sandbox) // the lock has made it
		return fmt.Errorf("no record of sandbox %s", sandbox)
	}
	var errs []error
	for i := range rec.Attachments {
		a := &rec.Attachments[i]
		n, err := ParseNetwork(a.Config)
		if err == nil {
			err = d.chain(sandbox, d.runner()).CheckNetworkList(ctx, n, rec.runtimeConf(a, rec.NetNS))
		}
		if err != nil && !errors.Is(err, libcni.ErrorCheckNotSupp) {
			errs = append(errs, fmt.Errorf("%s in network %s: %w", a.IfName, a.name(), err))
		}
	}
	return errors.Join(errs...)
}

// Status asks the plugins of a network whether they can attach sandboxes. Those of versions before 1.1.0 cannot be
// asked.
func (d *Driver) Status(ctx context.Context, n *Network) error {
	return libcni.NewCNIConfig(d.bins, d.runner()).GetStatusNetworkList(ctx, n)
}

// GC tells the plugins of a network which attachments there are, so that they can give back all others. Those of
// versions before 1.1.0 are not asked.
func (d *Driver) GC(ctx context.Context, n *Network, valid []types.GCAttachment) error {
	// The directory holds nothing: libcni would detach by itself what it finds there, while the records know better.
	chain := libcni.NewCNIConfigWithCacheDir(d.bins, filepath.Join(d.store.dir, ".none"), d.runner())
	return chain.GCNetworkList(ctx, n, &libcni.GCArgs{ValidAttachments: valid})
}

func (r *Record) runtimeConf(a *Attachment, netns string) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{ContainerID: r.Sandbox, NetNS: netns, IfName: a.IfName, Args: r.Args, CapabilityArgs: a.Capabilities}
}

// name is the network's name as people know it.
func (a *Attachment) name() string {
	if a.Label != "" {
		return a.Label
	}
	return a.Network
}

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
	return json.Marshal(map[string]any{"cniVersion": n.CNIVersion, "name": n.Name, "disableCheck": n.DisableCheck, "plugins": plugins})
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
	merged := map[string]any{}
	if before, ok := all["cni"].(map[string]any); ok {
		for k, v := range before {
			merged[k] = v
		}
	}
	for k, v := range args {
		merged[k] = v
	}
	all["cni"] = merged
	return libcni.InjectConf(p, map[string]any{"args": all})
}
