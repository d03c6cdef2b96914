package certs

import (
	"context"
	"crypto/sha256"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/nodelet/nodelet/host/inotify"
	"github.com/nodelet/nodelet/internal/backoff"
	"github.com/nodelet/nodelet/internal/periodic"
)

// settle is how long to wait after a change before the files are read: programs write several files one after the
// other.
const settle = 200 * time.Millisecond

// lookAnyway is the longest time between two looks at files: not every change is reported. The file behind a link may
// be in another directory, and a network file system reports no changes of other machines.
const lookAnyway = 30 * time.Second

// follow calls changed when the digest of the files differs from last, until ctx ends. While the files cannot be
// watched, it polls them.
func follow(ctx context.Context, files []string, last [sha256.Size]byte, log *slog.Logger, changed func()) {
	compare := func() {
		if now := digest(files); now != last {
			last = now
			changed()
		}
	}
	backoff.Repeat(ctx, lookAnyway, func() error { return watchFiles(ctx, files, lookAnyway, compare) },
		func(err error, retryIn time.Duration) {
			log.Warn("cannot watch certificate files, polling them", "err", err, "retryIn", retryIn)
		})
}

// watchFiles calls compare at once, after each change near the files, and at each interval, until ctx ends or they
// cannot be watched. It watches their directories, because most files are replaced by a rename, and some are links that
// change.
func watchFiles(ctx context.Context, files []string, interval time.Duration, compare func()) error {
	defer compare() // what changes while nothing is watched
	w, err := inotify.New()
	if err != nil {
		return err
	}
	defer w.Close()
	for _, f := range files {
		if err := w.Add(filepath.Dir(f)); err != nil {
			return err
		}
	}
	timer, due := time.NewTimer(0), time.Now() // for changes before the watch
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.Changes():
			timer.Reset(min(settle, time.Until(due)))
		case <-timer.C:
			compare()
			wait := periodic.Until(interval)
			timer.Reset(wait)
			due = time.Now().Add(wait)
		}
	}
}

// digest returns a digest of the contents of the files. A file that cannot be read counts as empty.
func digest(files []string) [sha256.Size]byte {
	h := sha256.New()
	for _, f := range files {
		text, _ := os.ReadFile(f)
		sum := sha256.Sum256(text)
		h.Write(sum[:])
	}
	return [sha256.Size]byte(h.Sum(nil))
}
