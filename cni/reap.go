package cni

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/utils"
	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/host/boundedfile"
)

const (
	// abandoned is the age from which a record counts as a leak if the runtime does not list its sandbox. The runtime
	// lists a sandbox only after ADD.
	abandoned = 10 * time.Minute
	// hostLocalDir is the default directory of host-local for addresses.
	hostLocalDir = "/var/lib/cni/networks"
)

// Reaped is what Reap has released.
type Reaped struct {
	// Sandboxes are those that were detached. Addresses and Devices (of bandwidth limits) are those that were released
	// without a record.
	Sandboxes, Addresses, Devices []string
}

// Alive describes what is in use.
type Alive struct {
	// List returns the set of all sandboxes of the runtime, in any state.
	List func(context.Context) (map[string]bool, error)
	// Own is the network to which nodelet attaches sandboxes, all with records. Nil in mode "runtime".
	Own *Network
	// Foreign is the network to which the runtime attaches sandboxes, without records. Nil in mode "agent".
	Foreign *Network
}

// Reap releases what removed sandboxes have left: the networks of records without a sandbox; addresses of host-local
// without either, with the device of bandwidth; and, if nodelet is the plugin, host ports of portmap without either.
//
// It asks for the sandboxes after it has found out which records may be leaks: a sandbox whose ADD had not ended before
// could be running by now, under a runtime that has restarted.
func (d *Driver) Reap(ctx context.Context, alive Alive) (Reaped, error) {
	var r Reaped
	ids, err := d.store.list()
	errs := []error{err}
	networks, inUse := map[string]*Network{}, map[netip.Addr]bool{}
	for _, n := range []*Network{alive.Own, alive.Foreign} {
		if n != nil {
			networks[n.Name] = n
		}
	}
	records, leaked := map[string]*Record{}, map[string]bool{}
	for _, id := range ids {
		rec, err := d.store.read(id)
		errs = append(errs, err)
		collect(networks, rec)
		records[id], leaked[id] = rec, d.leaked(id, rec)
	}
	live, err := alive.List(ctx)
	if err != nil {
		return r, errors.Join(append(errs, err)...) // without a list no sandbox counts as removed
	}
	for _, id := range ids {
		rec := records[id]
		if live[id] || rec == nil && d.store.removeEmpty(id) || !leaked[id] {
			use(inUse, rec)
			continue
		}
		if err := d.Detach(ctx, id, "", nil); err != nil {
			errs = append(errs, fmt.Errorf("removed sandbox %s: %w", id, err))
			continue
		}
		r.Sandboxes = append(r.Sandboxes, id)
		errs = append(errs, removeNamespace(rec))
	}
	for _, n := range networks {
		errs = append(errs, d.freeAddresses(&r, n, live, inUse))
	}
	if alive.Own != nil {
		gone, err := d.reapHostPorts(ctx, networks, live)
		r.Sandboxes = append(r.Sandboxes, gone...)
		errs = append(errs, err)
	}
	return r, errors.Join(errs...)
}

// collect adds the networks of a record.
func collect(networks map[string]*Network, rec *Record) {
	if rec == nil {
		return
	}
	for i := range rec.Attachments {
		a := &rec.Attachments[i]
		if n, err := parseNetwork(a.Config); err == nil && networks[a.Network] == nil {
			networks[a.Network] = n
		}
	}
}

// use adds the addresses of a record.
func use(inUse map[netip.Addr]bool, rec *Record) {
	if rec == nil {
		return
	}
	for i := range rec.Attachments {
		r, err := rec.Attachments[i].result()
		if err != nil {
			continue // it has none yet
		}
		for _, ip := range r.IPs {
			if addr, ok := netip.AddrFromSlice(ip.Address.IP); ok {
				inUse[addr.Unmap()] = true
			}
		}
	}
}

// leaked reports whether a sandbox that the runtime does not list was removed, rather than being created. Nothing
// lists what other programs have attached, and they may end long before it: then only the end of the network namespace
// counts.
func (d *Driver) leaked(id string, rec *Record) bool {
	if rec == nil { // the record is lost, or will be written soon
		fi, err := os.Stat(d.store.path(id))
		return err == nil && time.Since(fi.ModTime()) > abandoned
	}
	if rec.ofOtherBoot() || !isNamespace(rec.NetNS) {
		return true
	}
	return rec.ofPod() && (rec.Runtime.gone() || rec.age() > abandoned)
}

// removeNamespace removes a named network namespace that a runtime made for a sandbox and lost when it was killed. The
// namespace of a process ends with the process.
func removeNamespace(rec *Record) error {
	if rec == nil || !rec.Runtime.gone() || rec.Boot != bootID() || !isNamespace(rec.NetNS) ||
		strings.HasPrefix(rec.NetNS, "/proc/") {
		return nil
	}
	if err := unix.Unmount(rec.NetNS, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
		return fmt.Errorf("remove network namespace %s: %w", rec.NetNS, err)
	}
	return os.Remove(rec.NetNS)
}

// isLeft reports whether what was found as trace in a network, and was made at written, belongs to a sandbox that is
// gone: the runtime does not list it, and it has no record, which this package writes before anything else.
//
// In a network that is shared, it may also belong to another program, or to a sandbox of the runtime whose ADD has not
// ended. The ID must be such as runtimes give to sandboxes then, without a namespace, and this process must have seen
// the trace for long.
func (d *Driver) isLeft(n *Network, id, trace string, written time.Time, live map[string]bool) (bool, error) {
	if live[id] {
		return false, nil
	}
	if utils.ValidateContainerID(id) == nil { // what a damaged file names is no ID
		if _, err := os.Stat(d.store.path(id)); !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
	}
	if !d.isShared(n) {
		return true, nil
	}
	if id != "" && !isSandboxID(id) {
		return false, nil
	}
	attached, err := d.isAttached(n.Name, id)
	return err == nil && !attached && d.longSeen(trace, written), err
}

// isShared reports whether others than this package may attach containers to a network: unless it has its addresses in
// the directory of this package.
func (d *Driver) isShared(n *Network) bool {
	dirs := addressDirs(n)
	return len(dirs) == 0 || slices.ContainsFunc(dirs, func(dir string) bool {
		return filepath.Dir(dir) != d.store.addresses()
	})
}

// isSandboxID reports whether containerd or CRI-O may have given a sandbox this ID. Containers of podman have such IDs,
// too; nerdctl calls its own NAMESPACE-ID.
func isSandboxID(id string) bool { return len(id) == 64 && strings.Trim(id, "0123456789abcdef") == "" }

// isAttached reports whether a container has a namespace in which a process runs, according to the results of plugins
// that libcni keeps for its users on this machine, such as runtimes and podman.
func (d *Driver) isAttached(network, id string) (bool, error) {
	dir := filepath.Join(d.cache, "results")
	files, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("look for containers of other programs: %w", err)
	}
	for _, f := range files {
		if !strings.HasPrefix(f.Name(), network+"-"+id+"-") {
			continue
		}
		text, err := boundedfile.Read(filepath.Join(dir, f.Name()), maxConfig)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, fmt.Errorf("look for containers of other programs: %w", err)
		}
		var kept struct {
			Result struct {
				Interfaces []struct {
					Sandbox string `json:"sandbox"`
				} `json:"interfaces"`
			} `json:"result"`
		}
		_ = json.Unmarshal(text, &kept) // a damaged file names no namespace
		for _, i := range kept.Result.Interfaces {
			if used, err := hasProcess(i.Sandbox); used || err != nil {
				return used, err
			}
		}
	}
	return false, nil
}

// hasProcess reports whether a process runs, or may run, in a network namespace of a container. A runtime that was
// killed leaves namespaces without one. The init process, which a security module may hide, runs in none.
func hasProcess(netns string) (bool, error) {
	wanted, err := os.Stat(netns)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	processes, listErr := os.ReadDir("/proc")
	if err := errors.Join(err, listErr); err != nil {
		return false, fmt.Errorf("look for the processes of other programs: %w", err)
	}
	for _, p := range processes {
		its, err := os.Stat(filepath.Join("/proc", p.Name(), "ns/net"))
		hidden := errors.Is(err, fs.ErrPermission) && p.Name() != "1"
		if hidden || err == nil && os.SameFile(its, wanted) {
			return true, nil
		}
	}
	return false, nil
}

// longSeen reports whether this process saw a trace so long ago that the ADD which made it has ended. The time at which
// it was written says only whether it is the same one: the time of day may have been set forward since.
func (d *Driver) longSeen(trace string, written time.Time) bool {
	s, ok := d.seen[trace]
	if !ok || !s.written.Equal(written) {
		s = sighting{written, time.Now()}
		d.seen[trace] = s
	}
	return time.Since(s.since) >= abandoned
}

// freeAddresses frees the addresses of a network that belong to no sandbox. An address on a record is in use even if
// its file is damaged and names no sandbox.
//
// It removes the device of a bandwidth limit before the address. The plugins make the device after the address is
// reserved, and remove it before, so it finds each.
func (d *Driver) freeAddresses(r *Reaped, n *Network, live map[string]bool, inUse map[netip.Addr]bool) error {
	var errs []error
	for _, dir := range addressDirs(n) {
		errs = append(errs, eachAddress(dir, func(file string, addr netip.Addr, id string) error {
			fi, err := os.Lstat(file)
			if err != nil || inUse[addr] {
				return err
			}
			if left, err := d.isLeft(n, id, file, fi.ModTime(), live); err != nil || !left {
				return err
			}
			if err := r.removeLimiter(n.Name, id); err != nil {
				return err
			}
			r.Addresses = append(r.Addresses, addr.String())
			return os.Remove(file)
		}))
	}
	return errors.Join(errs...)
}

// addressDirs returns the directories of host-local for the addresses of a network.
func addressDirs(n *Network) (dirs []string) {
	for _, p := range n.Plugins {
		var c struct {
			IPAM struct {
				Type    string `json:"type"`
				DataDir string `json:"dataDir"`
			} `json:"ipam"`
		}
		if err := json.Unmarshal(p.Bytes, &c); err == nil && c.IPAM.Type == hostLocal {
			dirs = append(dirs, filepath.Join(cmp.Or(c.IPAM.DataDir, hostLocalDir), n.Name))
		}
	}
	return dirs
}

// eachAddress calls each for the reservations of host-local: files named by the address that contain the sandbox ID and
// the interface, one per line. It holds host-local's lock.
func eachAddress(dir string, each func(file string, addr netip.Addr, sandbox string) error) error {
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // no address was ever reserved
	}
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	defer lock.Close()
	if err := flock(lock); err != nil {
		return fmt.Errorf("lock addresses in %s: %w", dir, err)
	}
	entries, err := os.ReadDir(dir)
	errs := []error{err}
	for _, e := range entries {
		addr, err := netip.ParseAddr(e.Name())
		if err != nil || !e.Type().IsRegular() {
			continue
		}
		file := filepath.Join(dir, e.Name())
		text, err := boundedfile.Read(file, maxConfig)
		if err == nil {
			id, _, _ := strings.Cut(string(text), "\n")
			err = each(file, addr, strings.TrimSpace(id))
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
