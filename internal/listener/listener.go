package listener

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/internal/backoff"
)

// maxDelay bounds the wait between two attempts to open a listener, and between two to accept a connection.
const maxDelay = 5 * time.Second

// Serve opens a listener and passes it to serve, until ctx ends: after an error of one of them it begins again. serve
// returns when it has failed or when ctx has ended; it may close the listener, which is closed after it in any case.
// failed receives the errors; see backoff.Repeat.
func Serve(ctx context.Context, open func() (net.Listener, error), serve func(net.Listener) error,
	failed func(err error, retryIn time.Duration)) {
	backoff.Repeat(ctx, maxDelay, func() error {
		l, err := open()
		if err != nil {
			return err
		}
		defer l.Close()
		return serve(&patient{Listener: l, ctx: ctx, failed: failed})
	}, failed)
}

// patient is a listener that outlasts a shortage. Callers wait in the kernel's queue meanwhile; a closed listener would
// refuse them.
type patient struct {
	net.Listener
	ctx    context.Context
	failed func(error, time.Duration)
}

// shortages are the errors of accept(2) that say nothing about the listener.
var shortages = []error{unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM}

// Accept waits for a connection. It returns an error if that is not one of a shortage, or when ctx has ended.
func (p *patient) Accept() (net.Conn, error) {
	var b backoff.Backoff
	for first := true; ; first = false {
		conn, err := p.Listener.Accept()
		if !slices.ContainsFunc(shortages, func(s error) bool { return errors.Is(err, s) }) {
			return conn, err
		}
		wait := min(b.Next(0), maxDelay)
		if first {
			p.failed(err, wait)
		}
		if !backoff.Sleep(p.ctx, wait) {
			return nil, err
		}
	}
}

// Unix opens the UNIX socket at a path, in place of an older one, and creates its directory with dirMode. mode is that
// of the socket; zero leaves it to the umask.
func Unix(path string, dirMode, mode fs.FileMode) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), dirMode); err != nil {
		return nil, err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove old socket: %w", err)
	}
	l, err := net.Listen("unix", path)
	if err != nil || mode == 0 {
		return l, err
	}
	if err := os.Chmod(path, mode); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}
