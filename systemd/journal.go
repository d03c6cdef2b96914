package systemd

import (
	"context"
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

// journal writes records in the format of journald: with a priority prefix, and without time and level, which journald
// adds itself.
type journal struct{ byLevel [4]slog.Handler } // debug, info, warn, error

// LogHandler returns a handler for a log that w passes to standard error: as JSON, as records of journald if standard
// error is connected to the journal, or else as text. Records of journald go to its socket, with fields; without it
// they go to w.
func LogHandler(w io.Writer, json bool, level slog.Leveler) slog.Handler {
	switch {
	case json:
		return slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level, AddSource: true, ReplaceAttr: jsonAttr})
	case ToJournal(os.Stderr):
		return newFields(journalSocket, newJournal(w, level), level)
	}
	return slog.NewTextHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: textAttr})
}

func newJournal(w io.Writer, level slog.Leveler) journal {
	var j journal
	for i, priority := range []string{"<7>", "<6>", "<4>", "<3>"} { // see sd-daemon(3)
		j.byLevel[i] = plainText(prefixed{w, priority}, level)
	}
	return j
}

// prefixed writes a priority and the record in one write.
type prefixed struct {
	w        io.Writer
	priority string
}

func (p prefixed) Write(line []byte) (int, error) {
	if _, err := p.w.Write(append([]byte(p.priority), line...)); err != nil {
		return 0, err
	}
	return len(line), nil
}

func (j journal) of(l slog.Level) slog.Handler {
	switch {
	case l <= slog.LevelDebug:
		return j.byLevel[0]
	case l < slog.LevelWarn:
		return j.byLevel[1]
	case l < slog.LevelError:
		return j.byLevel[2]
	}
	return j.byLevel[3]
}

// Enabled reports whether records of the level are logged.
func (j journal) Enabled(ctx context.Context, l slog.Level) bool { return j.of(l).Enabled(ctx, l) }

// Handle is part of slog.Handler.
func (j journal) Handle(ctx context.Context, r slog.Record) error {
	return j.of(r.Level).Handle(ctx, r)
}

// WithAttrs is part of slog.Handler.
func (j journal) WithAttrs(as []slog.Attr) slog.Handler {
	return j.with(func(h slog.Handler) slog.Handler { return h.WithAttrs(as) })
}

// WithGroup is part of slog.Handler.
func (j journal) WithGroup(name string) slog.Handler {
	return j.with(func(h slog.Handler) slog.Handler { return h.WithGroup(name) })
}

func (j journal) with(change func(slog.Handler) slog.Handler) slog.Handler {
	for i, h := range j.byLevel {
		j.byLevel[i] = change(h)
	}
	return j
}
