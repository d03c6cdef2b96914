package certs

import (
	"context"
	"crypto/sha256"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/nodelet/nodelet/host/inotify"
)

// settle is how long to wait after a change before the files are read: programs write several files one after the
// other.
const settle = 200 * time.Millisecond

// lookAnyway is the longest time between two looks at files: not every change is reported. The file behind a link may
// be in another directory, and a network file system reports no changes of other machines.
const lookAnyway = 30 * time.Second

// follow calls changed when the digest of the files differs from last, until ctx ends. It watches their directories,
// because most files are replaced by a rename, and some are links that change.
func follow(ctx context.Context, files []string, last [sha256.Size]byte, log *slog.Logger, changed func()) {
	var dirs []string
	for _, f := range files {
		dirs = append(dirs, filepath.Dir(f))
	}
	compare := func() {
		if now := digest(files); now != last {
			last = now
			changed()
		}
	}
	inotify.Follow(ctx, dirs, settle, lookAnyway, compare, func(err error, retryIn time.Duration) {
		log.Warn("cannot watch certificate files, polling them", "err", err, "retryIn", retryIn)
	})
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
