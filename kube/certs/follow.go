package certs

import (
	"context"
	"crypto/sha256"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/nodelet/nodelet/host/inotify"
)

// settle is how long files are left alone after a change before they are read: who writes several writes them at once.
const settle = 200 * time.Millisecond

// follow calls changed when the files hold something else than last, their digest as the caller knows it, until ctx ends. The directories are watched, not
// the files: most are replaced by a rename, some are links that are turned.
func follow(ctx context.Context, files []string, last [sha256.Size]byte, log *slog.Logger, changed func()) {
	w, err := inotify.New()
	if err != nil {
		log.Warn("changes of certificate files will not be seen before the next start", "err", err)
		return
	}
	defer w.Close()
	var dirs []string
	for _, f := range files {
		if d := filepath.Dir(f); !slices.Contains(dirs, d) {
			dirs = append(dirs, d)
			if err := w.Add(d); err != nil {
				log.Warn("changes of a certificate file will not be seen before the next start", "directory", d, "err", err)
			}
		}
	}
	timer := time.NewTimer(0) // what changed before the watch began
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.Changes():
			timer.Reset(settle)
		case <-timer.C:
			if now := digest(files); now != last {
				last = now
				changed()
			}
		}
	}
}

// digest is what the files hold. A file that cannot be read holds nothing.
func digest(files []string) [sha256.Size]byte {
	h := sha256.New()
	for _, f := range files {
		text, _ := os.ReadFile(f)
		sum := sha256.Sum256(text)
		h.Write(sum[:])
	}
	return [sha256.Size]byte(h.Sum(nil))
}
