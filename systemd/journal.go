package systemd

import (
	"fmt"
	"io"
	"log/slog"
	"os"

	"golang.org/x/sys/unix"
)

// ToJournal reports whether f is connected to the journal (JOURNAL_STREAM, see systemd.exec(5)).
func ToJournal(f *os.File) bool {
	var dev, ino uint64
	if n, err := fmt.Sscanf(os.Getenv("JOURNAL_STREAM"), "%d:%d", &dev, &ino); n != 2 || err != nil {
		return false
	}
	var st unix.Stat_t
	return unix.Fstat(int(f.Fd()), &st) == nil && uint64(st.Dev) == dev && st.Ino == ino
}

// LogHandler returns a handler for a log that w passes to standard error: as JSON, as records of journald if standard
// error is connected to the journal, or else as text. Records of journald go to its socket, with fields; without it
// they go to w.
func LogHandler(w io.Writer, json bool, level slog.Leveler) slog.Handler {
	switch {
	case json:
		return slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level, AddSource: true, ReplaceAttr: jsonAttr})
	case ToJournal(os.Stderr):
		return newJournal(journalSocket, w, level)
	}
	return slog.NewTextHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: textAttr})
}
