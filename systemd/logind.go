package systemd

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/host/atomicfile"
	"github.com/nodelet/nodelet/internal/backoff"
)

const (
	logind          = "org.freedesktop.login1"
	logindManager   = logind + ".Manager"
	logindPath      = dbus.ObjectPath("/org/freedesktop/login1")
	prepare         = "PrepareForShutdown"
	busInterface    = "org.freedesktop.DBus"
	ownerChanged    = "NameOwnerChanged" // of a name on the bus
	lockName        = "shutdown-lock"    // of the descriptor that systemd stores
	delayPoll       = 100 * time.Millisecond
	delayPolls      = 50
	logindConfDir   = "/etc/systemd/logind.conf.d"
	logindConfFile  = "99-kubelet.conf" // as the kubelet's, so that either agent can raise the limit
	logindConfWords = "# Written by nodelet, so that a shutdown waits for the pods (shutdownGracePeriod).\n" +
		"[Login]\nInhibitDelayMaxSec=%d\n"
)

// Logind is a connection to systemd-logind. Its methods are called by one goroutine.
type Logind struct {
	conn    *dbus.Conn
	signals chan *dbus.Signal
	lock    *os.File // the delay lock; nil while it is not held
}

// OpenLogind connects to the system bus and listens for shutdowns and restarts of logind.
func OpenLogind(ctx context.Context) (*Logind, error) {
	conn, err := dbus.ConnectSystemBus(dbus.WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("connect to the system bus: %w", err)
	}
	l := &Logind{conn: conn, signals: make(chan *dbus.Signal, 4)}
	conn.Signal(l.signals)
	err = errors.Join(
		conn.AddMatchSignalContext(ctx, dbus.WithMatchInterface(logindManager), dbus.WithMatchMember(prepare),
			dbus.WithMatchObjectPath(logindPath)),
		conn.AddMatchSignalContext(ctx, dbus.WithMatchInterface(busInterface), dbus.WithMatchMember(ownerChanged),
			dbus.WithMatchArg(0, logind)))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("subscribe to signals of logind: %w", err), conn.Close())
	}
	return l, nil
}

// Close ends the connection. It does not release the lock: see Release.
func (l *Logind) Close() { _ = l.conn.Close() }

func (l *Logind) object() dbus.BusObject { return l.conn.Object(logind, logindPath) }

// Next waits until a shutdown may have begun or may have been cancelled, and reports whether one has begun. Every
// program can send signals, and a logind that restarts has forgotten the shutdown without one: so logind is asked. Next
// returns an error when the connection or ctx ends, or if logind does not say it.
func (l *Logind) Next(ctx context.Context) (down bool, err error) {
	for {
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case s, open := <-l.signals:
			if !open {
				return false, errors.New("the system bus has closed the connection")
			}
			began := s.Name == busInterface+"."+ownerChanged && len(s.Body) == 3 && s.Body[2] != ""
			if began || s.Name == logindManager+"."+prepare {
				return l.ShuttingDown(ctx)
			}
		}
	}
}

// ShuttingDown reports whether a shutdown has begun already.
func (l *Logind) ShuttingDown(ctx context.Context) (bool, error) {
	v, err := l.property(ctx, "PreparingForShutdown")
	down, _ := v.(bool)
	return down, err
}

// property reads a property of logind's manager.
func (l *Logind) property(ctx context.Context, name string) (any, error) {
	var v dbus.Variant
	call := l.object().CallWithContext(ctx, "org.freedesktop.DBus.Properties.Get", 0, logindManager, name)
	if err := call.Store(&v); err != nil {
		return nil, fmt.Errorf("read property %s of logind: %w", name, err)
	}
	return v.Value(), nil
}

// longestDelay returns how long a lock can delay a shutdown (InhibitDelayMaxSec of logind.conf; 5 s unless set).
func (l *Logind) longestDelay(ctx context.Context) (time.Duration, error) {
	v, err := l.property(ctx, "InhibitDelayMaxUSec")
	if err != nil {
		return 0, err
	}
	usec, ok := v.(uint64)
	if !ok {
		return 0, fmt.Errorf("read property InhibitDelayMaxUSec of logind: got %T, want a number", v)
	}
	return microseconds(usec), nil
}

// microseconds returns a time span of systemd. The largest number stands for "infinity".
func microseconds(n uint64) time.Duration {
	return time.Duration(min(n, math.MaxInt64/1000)) * time.Microsecond
}

// AllowDelay configures logind so that a lock can delay a shutdown for at least d. It writes a drop-in if the limit
// is lower.
func (l *Logind) AllowDelay(ctx context.Context, d time.Duration) error {
	now, err := l.longestDelay(ctx)
	if err != nil || now >= d {
		return err
	}
	if err := writeDelay(logindConfDir, d); err != nil {
		return fmt.Errorf("raise logind's InhibitDelayMaxSec: %w", err)
	}
	call := l.conn.Object("org.freedesktop.systemd1", "/org/freedesktop/systemd1").
		CallWithContext(ctx, "org.freedesktop.systemd1.Manager.KillUnit", 0,
			"systemd-logind.service", "all", int32(unix.SIGHUP))
	if call.Err != nil {
		return fmt.Errorf("reload the configuration of logind: %w", call.Err)
	}
	for range delayPolls { // logind does not report when it has reloaded its configuration
		if now, err = l.longestDelay(ctx); err != nil || now >= d {
			return err
		}
		if !backoff.Sleep(ctx, delayPoll) {
			return ctx.Err()
		}
	}
	return fmt.Errorf("raise logind's InhibitDelayMaxSec: %s/%s sets %s, but logind uses %s: does a later file lower it?",
		logindConfDir, logindConfFile, d, now)
}

// writeDelay writes the drop-in of logind, as the kubelet does.
func writeDelay(dir string, d time.Duration) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	text := fmt.Sprintf(logindConfWords, int64((d+time.Second-1)/time.Second))
	return atomicfile.WriteLinked(filepath.Join(dir, logindConfFile), []byte(text), 0o644)
}

// Delay takes the lock that delays a shutdown until Release, and stores a copy of it with systemd, so that the shutdown
// also waits while a crashed agent restarts. It reuses a lock that an earlier process has stored.
func (l *Logind) Delay(ctx context.Context) error {
	if l.lock != nil {
		return nil
	}
	if kept := keptLock(); kept != nil {
		l.lock = kept
		return nil
	}
	var fd dbus.UnixFD
	err := l.object().CallWithContext(ctx, logindManager+".Inhibit", 0,
		"shutdown", name(), "The pods of this node get time to end", "delay").Store(&fd)
	if err != nil {
		return fmt.Errorf("take logind's delay lock: %w", err)
	}
	l.lock = os.NewFile(uintptr(fd), lockName)
	return keep(lockName, l.lock)
}

// Release releases the lock, so that the shutdown continues.
func (l *Logind) Release() error {
	if l.lock == nil {
		return nil
	}
	err := errors.Join(Notify("FDSTOREREMOVE=1\nFDNAME="+lockName), l.lock.Close())
	l.lock = nil
	return err
}

// keep stores a copy of f with systemd, which passes it to the next process of the unit (FileDescriptorStoreMax). With
// FDPOLL=0 systemd keeps it also while logind restarts, when no process reads from the other end of the lock. Without
// systemd it does nothing.
func keep(name string, f *os.File) error {
	addr := os.Getenv("NOTIFY_SOCKET")
	if addr == "" {
		return nil
	}
	// net.UnixConn cannot send descriptors over a connected datagram socket.
	sock, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = errors.Join(unix.Sendmsg(sock, []byte("FDSTORE=1\nFDPOLL=0\nFDNAME="+name), unix.UnixRights(int(f.Fd())),
			&unix.SockaddrUnix{Name: addr}, 0),
			unix.Close(sock))
	}
	if err != nil {
		return fmt.Errorf("store descriptor %s with systemd: %w", name, err)
	}
	return nil
}

// kept returns the descriptors that systemd has passed, by name. Each can be taken once.
var kept = sync.OnceValue(func() map[string]*os.File {
	all := map[string]*os.File{}
	for _, f := range activation.Files(false) {
		if all[f.Name()] == nil {
			all[f.Name()] = f
			continue
		}
		_ = f.Close() // a second one with the same name is not used
	}
	return all
})

// TakeStored takes the descriptors that systemd has stored for an earlier run of the agent, before it starts any
// program, which would inherit them. If it does not delay shutdowns, it releases the lock of one that did.
func TakeStored(delays bool) error {
	_ = kept()
	if delays {
		return nil
	}
	l := Logind{lock: keptLock()}
	return l.Release()
}

// keptLock returns the lock that an earlier process has stored, or nil.
func keptLock() *os.File {
	f := kept()[lockName]
	delete(kept(), lockName)
	return f
}
