package inotify

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/nodelet/nodelet/internal/backoff"
	"github.com/nodelet/nodelet/internal/periodic"
)

// Follow calls look at once, after each change in one of the directories or files, and at each interval, until ctx
// ends. settle is the time between a change and the look, so that the writer can finish. While the paths cannot be
// watched, Follow polls them; failed receives the errors, see backoff.Repeat.
func Follow(ctx context.Context, paths []string, settle, interval time.Duration, look func(),
	failed func(error, time.Duration),
) {
	backoff.Repeat(ctx, interval, func() error { return follow(ctx, paths, settle, interval, look) }, failed)
}

// follow is Follow until an error.
func follow(ctx context.Context, paths []string, settle, interval time.Duration, look func()) error {
	w, err := New()
	if err != nil {
		look()
		return err
	}
	defer w.Close()
	timer, due := time.NewTimer(0), time.Now() // what has happened since the last look
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.Changes():
			timer.Reset(min(settle, time.Until(due)))
		case <-timer.C:
			err := w.addAll(paths)
			look()
			if err != nil {
				return err
			}
			wait := periodic.Until(interval)
			timer.Reset(wait)
			due = time.Now().Add(wait)
		}
	}
}

// addAll watches directories and files. For one that does not exist it watches the nearest existing directory above.
func (w *Watcher) addAll(paths []string) (err error) {
	for _, p := range paths {
		if e := w.Add(nearest(p)); e != nil && !errors.Is(e, fs.ErrNotExist) {
			err = e
		}
	}
	return err
}

// nearest is the path itself, or the nearest directory above it that exists.
func nearest(path string) string {
	for {
		if _, err := os.Stat(path); err == nil || path == "/" || path == "." {
			return path
		}
		path = filepath.Dir(path)
	}
}
