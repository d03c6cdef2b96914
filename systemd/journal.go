package systemd

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// journalSocket takes records in the native protocol of journald, systemd.journal-fields(7).
const journalSocket = "/run/systemd/journal/socket"

// fieldNames are the fields in which journald finds the values of attributes: journalctl POD=default/web.
var fieldNames = map[string]string{
	"pod":       "POD",
	"podUID":    "UID",
	"container": "CONTAINER",
	"step":      "STEP",
	"err":       "ERR",
}

// messageIDs are the fields MESSAGE_ID of messages that alerts may use: they stay when the words change, sd-id128(3).
// docs/monitoring.md lists them.
var messageIDs = map[string]string{
	"nodelet started":                        "5c1f0a3e6c3b4a7ab0f2a2d8a6f3c901",
	"nodelet stopped; pods keep running":     "5c1f0a3e6c3b4a7ab0f2a2d8a6f3c902",
	"step failed":                            "5c1f0a3e6c3b4a7ab0f2a2d8a6f3c903",
	"pod started":                            "5c1f0a3e6c3b4a7ab0f2a2d8a6f3c904",
	"pod ended":                              "5c1f0a3e6c3b4a7ab0f2a2d8a6f3c905",
	"setting has no effect":                  "5c1f0a3e6c3b4a7ab0f2a2d8a6f3c906",
	"orphaned pod found, removing it":        "5c1f0a3e6c3b4a7ab0f2a2d8a6f3c907",
	"preempting pod to admit a critical pod": "5c1f0a3e6c3b4a7ab0f2a2d8a6f3c908",
	"node shutdown ends pods":                "5c1f0a3e6c3b4a7ab0f2a2d8a6f3c909",
	"cannot observe the pod, retrying":       "5c1f0a3e6c3b4a7ab0f2a2d8a6f3c90a",
}

// journal is a handler that sends records to journald with fields. What journald does not take goes to standard error,
// in one write with a priority in front, see sd-daemon(3). journald adds time and level itself.
type journal struct {
	conn    net.Conn // nil without journald
	stderr  io.Writer
	text    slog.Handler // writes to line
	line    *lockedBuffer
	set     []slog.Attr // of WithAttrs, outside of groups
	grouped bool
}

type lockedBuffer struct {
	sync.Mutex
	bytes.Buffer
}

func newJournal(socket string, stderr io.Writer, level slog.Leveler) *journal {
	line := &lockedBuffer{}
	j := &journal{stderr: stderr, text: plainText(&line.Buffer, level), line: line}
	if conn, err := net.Dial("unixgram", socket); err == nil {
		j.conn = conn
	}
	return j
}

// Enabled reports whether records of the level are logged.
func (j *journal) Enabled(ctx context.Context, l slog.Level) bool { return j.text.Enabled(ctx, l) }

// Handle is part of slog.Handler.
func (j *journal) Handle(ctx context.Context, r slog.Record) error {
	j.line.Lock()
	j.line.Reset()
	err := j.text.Handle(ctx, r)
	message := strings.TrimSuffix(j.line.String(), "\n")
	j.line.Unlock()
	if err != nil || j.send(r, message) {
		return err
	}
	_, err = fmt.Fprintf(j.stderr, "<%s>%s\n", priority(r.Level), message)
	return err
}

// sendLimit is how long journald may take for a record.
const sendLimit = 100 * time.Millisecond

// send sends a record as one datagram, and reports whether journald has taken it. The writer to standard error notices
// a journald that hangs.
func (j *journal) send(r slog.Record, message string) bool {
	if j.conn == nil {
		return false
	}
	_ = j.conn.SetWriteDeadline(time.Now().Add(sendLimit)) // fails with a closed socket, as does the write
	_, err := j.conn.Write(j.datagram(r, message))
	return err == nil
}

func (j *journal) datagram(r slog.Record, message string) []byte {
	var out bytes.Buffer
	put(&out, "MESSAGE", message)
	put(&out, "PRIORITY", priority(r.Level))
	put(&out, "SYSLOG_IDENTIFIER", name())
	if id := messageIDs[r.Message]; id != "" {
		put(&out, "MESSAGE_ID", id)
	}
	putAttr := func(a slog.Attr) bool {
		if name := fieldNames[a.Key]; name != "" {
			put(&out, name, a.Value.Resolve().String())
		}
		return true
	}
	for _, a := range j.set {
		putAttr(a)
	}
	if !j.grouped {
		r.Attrs(putAttr)
	}
	return out.Bytes()
}

// put writes a field. A value with a new line has its length in front.
func put(out *bytes.Buffer, name, value string) {
	out.WriteString(name)
	if strings.Contains(value, "\n") {
		out.WriteByte('\n')
		_ = binary.Write(out, binary.LittleEndian, uint64(len(value))) // a bytes.Buffer takes everything
	} else {
		out.WriteByte('=')
	}
	out.WriteString(value)
	out.WriteByte('\n')
}

// priority is the level as in syslog(3).
func priority(l slog.Level) string {
	switch {
	case l <= slog.LevelDebug:
		return "7"
	case l < slog.LevelWarn:
		return "6"
	case l < slog.LevelError:
		return "4"
	}
	return "3"
}

// WithAttrs is part of slog.Handler.
func (j *journal) WithAttrs(as []slog.Attr) slog.Handler {
	k := *j
	k.text = j.text.WithAttrs(as)
	if !j.grouped {
		k.set = append(slices.Clip(j.set), as...)
	}
	return &k
}

// WithGroup is part of slog.Handler.
func (j *journal) WithGroup(name string) slog.Handler {
	k := *j
	k.text, k.grouped = j.text.WithGroup(name), true
	return &k
}

// plainText writes records without time and level, which journald has itself.
func plainText(w io.Writer, level slog.Leveler) slog.Handler {
	return slog.NewTextHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == slog.LevelKey {
			return slog.Attr{}
		}
		return a
	}})
}

// ToJournal reports whether standard error is connected to the journal (JOURNAL_STREAM, see systemd.exec(5)).
func ToJournal() bool {
	var dev, ino uint64
	if n, err := fmt.Sscanf(os.Getenv("JOURNAL_STREAM"), "%d:%d", &dev, &ino); n != 2 || err != nil {
		return false
	}
	var st unix.Stat_t
	return unix.Fstat(int(os.Stderr.Fd()), &st) == nil && uint64(st.Dev) == dev && st.Ino == ino
}

// LogHandler returns a handler for a log that w passes to standard error: as JSON, as records of journald if standard
// error is connected to the journal, or else as text. Records of journald go to its socket, with fields; without it
// they go to w.
func LogHandler(w io.Writer, json bool, level slog.Leveler) slog.Handler {
	switch {
	case json:
		return slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level, AddSource: true, ReplaceAttr: jsonAttr})
	case ToJournal():
		return newJournal(journalSocket, w, level)
	}
	return slog.NewTextHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: textAttr})
}
