package listener_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/internal/listener"
)

// faulty is a listener whose Accept returns the errors one after the other, and a connection after them.
type faulty struct {
	net.Listener
	errs   []error
	closed int
}

func (f *faulty) Accept() (net.Conn, error) {
	if len(f.errs) == 0 {
		return &net.UnixConn{}, nil
	}
	err := f.errs[0]
	f.errs = f.errs[1:]
	return nil, err
}

func (f *faulty) Close() error { f.closed++; return nil }

func accepting(errno unix.Errno) error {
	return &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", errno)}
}

// TestServe checks that a listener is opened again after a failed open and after an error of it, that it stays during
// a shortage, and that each trouble is reported once.
func TestServe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		broken := &faulty{errs: []error{accepting(unix.EINVAL)}}
		short := &faulty{errs: []error{accepting(unix.EMFILE), accepting(unix.EMFILE), accepting(unix.ENOMEM)}}
		opens := []*faulty{nil, nil, broken, short}
		var got []string
		listener.Serve(ctx, func() (net.Listener, error) {
			l := opens[0]
			opens = opens[1:]
			if l == nil {
				return nil, errors.New("in use")
			}
			return l, nil
		}, func(l net.Listener) error {
			_, err := l.Accept()
			if err == nil {
				cancel()
			}
			return err
		}, func(err error, retryIn time.Duration) {
			if retryIn <= 0 || retryIn > 5*time.Second {
				t.Errorf("got a wait of %v after %v, want one up to 5 s", retryIn, err)
			}
			got = append(got, err.Error())
		})
		want := []string{"in use", "accept: accept4: invalid argument", "accept: accept4: too many open files"}
		if !slices.Equal(got, want) {
			t.Errorf("reported errors: got %q, want %q", got, want)
		}
		if len(opens) != 0 || broken.closed != 1 || short.closed != 1 {
			t.Errorf("got %d listeners left, closed %d and %d times, want 0, 1 and 1",
				len(opens), broken.closed, short.closed)
		}
	})
}

// TestEndDuringShortage checks that Accept returns when the context ends.
func TestEndDuringShortage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		l := &faulty{errs: slices.Repeat([]error{accepting(unix.ENFILE)}, 1000)}
		listener.Serve(ctx, func() (net.Listener, error) { return l, nil },
			func(l net.Listener) error { _, err := l.Accept(); return err }, func(error, time.Duration) {})
		if len(l.errs) < 970 {
			t.Errorf("got %d attempts within a minute, want fewer than 30", 1000-len(l.errs))
		}
	})
}

// TestUnix checks that a socket replaces an older one, and its mode.
func TestUnix(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dir", "socket")
	first, err := listener.Unix(path, 0o700, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	second, err := listener.Unix(path, 0o700, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := info.Mode(), os.ModeSocket|0o600; got != want {
		t.Errorf("mode of the socket: got %v, want %v", got, want)
	}
	if err := os.MkdirAll(filepath.Join(path+".d", "file"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := listener.Unix(path+".d", 0o700, 0); err == nil {
		t.Error("a directory with a file is in the way: got no error")
	}
}
