package logs

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nodelet/nodelet/config"
	"github.com/nodelet/nodelet/host/beneath"
	"github.com/nodelet/nodelet/internal/backoff"
	"github.com/nodelet/nodelet/internal/periodic"
)

const (
	// gz is the suffix of a compressed log, tmp of one that is being compressed.
	gz  = ".gz"
	tmp = ".tmp"
	// rotatedAt is the time in the name of a rotated log.
	rotatedAt = "20060102-150405"
	// hugeFactor is how many times MaxBytes a rotated log may have to be compressed. Others stay: they take long, and
	// everybody who can write to the directory can put one there.
	hugeFactor = 100
)

// A Log is the log of a running container.
type Log struct {
	// ID is the container's, Path its log file as the CRI names it.
	ID, Path string
}

// Rotator rotates the logs of running containers. Create it with Settings.
type Rotator struct {
	Dir *Dir
	// MaxBytes is the size from which on a log is rotated; negative: never. MaxFiles counts the newest and the rotated
	// ones.
	MaxBytes int64
	MaxFiles int
	// Workers bounds how many logs are rotated at once; Interval is the time between two checks of their sizes.
	Workers  int
	Interval time.Duration
	// List returns the logs of the running containers.
	List func(context.Context) ([]Log, error)
	// Reopen asks the runtime to reopen the log of a container.
	Reopen func(ctx context.Context, id string) error
	Log    *slog.Logger
	// now is time.Now, except in tests.
	now func() time.Time

	// aside are the goroutines that compress what rounds have rotated. batch lets them do so one after the other. packing
	// has the paths of the logs with such files.
	aside   sync.WaitGroup
	batch   sync.Mutex
	packing sync.Map
}

// Settings returns what a Rotator needs of the configuration. The caller adds the rest.
func Settings(c *config.Config) *Rotator {
	k := &c.Kubelet
	size := resource.MustParse(k.ContainerLogMaxSize) // checked by config.Load
	return &Rotator{
		MaxBytes: size.Value(),
		MaxFiles: int(*k.ContainerLogMaxFiles),
		Workers:  int(*k.ContainerLogMaxWorkers),
		Interval: k.ContainerLogMonitorInterval.Duration,
		now:      time.Now,
	}
}

// Run rotates logs until ctx ends.
func (r *Rotator) Run(ctx context.Context) {
	if r.MaxBytes < 0 {
		return
	}
	defer r.aside.Wait()
	for backoff.Sleep(ctx, periodic.Until(r.Interval)) {
		r.Round(ctx)
	}
}

// Round checks all logs once and rotates those that are too large. Older rotated files are compressed later, because
// that may take long.
func (r *Rotator) Round(ctx context.Context) {
	all, err := r.List(ctx)
	if err != nil {
		if ctx.Err() == nil {
			r.Log.Warn("cannot list container logs for rotation", "err", err)
		}
		return
	}
	root, err := r.Dir.root()
	if err != nil {
		if !errors.Is(err, unix.ENOENT) {
			r.Log.Warn("cannot open the directory of container logs for rotation", "err", err)
		}
		return
	}
	defer root.Close()
	var due []Log // one after the other, because nearly all logs stay as they are
	for _, l := range all {
		is, err := r.due(root, l)
		r.warn(ctx, l, err)
		if is {
			due = append(due, l)
		}
	}
	if len(due) == 0 {
		return
	}
	old := make([][]string, len(due))
	r.each(ctx, due, func(i int, l Log) (err error) {
		old[i], err = r.rotate(ctx, l)
		return err
	})
	r.aside.Go(func() {
		r.batch.Lock()
		defer r.batch.Unlock()
		r.each(ctx, due, func(i int, l Log) error { return r.compress(ctx, l, old[i]) })
	})
}

// each calls do for all logs, Workers at a time, and logs the errors.
func (r *Rotator) each(ctx context.Context, all []Log, do func(i int, l Log) error) {
	var g errgroup.Group
	g.SetLimit(r.Workers)
	for i, l := range all {
		g.Go(func() error {
			r.warn(ctx, l, do(i, l))
			return nil
		})
	}
	_ = g.Wait()
}

// warn logs the error of a log, if there is one.
func (r *Rotator) warn(ctx context.Context, l Log, err error) {
	if err != nil && ctx.Err() == nil {
		r.Log.Warn("cannot rotate a container log, trying again", "container", l.ID, "log", l.Path, "err", err,
			"retryIn", r.Interval)
	}
}

// due reports whether a log has to be rotated, or is missing. root is the directory of logs.
func (r *Rotator) due(root *os.File, l Log) (bool, error) {
	rel, err := r.Dir.below(l.Path)
	if err != nil {
		return false, err
	}
	info, err := statAt(root, rel)
	if errors.Is(err, unix.ENOENT) {
		return true, nil
	}
	return err == nil && info.Mode&unix.S_IFMT == unix.S_IFREG && info.Size >= r.MaxBytes, err
}

// rotate gives a container a new log, and returns older ones to compress; none while others of it are being compressed.
// As with the kubelet, the file that was written last is not among them: it stays uncompressed for a while, for
// collectors that still read it.
func (r *Rotator) rotate(ctx context.Context, l Log) (old []string, err error) {
	dir, err := r.open(l)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil // the pod is going
	}
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	if !dir.has(dir.name) { // removed, or renamed by an agent that then ended
		return nil, r.Reopen(ctx, l.ID)
	}
	keep := max(0, r.MaxFiles-2)
	_, packing := r.packing.Load(l.Path)
	all, err := dir.tidy(keep, packing)
	if err != nil {
		return nil, err
	}
	if !packing {
		old = all[max(0, len(all)-keep):]
	}
	if len(old) > 0 {
		r.packing.Store(l.Path, true)
	}
	return old, dir.swap(nextName(dir.name, all, r.now()), func() error { return r.Reopen(ctx, l.ID) })
}

// nextName returns the name to which a log is rotated after the rotated logs all. It follows all names that are times,
// whatever the time of day was set to: readers and tidy know the order of the files by their names.
func nextName(name string, all []string, now time.Time) string {
	next := now.Format(rotatedAt)
	for _, rotated := range all {
		at := strings.TrimSuffix(strings.TrimPrefix(rotated, name+"."), gz)
		if last, err := time.Parse(rotatedAt, at); err == nil {
			next = max(next, last.Add(time.Second).Format(rotatedAt))
		}
	}
	return name + "." + next
}

// compress compresses rotated logs of a container.
func (r *Rotator) compress(ctx context.Context, l Log, old []string) error {
	if len(old) == 0 {
		return nil
	}
	defer r.packing.Delete(l.Path)
	dir, err := r.open(l)
	if errors.Is(err, unix.ENOENT) {
		return nil // the pod is going
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	for _, name := range old {
		err = errors.Join(err, dir.compress(ctx, name, r.MaxBytes*hugeFactor))
	}
	return err
}

// open opens the directory of a container's log.
func (r *Rotator) open(l Log) (*rotation, error) {
	dir, err := r.Dir.open(filepath.Dir(l.Path), os.O_RDONLY)
	return &rotation{File: dir, name: filepath.Base(l.Path), moving: &r.Dir.moving}, err
}

// rotation is the directory of one container's logs.
type rotation struct {
	*os.File
	name   string
	moving *sync.RWMutex
}

func (d *rotation) fd() int { return int(d.File.Fd()) }

func (d *rotation) has(name string) bool {
	var st unix.Stat_t
	return unix.Fstatat(d.fd(), name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil
}

func (d *rotation) remove(name string) error {
	if err := unix.Unlinkat(d.fd(), name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove old log %s: %w", filepath.Join(d.File.Name(), name), err)
	}
	return nil
}

// tidy removes what an interrupted round has left, and all rotated logs except the newest few. packing says that some
// are being compressed. It returns the names of all rotated logs, the oldest first.
func (d *rotation) tidy(keep int, packing bool) ([]string, error) {
	d.moving.Lock()
	defer d.moving.Unlock()
	entries, err := d.File.ReadDir(-1)
	if err != nil {
		return nil, err
	}
	names := map[string]bool{}
	for _, e := range entries {
		names[e.Name()] = true
	}
	for name := range names {
		if strings.HasPrefix(name, d.name+".") && (strings.HasSuffix(name, tmp) && !packing || names[name+gz]) {
			if err := d.remove(name); err != nil {
				return nil, err
			}
		}
	}
	old := rotatedOf(d.name, entries)
	for i, name := range old {
		if names[name+gz] {
			old[i] = name + gz
		}
	}
	for _, name := range old[:max(0, len(old)-keep)] {
		if err := d.remove(name); err != nil {
			return nil, err
		}
	}
	return old, nil
}

// compress puts a rotated log of at most maxSize bytes into a file with the suffix gz; it has that name only when it is
// complete.
func (d *rotation) compress(ctx context.Context, name string, maxSize int64) (err error) {
	if strings.HasSuffix(name, gz) {
		return nil
	}
	from, info, err := regular(d.File, name)
	if errors.Is(err, unix.ENOENT) {
		return nil // a later round has removed it
	}
	if err != nil {
		return err
	}
	defer from.Close()
	if info.Size() > maxSize {
		return nil
	}
	fd, err := unix.Openat(d.fd(), name+tmp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC,
		uint32(info.Mode().Perm()))
	if err != nil {
		return fmt.Errorf("compress log %s: %w", from.Name(), err)
	}
	to := os.NewFile(uintptr(fd), from.Name()+tmp)
	z := gzip.NewWriter(to)
	if _, err = io.CopyN(z, untilDone{ctx, from}, info.Size()); err == nil {
		err = errors.Join(z.Close(), to.Sync()) // a power cut must not take what the original still has
	}
	err = errors.Join(err, to.Close())
	d.moving.Lock()
	defer d.moving.Unlock()
	if err == nil {
		err = unix.Renameat(d.fd(), name+tmp, d.fd(), name+gz)
	}
	if err != nil {
		_ = d.remove(name + tmp)
		return fmt.Errorf("compress log %s: %w", from.Name(), err)
	}
	return d.remove(name)
}

// untilDone is a reader that stops when its context ends.
type untilDone struct {
	ctx context.Context
	io.Reader
}

func (r untilDone) Read(b []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.Reader.Read(b)
}

// swap renames the log and lets the runtime open a new one. If the runtime fails, the log gets its name back, so that
// collectors still find it.
func (d *rotation) swap(rotated string, reopen func() error) error {
	if err := d.rename(d.name, rotated); err != nil {
		return err
	}
	if err := reopen(); err != nil {
		return errors.Join(fmt.Errorf("have the runtime reopen the log: %w", err), d.rename(rotated, d.name))
	}
	return nil
}

func (d *rotation) rename(from, to string) error {
	d.moving.Lock()
	defer d.moving.Unlock()
	if err := beneath.Move(d.File, from, d.File, to); err != nil {
		return fmt.Errorf("rename log %s to %s: %w", filepath.Join(d.File.Name(), from), to, err)
	}
	return nil
}
