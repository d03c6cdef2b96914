package systemd

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"time"
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

// fields is a handler that sends records to journald with fields. What journald does not take goes to fallback.
type fields struct {
	conn     net.Conn
	fallback slog.Handler
	text     slog.Handler // writes to line
	line     *lockedBuffer
	set      []slog.Attr // of WithAttrs, outside of groups
	grouped  bool
}

type lockedBuffer struct {
	sync.Mutex
	bytes.Buffer
}

// newFields returns a handler for the socket of journald, or fallback if there is none.
func newFields(socket string, fallback slog.Handler, level slog.Leveler) slog.Handler {
	conn, err := net.Dial("unixgram", socket)
	if err != nil {
		return fallback
	}
	line := &lockedBuffer{}
	return &fields{conn: conn, fallback: fallback, text: plainText(&line.Buffer, level), line: line}
}

// Enabled reports whether records of the level are logged.
func (f *fields) Enabled(ctx context.Context, l slog.Level) bool { return f.fallback.Enabled(ctx, l) }

// sendLimit is how long journald may take for a record before the fallback gets it.
const sendLimit = 100 * time.Millisecond

// Handle is part of slog.Handler. The record is one datagram; one that is too large for a datagram, or that journald
// does not take, goes to the fallback. Its writer notices a journald that hangs.
func (f *fields) Handle(ctx context.Context, r slog.Record) error {
	f.line.Lock()
	f.line.Reset()
	err := f.text.Handle(ctx, r)
	message := strings.TrimSuffix(f.line.String(), "\n")
	f.line.Unlock()
	if err != nil {
		return err
	}
	_ = f.conn.SetWriteDeadline(time.Now().Add(sendLimit)) // fails with a closed socket, as does the write
	if _, err := f.conn.Write(f.datagram(r, message)); err != nil {
		return f.fallback.Handle(ctx, r)
	}
	return nil
}

func (f *fields) datagram(r slog.Record, message string) []byte {
	var out bytes.Buffer
	put(&out, "MESSAGE", message)
	put(&out, "PRIORITY", priority(r.Level))
	put(&out, "SYSLOG_IDENTIFIER", "nodelet")
	if id := messageIDs[r.Message]; id != "" {
		put(&out, "MESSAGE_ID", id)
	}
	putAttr := func(a slog.Attr) bool {
		if name := fieldNames[a.Key]; name != "" {
			put(&out, name, a.Value.Resolve().String())
		}
		return true
	}
	for _, a := range f.set {
		putAttr(a)
	}
	if !f.grouped {
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
func (f *fields) WithAttrs(as []slog.Attr) slog.Handler {
	g := *f
	g.fallback, g.text = f.fallback.WithAttrs(as), f.text.WithAttrs(as)
	if !f.grouped {
		g.set = append(slices.Clip(f.set), as...)
	}
	return &g
}

// WithGroup is part of slog.Handler.
func (f *fields) WithGroup(name string) slog.Handler {
	g := *f
	g.fallback, g.text = f.fallback.WithGroup(name), f.text.WithGroup(name)
	g.grouped = true
	return &g
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
