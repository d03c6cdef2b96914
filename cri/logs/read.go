package logs

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// Options select what to read of a log.
type Options struct {
	// Follow reads on until the container has Ended and all that was written by then is read, or until the context ends.
	// While the container has not ended, the channel is closed when that may have changed. Nil: it never ends.
	Follow bool
	Ended  func() (ended bool, moved <-chan struct{})
	// Tail is how many of the newest lines to begin with, of the newest file and of the one before it if that is not
	// compressed; negative: all of the newest file. Without Follow it is also the most that is read.
	Tail int64
	// Limit is the most bytes to write; negative: no limit.
	Limit int64
	// Since leaves older lines out.
	Since time.Time
	// Timestamps puts the time before each line.
	Timestamps bool
}

// bufferSize is small, because hundreds of readers may wake at the same line.
const bufferSize = 8 << 10

var buffers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, bufferSize) }}

// errEnough ends a read whose limit is reached.
var errEnough = errors.New("enough")

// Read writes the log at path, as the CRI names it, to stdout and stderr; a nil writer is a stream that is not wanted.
// The log that was rotated last is read only by a reader that was already in it, and for Tail. Once the file is open,
// and before its content, it makes one empty write, so that a reader of a quiet log knows that it is served.
func (d *Dir) Read(ctx context.Context, path string, o Options, stdout, stderr io.Writer) error {
	dir, err := d.open(filepath.Dir(path), os.O_RDONLY)
	if err != nil {
		return fmt.Errorf("read log: %w", err)
	}
	defer dir.Close()
	r := &reading{dir: dir, name: filepath.Base(path), o: o, out: newOutput(&o, stdout, stderr), watch: &d.watch,
		moving: &d.moving, began: time.Now()}
	defer r.close()
	if err := r.begin(ctx); err != nil {
		return fmt.Errorf("read log: %w", err)
	}
	if err := hello(stdout, stderr); err != nil {
		return err
	}
	err = r.run(ctx)
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

func hello(writers ...io.Writer) error {
	for _, w := range writers {
		if w != nil {
			_, err := w.Write(nil)
			return errors.Join(err, flush(w))
		}
	}
	return nil
}

// reading is one reader's position in a log and the files that it is rotated to.
type reading struct {
	dir   *os.File
	name  string
	o     Options
	out   *output
	watch *watcher

	file *logFile
	// old is the file before this one, kept for a moment after it was left: see follow.
	old  *logFile
	left time.Time
	// began is when the reading began.
	began  time.Time
	moving *sync.RWMutex
	// lines are how many more may be read; negative: any.
	lines int64
}

// logFile is an open file of a log.
type logFile struct {
	*os.File
	info os.FileInfo
	// unpacked reads a compressed file.
	unpacked io.Reader
	// key is the name that the file was rotated to, once that is known; empty for the newest.
	key string
	// at is the place in the file up to which lines are done.
	at int64
	// inside is the line that is being read in pieces.
	inside *head
}

func (r *reading) begin(ctx context.Context) error {
	if err := r.openFirst(); err != nil {
		return err
	}
	r.lines = -1
	if r.o.Tail < 0 {
		return nil
	}
	if !r.o.Follow {
		r.lines = r.o.Tail
	}
	missing, err := r.file.seekTail(ctx, r.o.Tail)
	if err == nil && r.old != nil {
		_, err = r.old.seekTail(ctx, missing)
	}
	return err
}

// openFirst opens the newest file, and for Tail the one before it, if that can be read and is not compressed.
func (r *reading) openFirst() error {
	r.moving.RLock() // otherwise the file before it could be the same one
	defer r.moving.RUnlock()
	file, info, err := regular(r.dir, r.name)
	if err != nil {
		return err
	}
	r.file = &logFile{File: file, info: info}
	if r.o.Tail <= 0 {
		return nil
	}
	rotated, err := r.rotated()
	if n := len(rotated); err == nil && n > 0 && !strings.HasSuffix(rotated[n-1], gz) {
		if old, err := r.open(rotated[n-1]); err == nil {
			r.old, r.left = old, time.Now()
		}
	}
	return nil
}

func (r *reading) close() {
	if r.file != nil {
		r.file.Close()
	}
	if r.old != nil {
		r.old.Close()
	}
}

func (r *reading) run(ctx context.Context) error {
	if !r.o.Follow {
		if err := r.drainOld(ctx, true); err != nil {
			return err
		}
		return r.drain(ctx, r.file, true)
	}
	return r.follow(ctx)
}

// drain reads to the present end of a file. last: nothing follows a line that has no end.
func (r *reading) drain(ctx context.Context, f *logFile, last bool) error {
	err := r.pass(ctx, f, last)
	if ctx.Err() != nil {
		return err
	}
	return errors.Join(err, r.out.flush()) // may take long, so no buffer waits for it
}

func (r *reading) pass(ctx context.Context, f *logFile, last bool) error {
	b := buffers.Get().(*bufio.Reader)
	b.Reset(f.source())
	defer func() {
		b.Reset(nil)
		buffers.Put(b)
	}()
	for r.lines != 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		piece, err := b.ReadSlice('\n')
		switch {
		case err == io.EOF && (len(piece) == 0 || !last):
			return nil // a line without an end is read when it has one
		case err != nil && err != bufio.ErrBufferFull && err != io.EOF:
			return fmt.Errorf("read log %s: %w", f.Name(), err)
		}
		if err := r.take(f, piece, err != bufio.ErrBufferFull); err != nil {
			return err
		}
	}
	return nil
}

// source returns the file from where it was read up to. A compressed file is read once, from start to end.
func (f *logFile) source() io.Reader {
	if f.unpacked != nil {
		return f.unpacked
	}
	return io.NewSectionReader(f.File, f.at, 1<<62-f.at)
}

// take writes a piece of a line: its beginning, or what follows. end: the line ends with it.
func (r *reading) take(f *logFile, piece []byte, end bool) error {
	f.at += int64(len(piece))
	content := piece
	if f.inside == nil {
		h, rest, err := parse(piece)
		if err != nil {
			f.inside = &head{} // what cannot be read is left out, up to its end
		} else {
			f.inside, content = &h, rest
		}
	}
	h := f.inside
	if end {
		f.inside, content = nil, h.content(content)
		if r.lines > 0 {
			r.lines--
		}
	}
	if h.stream == "" {
		return nil
	}
	return r.out.write(h, content)
}

// output puts lines to their streams.
type output struct {
	stdout, stderr io.Writer
	since          time.Time
	timestamps     bool
	left           int64 // bytes; negative: any
	fresh          bool  // the next piece begins a line of what the container wrote
	buf            []byte
	// newest is the time of the last line, whether it was wanted or not.
	newest time.Time
}

func newOutput(o *Options, stdout, stderr io.Writer) *output {
	return &output{stdout: stdout, stderr: stderr, since: o.Since, timestamps: o.Timestamps, left: o.Limit, fresh: true}
}

func (w *output) write(h *head, content []byte) error {
	w.newest = h.at
	to := w.stdout
	if h.stream == "stderr" {
		to = w.stderr
	}
	if h.at.Before(w.since) || to == nil {
		return nil
	}
	if w.timestamps && w.fresh {
		w.buf = append(h.at.AppendFormat(w.buf[:0], timeOut), ' ')
		content = append(w.buf, content...)
	}
	if len(content) == 0 {
		return nil
	}
	w.fresh = content[len(content)-1] == '\n'
	if w.left >= 0 && int64(len(content)) >= w.left {
		if _, err := to.Write(content[:w.left]); err != nil {
			return err
		}
		return errEnough
	}
	if w.left >= 0 {
		w.left -= int64(len(content))
	}
	_, err := to.Write(content)
	return err
}

// flush flushes the writers.
func (w *output) flush() error { return errors.Join(flush(w.stdout), flush(w.stderr)) }

// flush flushes a writer that buffers.
func flush(w io.Writer) error {
	if f, ok := w.(interface{ Flush() error }); ok {
		return f.Flush()
	}
	return nil
}

// seekTail moves to where the last n lines begin, and returns how many lines are missing to n.
func (f *logFile) seekTail(ctx context.Context, n int64) (missing int64, err error) {
	f.at, err = f.Seek(0, io.SeekEnd)
	if err != nil || n == 0 || f.at == 0 {
		return n, err
	}
	buf, end := make([]byte, bufferSize), f.at
	for f.at > 0 {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		size := min(int64(len(buf)), f.at)
		f.at -= size
		if _, err := f.ReadAt(buf[:size], f.at); err != nil && err != io.EOF {
			return 0, fmt.Errorf("read the end of log %s: %w", f.Name(), err)
		}
		for i := size - 1; i >= 0; i-- {
			if buf[i] != '\n' || f.at+i == end-1 { // the line feed at the very end begins no line
				continue
			}
			if n--; n == 0 {
				f.at += i + 1
				return 0, nil
			}
		}
	}
	return n - 1, nil
}
