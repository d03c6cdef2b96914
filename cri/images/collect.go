package images

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/config"
	"github.com/nodelet/nodelet/cri"
	"github.com/nodelet/nodelet/host/machine"
	"github.com/nodelet/nodelet/internal/backoff"
)

const (
	// collectEvery is how often the disk of the images is looked at, as with the kubelet.
	collectEvery = 5 * time.Minute
	// detectRetry is when the first list of the images is tried again.
	detectRetry = 10 * time.Second
	// mostLate is how many calls without an answer end a removal of images: an eviction for disk waits for it.
	mostLate = 2
)

// CollectorOptions are the KubeletConfiguration's settings of image garbage collection.
type CollectorOptions struct {
	// HighPercent is the usage of the disk from which on images are removed (imageGCHighThresholdPercent); 100 turns that
	// off without MaximumAge. LowPercent is the usage at which the removal ends (imageGCLowThresholdPercent).
	HighPercent, LowPercent int
	// MinimumAge is how long an image stays after it was first seen, or a pod asked for it (imageMinimumGCAge).
	MinimumAge time.Duration
	// MaximumAge is how long an image may be unused, whatever the usage of the disk (imageMaximumGCAge); 0: no limit.
	MaximumAge time.Duration
	// Event records an event about the node.
	Event func(eventType, reason, message string)
	// Removed is called when images have been removed.
	Removed func()
	// Collected is called for each image that was removed, with the reason: age or space.
	Collected func(reason string)
	// Log logs each image that is removed.
	Log *slog.Logger
}

// CollectorSettings returns the settings of the configuration. The caller adds the rest.
func CollectorSettings(c *config.Config) CollectorOptions {
	k := &c.Kubelet
	return CollectorOptions{
		HighPercent: int(*k.ImageGCHighThresholdPercent),
		LowPercent:  int(*k.ImageGCLowThresholdPercent),
		MinimumAge:  k.ImageMinimumGCAge.Duration,
		MaximumAge:  k.ImageMaximumGCAge.Duration,
	}
}

// Collector removes images that no container uses. It is safe for use by many goroutines. Make one with NewCollector.
type Collector struct {
	runtime *cri.Client
	o       CollectorOptions
	// fileSystem reads the file system at a path.
	fileSystem func(path string) (machine.FileSystem, error)
	// began is when this run of the agent started: earlier uses of an image are not known.
	began time.Time
	// collecting is held while images are chosen and removed.
	collecting sync.Mutex

	mu sync.Mutex
	// known is what this run of the agent has seen of each image, by ID.
	known map[string]*record
}

// record is what is known of one image.
type record struct {
	// seen is when it was first seen, used when a container last was seen to use it, wanted when a pod last asked for
	// it: its container may not have been made yet. late is when its removal last had no answer; such an image comes last.
	seen, used, wanted, late time.Time
}

// NewCollector makes a collector; Run runs it.
func NewCollector(runtime *cri.Client, o CollectorOptions) *Collector {
	return &Collector{
		runtime:    runtime,
		o:          o,
		fileSystem: machine.ReadFileSystem,
		began:      time.Now(),
		known:      map[string]*record{},
	}
}

// Wanted notes that a pod is about to use an image, which keeps it for the minimum age.
func (c *Collector) Wanted(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	r := c.note(id, now)
	r.used, r.wanted = now, now
}

// note returns the record of an image, and makes one for a new image. c.mu is held.
func (c *Collector) note(id string, now time.Time) *record {
	r := c.known[id]
	if r == nil {
		r = &record{seen: now}
		c.known[id] = r
	}
	return r
}

// Run detects the images at once, since their age counts from then, and collects every five minutes until ctx ends.
func (c *Collector) Run(ctx context.Context) {
	c.detect(ctx)
	tick := time.NewTicker(collectEvery)
	defer tick.Stop()
	failed := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		err := c.Collect(ctx)
		if err != nil && ctx.Err() == nil {
			c.o.Log.Warn("image garbage collection did not succeed, trying again", "err", err, "retryIn", collectEvery)
			if failed { // once may be a runtime that is just away
				c.o.Event("Warning", "ImageGCFailed", err.Error())
			}
		}
		failed = err != nil
	}
}

// detect lists the images until that succeeds once. Without it, their age would count from the first collection, and no
// image could be removed for a disk that fills up before.
func (c *Collector) detect(ctx context.Context) {
	for {
		c.collecting.Lock()
		_, err := c.unused(ctx, time.Now())
		c.collecting.Unlock()
		if err == nil || ctx.Err() != nil {
			return
		}
		c.o.Log.Warn("cannot list the images, trying again", "err", err, "retryIn", detectRetry)
		if !backoff.Sleep(ctx, detectRetry) {
			return
		}
	}
}

// Collect removes images that have been unused for too long, and, if the disk is too full, others until it is not, also
// if an old one cannot be removed.
func (c *Collector) Collect(ctx context.Context) error {
	c.collecting.Lock()
	defer c.collecting.Unlock()
	now := time.Now()
	all, err := c.unused(ctx, now)
	if err != nil {
		return err
	}
	rest, err := c.removeOld(ctx, now, all)
	if c.o.HighPercent >= 100 && c.o.MaximumAge == 0 { // as with the kubelet
		return err
	}
	return errors.Join(err, c.freeSpace(ctx, now, rest))
}

// freeSpace removes images until the disk is not too full.
func (c *Collector) freeSpace(ctx context.Context, now time.Time, all []candidate) error {
	capacity, available, err := c.disk(ctx)
	if err != nil {
		return err
	}
	usage := 100 - int(available*100/capacity)
	if usage < c.o.HighPercent {
		return nil
	}
	want := capacity*uint64(100-c.o.LowPercent)/100 - available
	c.o.Log.Info("disk usage is above the image garbage collection threshold, removing unused images",
		"usage", usage, "high", c.o.HighPercent, "bytes", want)
	freed, err := c.remove(ctx, now, "space", all, want)
	if err == nil && freed < want {
		//nolint:staticcheck // the kubelet's message
		err = fmt.Errorf("Insufficient free disk space on the node's image filesystem (%d%% of %s used). "+
			"Failed to free sufficient space by deleting unused images (freed %d bytes). "+
			"Investigate disk usage, as it could be used by active images, logs, volumes, or other data.",
			usage, size(capacity), freed)
		c.o.Event("Warning", "FreeDiskSpaceFailed", err.Error())
	}
	return err
}

// size returns a number of bytes as the kubelet writes it in the message above, such as 19.6 GiB.
func size(bytes uint64) string {
	unit, n := 0, float64(bytes)
	for ; n >= 1024 && unit < 4; unit++ {
		n /= 1024
	}
	if unit == 0 {
		return fmt.Sprintf("%d B", bytes)
	}
	return fmt.Sprintf("%.1f %ciB", n, "KMGT"[unit-1])
}

// RemoveUnused removes all images that no container uses and that are not too young, because the disk is needed.
func (c *Collector) RemoveUnused(ctx context.Context) error {
	c.collecting.Lock()
	defer c.collecting.Unlock()
	now := time.Now()
	all, err := c.unused(ctx, now)
	if err == nil {
		_, err = c.remove(ctx, now, "space", all, ^uint64(0))
	}
	return err
}

// candidate is an image that may be removed.
type candidate struct {
	*runtimeapi.Image
	record
}

// unused lists the images that no container uses, in the order in which they are removed: those that were used longest
// ago first. It brings what is known up to date.
func (c *Collector) unused(ctx context.Context, now time.Time) ([]candidate, error) {
	images, err := c.runtime.ListImages(ctx)
	if err != nil {
		return nil, err
	}
	used, err := c.runtime.ImagesInUse(ctx) // after the list: an image that is not in it is not judged
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.known
	c.known = make(map[string]*record, len(images))
	var all []candidate
	for _, i := range images {
		if r := before[i.Id]; r != nil {
			c.known[i.Id] = r
		}
		r := c.note(i.Id, now)
		switch {
		case inUse(i, used):
			r.used = now
		case !i.Pinned:
			all = append(all, candidate{i, *r})
		}
	}
	sort.Slice(all, func(i, j int) bool {
		a, b := &all[i], &all[j]
		return cmp.Or(a.late.Compare(b.late), a.used.Compare(b.used), a.seen.Compare(b.seen), cmp.Compare(a.Id, b.Id)) < 0
	})
	return all, nil
}

func inUse(i *runtimeapi.Image, used map[string]bool) bool {
	return used[i.Id] || slices.ContainsFunc(i.RepoTags, func(n string) bool { return used[n] }) ||
		slices.ContainsFunc(i.RepoDigests, func(n string) bool { return used[n] })
}

// removeOld removes the images that have been unused for longer than the maximum age, and returns the others.
func (c *Collector) removeOld(ctx context.Context, now time.Time, all []candidate) (rest []candidate, err error) {
	if c.o.MaximumAge == 0 || now.Sub(c.began) <= c.o.MaximumAge {
		return all, nil
	}
	var old []candidate
	for _, i := range all {
		if now.Sub(i.used) > c.o.MaximumAge && now.Sub(i.seen) > c.o.MaximumAge {
			old = append(old, i)
		} else {
			rest = append(rest, i)
		}
	}
	_, err = c.remove(ctx, now, "age", old, ^uint64(0))
	return rest, err
}

// remove removes images in order, for a reason, until it has freed so many bytes. It continues after an image that
// cannot be removed, but not after mostLate calls without an answer.
func (c *Collector) remove(ctx context.Context, now time.Time, reason string, all []candidate, want uint64) (
	freed uint64, err error) {
	var errs []error
	late := 0
	for _, i := range all {
		if freed >= want || late == mostLate || ctx.Err() != nil {
			break
		}
		if !c.mayRemove(i.Id, now) {
			continue
		}
		if err := c.removeImage(ctx, i.Image); err != nil {
			errs = append(errs, err)
			if cri.IsDeadline(err) {
				late++
				c.putLast(i.Id, now)
			}
			continue
		}
		c.o.Log.Info("image removed", "image", i.Id, "names", append(i.RepoTags, i.RepoDigests...), "bytes", i.Size)
		freed += i.Size
		c.forget(i.Id)
		c.o.Collected(reason)
	}
	if freed > 0 {
		c.o.Removed()
	}
	return freed, errors.Join(errs...)
}

// removeImage removes an image. CRI-O lists OCI artifacts as images, with their digests as IDs. It takes an ID for that
// of a real image, and removes an artifact only by its name. One without a name, because a tag has moved, stays.
func (c *Collector) removeImage(ctx context.Context, i *runtimeapi.Image) error {
	n := slices.IndexFunc(i.RepoDigests, func(name string) bool { return strings.HasSuffix(name, "@sha256:"+i.Id) })
	if n < 0 {
		return c.runtime.RemoveImage(ctx, i.Id)
	}
	name := i.RepoDigests[n]
	err := c.runtime.RemoveImage(ctx, name)
	if err != nil {
		return err
	}
	left, err := c.runtime.ImageStatus(ctx, &runtimeapi.ImageSpec{Image: i.Id})
	if left != nil {
		err = fmt.Errorf("remove artifact %s: the runtime still has it", name)
	}
	return err
}

// mayRemove reports whether the image is old enough and no pod has asked for it since it was chosen.
func (c *Collector) mayRemove(id string, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.known[id]
	return r != nil && now.Sub(r.seen) >= c.o.MinimumAge && now.Sub(r.wanted) >= c.o.MinimumAge
}

// putLast makes an image the last one that is removed next time.
func (c *Collector) putLast(id string, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.note(id, now).late = now
}

func (c *Collector) forget(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.known, id)
}

// disk returns the size of the file system that holds the images, and how much of it is available.
func (c *Collector) disk(ctx context.Context) (capacity, available uint64, err error) {
	info, err := c.runtime.ImageFsInfo(ctx)
	if err != nil {
		return 0, 0, err
	}
	for _, fs := range info.GetImageFilesystems() {
		if at := fs.GetFsId().GetMountpoint(); at != "" {
			fs, err := c.fileSystem(at)
			if err == nil && fs.Size == 0 {
				err = fmt.Errorf("the file system at %s has no size", at)
			}
			return fs.Size, min(fs.Available, fs.Size), err
		}
	}
	return 0, 0, errors.New("find the file system of the images: the runtime does not name it")
}
