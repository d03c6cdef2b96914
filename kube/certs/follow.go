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

// settle is how long to wait after a change before the files are read: programs write several files one after the
// other.
const settle = 200 * time.Millisecond

// follow calls changed when the digest of the files differs from last, until ctx ends. It watches their directories,
// because most files are replaced by a rename, and some are links that change.
func follow(ctx context.Context, files []string, last [sha256.Size]byte, log *slog.Logger, changed func()) {
	w, err := inotify.New()
	if err != nil {
		log.Warn("cannot watch certificate files, changes take effect with the next restart", "err", err)
		return
	}
	defer w.Close()
	var dirs []string
	for _, f := range files {
		if d := filepath.Dir(f); !slices.Contains(dirs, d) {
			dirs = append(dirs, d)
			if err := w.Add(d); err != nil {
				log.Warn("cannot watch a certificate file, its changes take effect with the next restart",
					"directory", d, "err", err)
			}
		}
	}
	timer := time.NewTimer(0) // for changes before the watch
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
