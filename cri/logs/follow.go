package logs

import (
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// keepOld is how long a file is still read after the runtime has opened the next one: the runtime switches one stream
// after the other, so a line of the other may be incomplete.
const keepOld = 5 * time.Second

// pollEvery is how often a log is read that cannot be watched: the kernel allows a user few inotify instances, and
// other programs of root may have them all.
const pollEvery = time.Second

// follow reads what is there, then what is added, through each rotation, until the container has terminated or ctx
// ends.
func (r *reading) follow(ctx context.Context) error {
	var poll <-chan time.Time
	changes, stop, err := r.watch.add(r.dir)
	if err == nil {
		defer stop()
	} else {
		tick := time.NewTicker(pollEvery)
		defer tick.Stop()
		poll = tick.C
	}
	for {
		ended, moved := r.ended() // asked first: what was written before the end may not be read yet
		if err := r.round(ctx, ended); err != nil {
			return err
		}
		if ended {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changes:
		case <-poll:
		case <-moved:
		}
	}
}

func (r *reading) ended() (bool, <-chan struct{}) {
	if r.o.Ended == nil {
		return false, nil
	}
	return r.o.Ended()
}

// round reads to the end of the newest file. last: nothing more will be written.
func (r *reading) round(ctx context.Context, last bool) error {
	for {
		if err := r.drainOld(ctx, last || time.Since(r.left) > keepOld); err != nil {
			return err
		}
		if err := r.drain(ctx, r.file, false); err != nil {
			return err
		}
		renamed, err := r.renamed()
		if err != nil || !renamed {
			return errors.Join(err, r.finish(ctx, last))
		}
		// It may have grown before it was renamed; and the place of what follows is found by what was read.
		if err := r.drain(ctx, r.file, false); err != nil {
			return err
		}
		next, err := r.successor()
		if err != nil || next == nil {
			return errors.Join(err, r.finish(ctx, last))
		}
		if err := r.drainOld(ctx, true); err != nil { // the runtime is two files on: nothing more comes
			next.Close()
			return err
		}
		r.change(next)
	}
}

// finish writes a line without an end as it is, because nothing more follows.
func (r *reading) finish(ctx context.Context, last bool) error {
	if !last {
		return nil
	}
	return r.drain(ctx, r.file, true)
}

// drainOld reads what was still added to the previous file, and closes it when nothing more can follow.
func (r *reading) drainOld(ctx context.Context, over bool) error {
	if r.old == nil {
		return nil
	}
	err := r.drain(ctx, r.old, over)
	if over {
		r.old.Close()
		r.old = nil
	}
	return err
}

// change continues with the next file. The previous one is kept for a moment, unless it was complete.
func (r *reading) change(next *logFile) {
	if r.file.unpacked != nil {
		r.file.Close()
		r.file = nil
	}
	r.old, r.left = r.file, time.Now()
	r.file = next
}

// renamed reports whether the present file is no longer the newest. It also notices when the file was truncated.
func (r *reading) renamed() (bool, error) {
	live, err := r.stat(r.name)
	switch {
	case errors.Is(err, unix.ENOENT):
		return true, nil
	case err != nil:
		return false, err
	case !os.SameFile(live, r.file.info):
		return true, nil
	}
	r.file.key = ""
	if live.Size() < r.file.at {
		r.file.at, r.file.inside = 0, nil
	}
	return false, nil
}

// successor opens the file that follows the present one; nil while there is none.
func (r *reading) successor() (*logFile, error) {
	r.moving.RLock() // no rotation changes a name while the files are looked through
	defer r.moving.RUnlock()
	rotated, err := r.rotated()
	if err != nil {
		return nil, err
	}
	i, err := r.place(rotated)
	if err != nil {
		return nil, err
	}
	name := r.name
	if i < len(rotated) {
		name = rotated[i]
	}
	next, err := r.open(name)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil, nil // the runtime has not opened it yet
	case err == nil && os.SameFile(next.info, r.file.info): // it has its name back
		next.Close()
		return nil, nil
	}
	return next, err
}

// open opens a file of the log.
func (r *reading) open(name string) (*logFile, error) {
	file, info, err := regular(r.dir, name)
	if err != nil {
		return nil, fmt.Errorf("follow log: %w", err)
	}
	f := &logFile{File: file, info: info}
	if name != r.name {
		f.key = name
	}
	if strings.HasSuffix(name, gz) {
		if f.unpacked, err = gzip.NewReader(bufio.NewReader(file)); err != nil {
			return nil, errors.Join(fmt.Errorf("follow log: unpack %s: %w", file.Name(), err), file.Close())
		}
	}
	return f, nil
}

// stat returns the state of an entry of the directory, nil if there is none.
func (r *reading) stat(name string) (os.FileInfo, error) {
	f, err := openAt(r.dir, name, unix.O_PATH)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Stat()
}

// rotated returns the files that the log was rotated to, the oldest first.
func (r *reading) rotated() ([]string, error) {
	entries, err := r.dir.ReadDir(-1)
	if _, seek := r.dir.Seek(0, 0); err == nil {
		err = seek
	}
	if err != nil && !errors.Is(err, unix.ENOENT) { // the directory was removed with its pod
		return nil, fmt.Errorf("follow log: %w", err)
	}
	return rotatedOf(r.name, entries), nil
}

// rotatedOf picks the files that a log was rotated to, the oldest first; of one that is just being compressed the
// original.
func rotatedOf(name string, entries []fs.DirEntry) []string {
	var all []string
	for _, e := range entries {
		if n := e.Name(); strings.HasPrefix(n, name+".") && !strings.HasSuffix(n, tmp) {
			all = append(all, n)
		}
	}
	slices.Sort(all) // the names are in the order of rotation, see nextName; "x" comes before "x.gz"
	return slices.CompactFunc(all, func(a, b string) bool { return a+gz == b })
}

// place returns the index of the rotated file that follows the present one.
func (r *reading) place(rotated []string) (int, error) {
	if r.file.key == "" {
		for _, name := range rotated {
			if info, err := r.stat(name); err == nil && os.SameFile(info, r.file.info) {
				r.file.key = name
			}
		}
	}
	if r.file.key != "" {
		stem := strings.TrimSuffix(r.file.key, gz)
		i, found := slices.BinarySearchFunc(rotated, stem, func(a, b string) int {
			return strings.Compare(strings.TrimSuffix(a, gz), b)
		})
		if found {
			i++
		}
		return i, nil
	}
	return r.placeByTime(rotated)
}

// placeByTime serves a slow reader whose file has been rotated and compressed meanwhile: what it has not read begins
// with the first file whose first line is newer than that of the present file, and not older than any line that was
// read, or than the reading itself. The present file may have one line alone, which is then also the last that was
// read.
func (r *reading) placeByTime(rotated []string) (int, error) {
	own, err := timeOfFirst(&logFile{File: r.file.File})
	if err != nil {
		return 0, err
	}
	for i, name := range rotated {
		at, err := r.firstTime(name)
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return 0, err
		}
		if err == nil && at.After(own) && !at.Before(r.out.newest) && !at.Before(r.began) {
			return i, nil
		}
	}
	return len(rotated), nil
}

// firstTime returns the time of the first line of a rotated file, zero if it has none.
func (r *reading) firstTime(name string) (time.Time, error) {
	f, err := r.open(name)
	if err != nil {
		return time.Time{}, err
	}
	defer f.Close()
	return timeOfFirst(f)
}

// timeOfFirst returns the time of the first line of a file, zero if it has none. It reads no further than that may be:
// everybody who can write to the directory can put a file without an end there.
func timeOfFirst(f *logFile) (time.Time, error) {
	line, err := bufio.NewReaderSize(f.source(), bufferSize).ReadSlice('\n')
	if err != nil && err != bufio.ErrBufferFull && err != io.EOF {
		return time.Time{}, fmt.Errorf("read log %s: %w", f.Name(), err)
	}
	h, _, err := parse(line)
	if err != nil {
		return time.Time{}, nil
	}
	return h.at, nil
}
