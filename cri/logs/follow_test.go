package logs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nodelet/nodelet/host/inotify"
	"github.com/nodelet/nodelet/test/waittest"
)

// container writes a log as containerd does, which opens the new file before it closes the old one.
type container struct {
	t    *testing.T
	path string
	file *os.File
	next int
	// late makes it write one more line to the old file after it has opened the new one.
	late bool
}

func newContainer(t *testing.T) (*Dir, *container) {
	d, path := newLog(t, "")
	c := &container{t: t, path: path}
	c.file = c.open()
	t.Cleanup(func() { c.file.Close() })
	return d, c
}

func (c *container) open() *os.File {
	f, err := os.OpenFile(c.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o640)
	if err != nil {
		c.t.Error(err)
	}
	return f
}

func (c *container) say() {
	fmt.Fprintf(c.file, "%s stdout F line %d\n", time.Now().Format(time.RFC3339Nano), c.next)
	c.next++
}

func (c *container) reopen(context.Context, string) error {
	next := c.open()
	if c.late {
		c.say()
	}
	c.file.Close()
	c.file = next
	return nil
}

// rotator rotates the log of c at each round, with another second each time.
func (c *container) rotator(d *Dir, files int) *Rotator {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.Local)
	return &Rotator{Dir: d, MaxBytes: 1, MaxFiles: files, Workers: 1,
		Log:    slog.New(slog.NewTextHandler(c.t.Output(), nil)),
		List:   func(context.Context) ([]Log, error) { return []Log{{"id", c.path}}, nil },
		Reopen: c.reopen,
		now:    func() time.Time { now = now.Add(time.Second); return now }}
}

// reader gathers what a follower gets; it can be held up.
type reader struct {
	mu  sync.Mutex
	buf bytes.Buffer
	// begun is closed by the first write, by which the reader is in the file.
	begun chan struct{}
	once  sync.Once
	hold  chan struct{}
}

func (r *reader) Write(b []byte) (int, error) {
	r.once.Do(func() { close(r.begun) })
	if r.hold != nil && len(b) > 0 {
		<-r.hold
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.buf.Write(b)
	return len(b), nil
}

func (r *reader) lines() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Split(strings.TrimSuffix(r.buf.String(), "\n"), "\n")
}

func (r *reader) check(t *testing.T, want int) {
	t.Helper()
	got := r.lines()
	for i, l := range got {
		if l != fmt.Sprintf("line %d", i) {
			t.Fatalf("line %d: got %q; %d of %d lines, want %q", i, l, len(got), want, fmt.Sprintf("line %d", i))
		}
	}
	if len(got) != want {
		t.Fatalf("got %d of %d lines, want %d", len(got), want, want)
	}
}

// follow begins to follow and returns when the file is open.
func follow(t *testing.T, d *Dir, path string, ended <-chan struct{}, w *reader) <-chan error {
	t.Helper()
	done := make(chan error, 1)
	w.begun = make(chan struct{})
	o := all()
	o.Follow, o.Ended = true, func() (bool, <-chan struct{}) {
		select {
		case <-ended:
			return true, nil
		default:
			return false, ended
		}
	}
	go func() { done <- d.Read(context.Background(), path, o, w, w) }()
	select {
	case <-w.begun:
	case err := <-done:
		t.Fatalf("the follower ended with %v before it was in the file, want it to go on", err)
	}
	return done
}

// TestFollowThroughRotations checks that a follower gets each line once and in order, however often the log is
// rotated, whatever the runtime does late, and however slow it is.
func TestFollowThroughRotations(t *testing.T) {
	for _, c := range []struct {
		name string
		slow bool
		most int // lines that the container writes between two rotations
	}{
		{name: "quick", most: 200},
		{name: "slow", slow: true, most: 200},
		{name: "slow, short files", slow: true, most: 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, ctr := newContainer(t)
			r := &reader{}
			if c.slow {
				r.hold = make(chan struct{})
			}
			rot := ctr.rotator(d, 100)
			ended := make(chan struct{})
			done := follow(t, d, ctr.path, ended, r)
			for range 40 {
				for range rand.IntN(c.most) {
					ctr.say()
				}
				rot.Round(t.Context())
			}
			rot.aside.Wait()
			ctr.say()
			close(ended)
			if c.slow {
				close(r.hold)
			}
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			r.check(t, ctr.next)
			if d.watch.instance != nil {
				t.Error("after the end of the last follower: got inotify open, want it closed")
			}
		})
	}
}

// TestClockSetBack checks that a follower gets each line once, and that the oldest logs are removed, also if the time
// of day is set back between two rotations, as the local time is once a year.
func TestClockSetBack(t *testing.T) {
	d, ctr := newContainer(t)
	r := &reader{}
	ended := make(chan struct{})
	done := follow(t, d, ctr.path, ended, r)
	rot := ctr.rotator(d, 5)
	for _, minute := range []int{30, 40, 50, 5, 15} {
		rot.now = func() time.Time { return time.Date(2026, 1, 2, 2, minute, 0, 0, time.Local) }
		ctr.say()
		waittest.Until(t, "the follower has the line", func() bool {
			got := r.lines()
			return got[len(got)-1] == fmt.Sprintf("line %d", ctr.next-1)
		})
		round(t, rot)
	}
	ctr.say()
	close(ended)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	r.check(t, ctr.next)
	want := []string{"0.log", "0.log.20260102-024000.gz", "0.log.20260102-025000.gz", "0.log.20260102-025001.gz",
		"0.log.20260102-025002"}
	if got := namesIn(t, filepath.Dir(ctr.path)); !slices.Equal(got, want) {
		t.Errorf("files: got %q, want %q", got, want)
	}
}

// TestLateLine checks that a line that the runtime writes to the old file when the new one is there already is not
// lost.
func TestLateLine(t *testing.T) {
	d, ctr := newContainer(t)
	ctr.late = true
	r := &reader{}
	ended := make(chan struct{})
	done := follow(t, d, ctr.path, ended, r)
	rot := ctr.rotator(d, 100)
	for range 20 {
		ctr.say()
		round(t, rot)
		ctr.say()
	}
	close(ended)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	for _, l := range r.lines() {
		seen[l]++
	}
	for i := range ctr.next {
		if n := seen[fmt.Sprintf("line %d", i)]; n != 1 {
			t.Errorf("line %d: got it %d times, want once", i, n)
		}
	}
}

// TestFollowBehindTheCollector checks that a follower that is held up while its file is compressed, with others
// behind it, still gets all.
func TestFollowBehindTheCollector(t *testing.T) {
	d, ctr := newContainer(t)
	r := &reader{hold: make(chan struct{})}
	ended := make(chan struct{})
	ctr.say()
	done := follow(t, d, ctr.path, ended, r)
	r.hold <- struct{}{} // it is in the first file now
	rot := ctr.rotator(d, 100)
	for range 5 {
		ctr.say()
		time.Sleep(time.Millisecond) // the lines of different files have different times
		round(t, rot)
	}
	ctr.say()
	close(ended)
	close(r.hold)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	r.check(t, ctr.next)
}

// TestFirstLineIsBounded checks that a file without a line feed is not read to its end for the time of its first line,
// while no log of the node can be rotated.
func TestFirstLineIsBounded(t *testing.T) {
	endless := strings.NewReader(strings.Repeat("x", 10*bufferSize))
	at, err := timeOfFirst(&logFile{unpacked: endless})
	if n := 10*bufferSize - endless.Len(); n > bufferSize || err != nil || !at.IsZero() {
		t.Errorf("got %v, %v after %d bytes, want no time after %d bytes", at, err, n, bufferSize)
	}
}

// TestFollowEnds checks that a follower ends with the container, with the reader, and when the directory is removed.
func TestFollowEnds(t *testing.T) {
	d, ctr := newContainer(t)
	fmt.Fprint(ctr.file, "2026-01-02T03:04:05Z stdout F line 0\n2026-01-02T03:04:05Z stdout F li")
	ended := make(chan struct{})
	r := &reader{}
	done := follow(t, d, ctr.path, ended, r)
	fmt.Fprint(ctr.file, "ne 1\n2026-01-02T03:04:05Z stdout F line 2") // a line is whole or the last
	if err := os.RemoveAll(filepath.Dir(ctr.path)); err != nil {
		t.Fatal(err)
	}
	close(ended)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if got, want := r.lines(), []string{"line 0", "line 1", "line 2"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	ctx, cancel := context.WithCancel(t.Context())
	d, ctr = newContainer(t)
	r.once = sync.Once{}
	r.begun = make(chan struct{})
	o := all()
	o.Follow = true
	go cancel()
	if err := d.Read(ctx, ctr.path, o, r, r); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestFollowWithoutInotify checks that a follower gets new lines although the kernel grants no watch.
func TestFollowWithoutInotify(t *testing.T) {
	d, ctr := newContainer(t)
	gone, err := inotify.Open(func(inotify.Event) {})
	if err != nil {
		t.Skip("no inotify instance is left: ", err)
	}
	gone.Close()
	d.watch.instance, d.watch.count = gone, 1 // another follower seems to use it
	r, ended := &reader{}, make(chan struct{})
	done := follow(t, d, ctr.path, ended, r)
	ctr.say()
	for r.lines()[0] == "" {
		select {
		case err := <-done:
			t.Fatalf("the follower ended with %v, want it to go on", err)
		case <-time.After(10 * time.Millisecond):
		}
	}
	ctr.say()
	close(ended)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	r.check(t, ctr.next)
}

// TestEmptied checks that a log that is truncated in place is followed from its new beginning.
func TestEmptied(t *testing.T) {
	d, ctr := newContainer(t)
	ctr.say()
	ctr.say()
	r := &reader{hold: make(chan struct{})}
	ended := make(chan struct{})
	done := follow(t, d, ctr.path, ended, r)
	r.hold <- struct{}{}
	r.hold <- struct{}{}
	if err := os.Truncate(ctr.path, 0); err != nil {
		t.Fatal(err)
	}
	ctr.say()
	close(ended)
	close(r.hold)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	r.check(t, ctr.next)
}
