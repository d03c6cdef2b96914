package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/host/boundedfile"
)

const (
	// abandoned is how old a record must be to count as a leak only because the runtime does not know its sandbox: it
	// shows a sandbox only once it is made.
	abandoned = 10 * time.Minute
	// hostLocalDir is where host-local keeps addresses unless told otherwise.
	hostLocalDir = "/var/lib/cni/networks"
)

// Reaped is what Reap has found and given back.
type Reaped struct {
	// Sandboxes are those that were detached; Addresses and Devices (of bandwidth limits) those that were freed though
	// nobody had a record of them.
	Sandboxes, Addresses, Devices []string
}

// Alive is what Reap leaves alone.
type Alive struct {
	// Sandboxes are those that the runtime knows, in any state, listed before the call.
	Sandboxes map[string]bool
	// Own is the network that nodelet attaches sandboxes to: all of them have records. Nil in mode "runtime".
	Own *Network
	// Foreign is the network that the runtime attaches sandboxes to by itself, without records. Nil in mode "agent".
	Foreign *Network
	// Before are the names of networks to which the runtime may have attached sandboxes before nodelet became its network.
	Before []string
}

// Reap gives back what sandboxes have left that are gone: the networks of records without a sandbox; and without
// either, addresses of host-local, and where nodelet is the network, host ports of portmap and devices of bandwidth.
func (d *Driver) Reap(ctx context.Context, alive Alive) (Reaped, error) {
	var r Reaped
	ids, err := d.store.list()
	errs := []error{err}
	networks := map[string]*Network{}
	if alive.Own != nil {
		networks[alive.Own.Name] = alive.Own
	}
	for _, id := range ids {
		rec, err := d.store.read(id)
		errs = append(errs, err)
		d.collect(networks, rec)
		if _, known := alive.Sandboxes[id]; known || !d.leaked(id, rec) {
			continue
		}
		if err := d.Detach(ctx, id, "", nil); err != nil {
			errs = append(errs, fmt.Errorf("sandbox %s, which is gone: %w", id, err))
			continue
		}
		r.Sandboxes = append(r.Sandboxes, id)
		errs = append(errs, removeNamespace(rec))
	}
	free := func(n *Network, minAge time.Duration) {
		freed, err := d.freeAddresses(n, alive.Sandboxes, minAge)
		r.Addresses = append(r.Addresses, freed...)
		errs = append(errs, err)
	}
	if alive.Foreign != nil {
		delete(networks, alive.Foreign.Name)
		free(alive.Foreign, abandoned)
	}
	for _, n := range networks {
		free(n, 0)
	}
	if alive.Own != nil {
		errs = append(errs, d.reapUnrecorded(ctx, &r, networks, alive))
	}
	return r, errors.Join(errs...)
}

// reapUnrecorded gives back what plugins have set up on the node for sandboxes of which there is no record.
func (d *Driver) reapUnrecorded(ctx context.Context, r *Reaped, networks map[string]*Network, alive Alive) error {
	gone, err := d.reapHostPorts(ctx, networks, alive.Sandboxes)
	r.Sandboxes = append(r.Sandboxes, gone...)
	devices, deviceErr := d.reapLimiters(slices.AppendSeq(slices.Clone(alive.Before), maps.Keys(networks)), alive.Sandboxes)
	r.Devices = devices
	return errors.Join(err, deviceErr)
}

// collect adds the networks of a record.
func (d *Driver) collect(networks map[string]*Network, rec *Record) {
	if rec == nil {
		return
	}
	for i := range rec.Attachments {
		a := &rec.Attachments[i]
		if n, err := ParseNetwork(a.Config); err == nil && networks[a.Network] == nil {
			networks[a.Network] = n
		}
	}
}

// leaked says of a sandbox that the runtime does not know whether it is gone, rather than being made.
func (d *Driver) leaked(id string, rec *Record) bool {
	if rec == nil { // the record is lost, or about to be written
		fi, err := os.Stat(d.store.path(id))
		return err == nil && time.Since(fi.ModTime()) > abandoned
	}
	return rec.Boot != BootID() || !isNamespace(rec.NetNS) || !rec.Runtime.alive() || time.Since(rec.Began) > abandoned
}

// removeNamespace removes the name of a network namespace that a runtime made for a sandbox and has forgotten, as it
// was killed meanwhile. One that is a process's, rather than a name, ends with the process.
func removeNamespace(rec *Record) error {
	if rec == nil || rec.Runtime.PID == 0 || rec.Runtime.alive() || rec.Boot != BootID() || !isNamespace(rec.NetNS) ||
		strings.HasPrefix(rec.NetNS, "/proc/") {
		return nil
	}
	if err := unix.Unmount(rec.NetNS, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
		return fmt.Errorf("remove network namespace %s: %w", rec.NetNS, err)
	}
	return os.Remove(rec.NetNS)
}

// freeAddresses frees the addresses of a network that belong to no sandbox and are at least so old. Whoever reserves
// one through this room has a record by then, so there is nothing to wait for.
func (d *Driver) freeAddresses(n *Network, live map[string]bool, minAge time.Duration) ([]string, error) {
	var freed []string
	var errs []error
	for _, p := range n.Plugins {
		dir := addressDir(n.Name, p.Bytes)
		if dir == "" {
			continue
		}
		err := eachAddress(dir, func(file, id string) error {
			if _, known := live[id]; known {
				return nil
			}
			if fi, err := os.Lstat(file); err != nil || time.Since(fi.ModTime()) < minAge {
				return err
			}
			if _, err := os.Stat(d.store.path(id)); id != "" && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			freed = append(freed, filepath.Base(file))
			return os.Remove(file)
		})
		errs = append(errs, err)
	}
	return freed, errors.Join(errs...)
}

// addressDir is where host-local keeps a plugin's addresses; empty if it is not the one that manages them.
func addressDir(network string, plugin []byte) string {
	var c struct {
		IPAM struct {
			Type    string `json:"type"`
			DataDir string `json:"dataDir"`
		} `json:"ipam"`
	}
	if err := json.Unmarshal(plugin, &c); err != nil || c.IPAM.Type != "host-local" {
		return ""
	}
	if c.IPAM.DataDir == "" {
		c.IPAM.DataDir = hostLocalDir
	}
	return filepath.Join(c.IPAM.DataDir, network)
}

// eachAddress goes through host-local's reservations: a file named by the address, which holds the sandbox's ID and the
// interface, on a line each. It holds host-local's own lock meanwhile.
func eachAddress(dir string, each func(file, sandbox string) error) error {
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // nothing was ever reserved
	}
	if err != nil {
		return fmt.Errorf("look through addresses: %w", err)
	}
	defer lock.Close()
	if err := flock(lock); err != nil {
		return fmt.Errorf("lock addresses in %s: %w", dir, err)
	}
	entries, err := os.ReadDir(dir)
	errs := []error{err}
	for _, e := range entries {
		if _, err := netip.ParseAddr(e.Name()); err != nil || !e.Type().IsRegular() {
			continue
		}
		file := filepath.Join(dir, e.Name())
		text, err := boundedfile.Read(file, maxConfig)
		if err == nil {
			id, _, _ := strings.Cut(string(text), "\n")
			err = each(file, strings.TrimSpace(id))
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
