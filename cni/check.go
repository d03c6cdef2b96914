package cni

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/internal/backoff"
	"github.com/nodelet/nodelet/internal/latest"
)

// checkLimit bounds the check of one sandbox: a DEL has to wait for it.
const checkLimit = 15 * time.Second

// quietTime is the time without further changes of the node's network after which sandboxes are checked.
const quietTime = 2 * time.Second

// CheckerConfig is what a Checker needs.
type CheckerConfig struct {
	Driver *Driver
	// Period is the time between two checks of a sandbox; 0 turns checks off.
	Period time.Duration
	// Found is called when the check of a pod fails with another error than before, and with nil when it passes again.
	Found func(Pod, error)
	Log   *slog.Logger
}

// Checker runs CHECK of the plugins for each sandbox at long intervals.
type Checker struct {
	CheckerConfig
	soon latest.Signal

	mu sync.Mutex
	// problems holds the last error by the UID of the pod, whose sandbox may have been replaced since.
	problems map[string]string
}

// NewChecker returns a Checker; Run makes it work.
func NewChecker(c CheckerConfig) *Checker {
	return &Checker{
		CheckerConfig: c,
		soon:          latest.NewSignal(),
		problems:      map[string]string{},
	}
}

// Soon makes Run check all sandboxes soon, after a change of the node's network.
func (c *Checker) Soon() { c.soon.Set() }

// Run checks until ctx ends. A change makes the next check earlier, never later.
func (c *Checker) Run(ctx context.Context) {
	if c.Period <= 0 {
		return
	}
	next, due := time.NewTimer(c.Period), time.Now().Add(c.Period)
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.soon:
			next.Reset(min(quietTime, time.Until(due)))
			continue
		case <-next.C:
		}
		c.round(ctx)
		next.Reset(c.Period)
		due = time.Now().Add(c.Period)
	}
}

// round checks all sandboxes of pods one after the other.
func (c *Checker) round(ctx context.Context) {
	records, err := c.Driver.Records()
	if err != nil {
		c.Log.Warn("cannot check the pods' networks", "err", err)
	}
	pods := map[string]bool{}
	for _, rec := range records {
		pods[rec.Pod.UID] = true
		if ctx.Err() != nil {
			return
		}
		if !rec.ofPod() || !rec.Whole || rec.ofOtherBoot() || !isNamespace(rec.NetNS) {
			continue // of another program, or an ADD or DEL is in progress
		}
		limited, cancel := context.WithTimeout(ctx, checkLimit)
		c.report(rec, c.Driver.Check(limited, rec.Sandbox))
		cancel()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.problems, func(uid, _ string) bool { return !pods[uid] })
}

// Problem returns the error of the last check of a pod's network, or "".
func (c *Checker) Problem(uid string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.problems[uid]
}

// report stores the result of a check and calls Found if it differs from the result before.
func (c *Checker) report(rec *Record, err error) {
	if errors.Is(err, errDetached) || err != nil && !isNamespace(rec.NetNS) {
		return // the sandbox has been removed meanwhile
	}
	text := ""
	if err != nil {
		text = strings.TrimSpace(err.Error())
	}
	c.mu.Lock()
	before := c.problems[rec.Pod.UID]
	c.problems[rec.Pod.UID] = text
	if text == "" {
		delete(c.problems, rec.Pod.UID)
	}
	c.mu.Unlock()
	if text != before {
		c.Found(rec.Pod, err)
	}
}

// WatchTrouble calls trouble whenever the node loses an address, until ctx ends: other parts of the network may be lost
// too. It waits for messages of the kernel (rtnetlink).
func WatchTrouble(ctx context.Context, log *slog.Logger, trouble func()) {
	const longest = 30 * time.Second
	backoff.Repeat(ctx, longest, func() error { return watchAddresses(ctx, trouble) },
		func(err error, retryIn time.Duration) {
			log.Warn("cannot watch the addresses of the node; lost pod networks are found by periodic checks only",
				"err", err, "retryIn", retryIn)
		})
}

// watchAddresses is WatchTrouble until an error.
func watchAddresses(ctx context.Context, trouble func()) error {
	socket, err := openAddresses()
	if err != nil {
		return fmt.Errorf("open a netlink socket: %w", err)
	}
	defer socket.Close()
	defer context.AfterFunc(ctx, func() { _ = socket.Close() })()
	buffer := make([]byte, 16<<10)
	for {
		n, err := socket.Read(buffer)
		switch {
		case errors.Is(err, unix.ENOBUFS) || err == nil && lostAddress(buffer[:n], isDummy): // ENOBUFS: messages were lost
			trouble()
		case err != nil:
			return fmt.Errorf("read the kernel's messages about addresses: %w", err)
		}
	}
}

// openAddresses returns a socket that gets the kernel's messages about changes of addresses.
func openAddresses() (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	err = unix.Bind(fd, &unix.SockaddrNetlink{
		Family: unix.AF_NETLINK,
		Groups: unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR,
	})
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), "rtnetlink"), nil
}

// lostAddress reports whether netlink messages say that the node has lost an address. One that another interface has is
// not lost: ptp gives one address to the host's ends of all pods. Nor are those of dummy devices, which have no routes
// to pods: kube-proxy with IPVS has one with the addresses of all services.
func lostAddress(b []byte, isDummy func(device uint32) bool) bool {
	gone := slices.DeleteFunc(addresses(b, unix.RTM_DELADDR), func(g address) bool { return isDummy(g.device) })
	if len(gone) == 0 {
		return false
	}
	all, err := syscall.NetlinkRIB(unix.RTM_GETADDR, unix.AF_UNSPEC)
	left := addresses(all, unix.RTM_NEWADDR)
	return err != nil || slices.ContainsFunc(gone, func(g address) bool {
		return !slices.ContainsFunc(left, func(l address) bool { return l.ip == g.ip && l.device != g.device })
	})
}

// isDummy reports whether the network device with this index is of the kind dummy.
func isDummy(device uint32) bool {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	name, err := unix.NewIfreq("")
	if err != nil {
		return false
	}
	name.SetUint32(device)
	if unix.IoctlIfreq(fd, unix.SIOCGIFNAME, name) != nil {
		return false // it has gone
	}
	info, err := unix.IoctlGetEthtoolDrvinfo(fd, name.Name())
	return err == nil && unix.ByteSliceToString(info.Driver[:]) == "dummy"
}

// address is an IP address, in binary form, of an interface.
type address struct {
	ip     string
	device uint32
}

// addresses returns the addresses in netlink messages of one type. Those with the scope of a link do not count: the
// kernel gives one to each interface, so the host's end of a pod has one, too.
func addresses(b []byte, kind uint16) (all []address) {
	messages, _ := syscall.ParseNetlinkMessage(b) // the kernel writes no others
	for i := range messages {
		var head unix.IfAddrmsg
		_, err := binary.Decode(messages[i].Data, binary.NativeEndian, &head)
		if err != nil || messages[i].Header.Type != kind || head.Scope == unix.RT_SCOPE_LINK {
			continue
		}
		one := address{device: head.Index}
		attributes, _ := syscall.ParseNetlinkRouteAttr(&messages[i])
		for _, a := range attributes {
			if a.Attr.Type == unix.IFA_LOCAL || a.Attr.Type == unix.IFA_ADDRESS && one.ip == "" {
				one.ip = string(a.Value)
			}
		}
		all = append(all, one)
	}
	return all
}
