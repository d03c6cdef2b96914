package logs

import (
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// keepOld is how long a file is looked at after the runtime has opened the next one: it may have a line under way, since it
// changes over one stream after the other.
const keepOld = 5 * time.Second

// follow reads what is there, then what comes, through each rotation, until the container has ended or ctx does.
func (r *reading) follow(ctx context.Context) error {
	changes, stop, err := r.watch.add(r.dir)
	if err != nil {
		return fmt.Errorf("follow log: %w", err)
	}
	defer stop()
	ended := false
	for {
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
		case <-r.o.Ended:
			ended = true // one round more: what was written before the end may not be read yet
		}
	}
}

// round reads to the end of the newest file. last: nothing will be written any more.
func (r *reading) round(ctx context.Context, last bool) error {
	for {
		if err := r.drainOld(ctx, last); err != nil {
			return err
		}
		if err := r.drain(ctx, false); err != nil {
			return err
		}
		moved, err := r.advance()
		if err != nil {
			return err
		}
		if !moved {
			break
		}
	}
	if last {
		return r.drain(ctx, true)
	}
	return nil
}

// drainOld reads what has still come to the file before, and lets go of it when nothing can come any more.
func (r *reading) drainOld(ctx context.Context, last bool) error {
	if r.old == nil {
		return nil
	}
	old := r.old
	over := last || time.Since(old.info.left) > keepOld
	if err := old.drain(ctx, over); err != nil {
		return err
	}
	if over {
		old.close()
		r.old = nil
	}
	return nil
}

// advance goes on to the file after this one, if there is one. It is called at the end of the present file.
func (r *reading) advance() (moved bool, err error) {
	for range maxRaces {
		name, err := r.next()
		if err != nil || name == "" {
			return false, err
		}
		f, info, err := regular(r.dir, name)
		if errors.Is(err, unix.ENOENT) {
			continue // it was renamed, compressed or removed meanwhile
		}
		if err != nil {
			return false, fmt.Errorf("follow log: %w", err)
		}
		return true, r.change(f, info, name)
	}
	return false, nil
}

// change makes f the present file.
func (r *reading) change(f *os.File, info os.FileInfo, name string) error {
	before := &reading{file: r.file, info: r.info, at: r.at, inside: r.inside, out: r.out, lines: r.lines}
	before.info.left = time.Now()
	if r.old != nil {
		r.old.close()
	}
	if r.unpacked != nil {
		before.close()
		before = nil
	}
	r.old, r.file, r.info, r.at, r.inside, r.unpacked, r.key = before, f, fileInfo{FileInfo: info}, 0, nil, nil, ""
	if name == r.name {
		return nil
	}
	r.key = name
	if !strings.HasSuffix(name, gz) {
		return nil
	}
	z, err := gzip.NewReader(bufio.NewReader(f))
	if err != nil {
		return fmt.Errorf("follow log: unpack %s: %w", f.Name(), err)
	}
	r.unpacked = z
	return nil
}

// next names the file that follows the present one, empty while there is none.
func (r *reading) next() (string, error) {
	live, err := r.stat(r.name)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return "", err
	}
	if live != nil && os.SameFile(live, r.info.FileInfo) {
		r.key = ""
		if live.Size() < r.at { // somebody has emptied it
			r.at, r.inside = 0, nil
		}
		return "", nil
	}
	rotated, err := r.rotated()
	if err != nil {
		return "", err
	}
	i, err := r.place(rotated)
	if err != nil {
		return "", err
	}
	if i < len(rotated) {
		return rotated[i], nil
	}
	if live == nil {
		return "", nil
	}
	return r.name, nil
}

// stat looks at an entry of the directory, nil where there is none.
func (r *reading) stat(name string) (os.FileInfo, error) {
	f, err := openAt(r.dir, name, unix.O_PATH)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Stat()
}

// rotated are the files that the log was rotated to, the oldest first.
func (r *reading) rotated() ([]string, error) {
	entries, err := r.dir.ReadDir(-1)
	if _, seek := r.dir.Seek(0, 0); err == nil {
		err = seek
	}
	if err != nil {
		return nil, fmt.Errorf("follow log: %w", err)
	}
	return rotatedOf(r.name, entries), nil
}

// rotatedOf picks the files that a log was rotated to, the oldest first; of one that is just being compressed the original.
func rotatedOf(name string, entries []fs.DirEntry) []string {
	var all []string
	for _, e := range entries {
		if n := e.Name(); strings.HasPrefix(n, name+".") && !strings.HasSuffix(n, tmp) {
			all = append(all, n)
		}
	}
	slices.Sort(all) // the times in the names are in the order of time; "x" comes before "x.gz"
	return slices.CompactFunc(all, func(a, b string) bool { return a+gz == b })
}

// place is the index of the rotated file that follows the present one.
func (r *reading) place(rotated []string) (int, error) {
	if r.key == "" {
		for _, name := range rotated {
			if info, err := r.stat(name); err == nil && os.SameFile(info, r.info.FileInfo) {
				r.key = name
			}
		}
	}
	if r.key != "" {
		stem := strings.TrimSuffix(r.key, gz)
		i, found := slices.BinarySearchFunc(rotated, stem, func(a, b string) int { return strings.Compare(strings.TrimSuffix(a, gz), b) })
		if found {
			i++
		}
		return i, nil
	}
	return r.placeByTime(rotated)
}

// placeByTime serves a reader so slow that its file has been rotated and compressed behind its back: what it has not read
// begins with the first file whose lines are all newer than those it has.
func (r *reading) placeByTime(rotated []string) (int, error) {
	for i, name := range rotated {
		at, err := r.firstTime(name)
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return 0, err
		}
		if err == nil && !at.Before(r.out.newest) {
			return i, nil
		}
	}
	return len(rotated), nil
}

// firstTime is the time of the first line of a rotated file, zero where it has none.
func (r *reading) firstTime(name string) (time.Time, error) {
	f, info, err := regular(r.dir, name)
	if err != nil {
		return time.Time{}, err
	}
	probe := &reading{dir: r.dir, name: filepath.Base(r.name), out: newOutput(&Options{Limit: -1}, nil, nil), lines: 1}
	probe.file, probe.info = f, fileInfo{FileInfo: info}
	defer probe.close()
	if strings.HasSuffix(name, gz) {
		z, err := gzip.NewReader(bufio.NewReader(f))
		if err != nil {
			return time.Time{}, fmt.Errorf("follow log: unpack %s: %w", f.Name(), err)
		}
		probe.unpacked = z
	}
	err = probe.drain(context.Background(), true)
	return probe.out.newest, err
}
