package cni

import (
	"context"
	"encoding/binary"
	"log/slog"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// checkLimit is how long the check of one sandbox may take: its end would have to wait.
const checkLimit = 15 * time.Second

// calm is how long the node's network must have been quiet before sandboxes are checked after trouble.
const calm = 2 * time.Second

// CheckerConfig is what a Checker needs.
type CheckerConfig struct {
	Driver *Driver
	// Period is how often each sandbox is checked; 0 is never.
	Period time.Duration
	// Found is told when the network of a pod fails its check, in other words than before, and with nil when it is well
	// again. Problem gives the newest word.
	Found func(Pod, error)
	Log   *slog.Logger
}

// Checker has the plugins look, at a slow pace, whether the sandboxes' networks are still as they made them.
type Checker struct {
	CheckerConfig
	soon chan struct{}

	mu sync.Mutex
	// failed holds what was last found, by sandbox; problems the same by the pod's UID.
	failed, problems map[string]string
}

// NewChecker makes a checker.
func NewChecker(c CheckerConfig) *Checker {
	return &Checker{CheckerConfig: c, soon: make(chan struct{}, 1), failed: map[string]string{}, problems: map[string]string{}}
}

// Soon has all sandboxes checked soon: something has happened to the node's network.
func (c *Checker) Soon() {
	select {
	case c.soon <- struct{}{}:
	default:
	}
}

// Run checks until ctx ends.
func (c *Checker) Run(ctx context.Context) {
	if c.Period <= 0 {
		return
	}
	next := time.NewTimer(c.Period)
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.soon:
			next.Reset(calm)
			continue
		case <-next.C:
		}
		c.round(ctx)
		next.Reset(c.Period)
	}
}

// round checks all sandboxes, one after the other.
func (c *Checker) round(ctx context.Context) {
	records, err := c.Driver.Records()
	if err != nil {
		c.Log.Warn("cannot check the pods' networks", "err", err)
	}
	there, pods := map[string]bool{}, map[string]bool{}
	for _, rec := range records {
		there[rec.Sandbox], pods[rec.Pod.UID] = true, true
		if ctx.Err() != nil {
			return
		}
		if !rec.Whole || rec.Boot != BootID() || !isNamespace(rec.NetNS) {
			continue // being made, or ending
		}
		limited, cancel := context.WithTimeout(ctx, checkLimit)
		c.tell(rec, c.Driver.Check(limited, rec.Sandbox))
		cancel()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for id := range c.failed {
		if !there[id] {
			delete(c.failed, id)
		}
	}
	for uid := range c.problems {
		if !pods[uid] {
			delete(c.problems, uid)
		}
	}
}

// Problem says what the last check of a pod's network has found wrong, empty for nothing.
func (c *Checker) Problem(uid string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.problems[uid]
}

func (c *Checker) tell(rec *Record, err error) {
	if err != nil && !isNamespace(rec.NetNS) {
		return // it has ended meanwhile
	}
	text := ""
	if err != nil {
		text = strings.TrimSpace(err.Error())
	}
	c.mu.Lock()
	before := c.failed[rec.Sandbox]
	c.failed[rec.Sandbox], c.problems[rec.Pod.UID] = text, text
	if text == "" {
		delete(c.failed, rec.Sandbox)
		delete(c.problems, rec.Pod.UID)
	}
	c.mu.Unlock()
	if text != before {
		c.Found(rec.Pod, err)
	}
}

// WatchTrouble calls trouble when this node has lost an address, until ctx ends: whoever did that may have taken more.
// It listens to the kernel (rtnetlink) and costs nothing while all is quiet.
func WatchTrouble(ctx context.Context, log *slog.Logger, trouble func()) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err == nil {
		defer unix.Close(fd)
		err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR})
	}
	var end [2]int
	if err == nil {
		err = unix.Pipe2(end[:], unix.O_CLOEXEC)
	}
	if err != nil {
		log.Warn("cannot listen for trouble of the node's network", "err", err)
		return
	}
	defer unix.Close(end[0])
	stop := context.AfterFunc(ctx, func() { unix.Close(end[1]) })
	defer func() {
		if stop() {
			unix.Close(end[1])
		}
	}()
	buffer := make([]byte, 16<<10)
	for {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}, {Fd: int32(end[0]), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, -1); err != nil && err != unix.EINTR || fds[1].Revents != 0 {
			return
		}
		n, _, err := unix.Recvfrom(fd, buffer, unix.MSG_DONTWAIT)
		if err == unix.ENOBUFS || err == nil && lostAddress(buffer[:n]) { // ENOBUFS: there was more than could be kept
			trouble()
		}
	}
}

// lostAddress looks for RTM_DELADDR among netlink messages: each begins with its length (4 bytes) and type (2), in the
// machine's byte order, and ends at a multiple of 4.
func lostAddress(b []byte) bool {
	for len(b) >= unix.NLMSG_HDRLEN {
		size := int(binary.NativeEndian.Uint32(b))
		if kind := binary.NativeEndian.Uint16(b[4:]); kind == unix.RTM_DELADDR {
			return true
		}
		if size = (size + 3) &^ 3; size < unix.NLMSG_HDRLEN || size > len(b) {
			return false
		}
		b = b[size:]
	}
	return false
}
