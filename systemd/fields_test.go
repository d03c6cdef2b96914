package systemd

import (
	"bytes"
	"encoding/binary"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// listenJournal is a socket that takes records as journald does.
func listenJournal(t *testing.T) (path string, conn *net.UnixConn) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "socket")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return path, conn
}

// receive reads one record and returns its fields.
func receive(t *testing.T, conn *net.UnixConn) map[string]string {
	t.Helper()
	datagram := make([]byte, 1<<20)
	n, err := conn.Read(datagram)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for rest := datagram[:n]; len(rest) > 0; {
		line, after, _ := bytes.Cut(rest, []byte("\n"))
		if name, value, ok := strings.Cut(string(line), "="); ok {
			got[name], rest = value, after
			continue
		}
		size := binary.LittleEndian.Uint64(after)
		got[string(line)], rest = string(after[8:8+size]), after[8+size+1:]
	}
	return got
}

func TestJournalFields(t *testing.T) {
	startedAs(t, "/usr/bin/kubelet")
	socket, conn := listenJournal(t)
	var fallback bytes.Buffer
	log := slog.New(newJournal(socket, &fallback, slog.LevelInfo))
	log.Debug("below the level")
	log.With("pod", "default/web").Warn("step failed", "podUID", "u-1", "err", "two\nlines", "took", 3)
	want := map[string]string{
		"MESSAGE":           `msg="step failed" pod=default/web podUID=u-1 err="two\nlines" took=3`,
		"PRIORITY":          "4",
		"SYSLOG_IDENTIFIER": "kubelet",
		"MESSAGE_ID":        messageIDs["step failed"],
		"POD":               "default/web",
		"UID":               "u-1",
		"ERR":               "two\nlines",
	}
	if got := receive(t, conn); !maps.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	log.WithGroup("g").Info("other", "pod", "inner")
	if got := receive(t, conn); got["MESSAGE"] != "msg=other g.pod=inner" || got["POD"] != "" || got["PRIORITY"] != "6" {
		t.Errorf("got %q, want no field of a group", got)
	}
	conn.Close()
	log.Error("journald is away")
	if got := fallback.String(); got != "<3>msg=\"journald is away\"\n" {
		t.Errorf("got %q on standard error", got)
	}
}

// TestNoJournal checks that without journald's socket the log goes to standard error.
func TestNoJournal(t *testing.T) {
	var out bytes.Buffer
	slog.New(newJournal(filepath.Join(t.TempDir(), "none"), &out, slog.LevelInfo)).Info("here")
	if out.String() != "<6>msg=here\n" {
		t.Errorf("got %q", out.String())
	}
}

// TestMessageIDs checks that each message with an ID is logged somewhere and documented, and that no two share an ID.
func TestMessageIDs(t *testing.T) {
	page, err := os.ReadFile("../docs/monitoring.md")
	if err != nil {
		t.Fatal(err)
	}
	missing := maps.Clone(messageIDs)
	err = filepath.WalkDir("..", func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(file) != ".go" || strings.HasPrefix(file, "../systemd/") {
			return err
		}
		text, err := os.ReadFile(file)
		for message := range missing {
			if bytes.Contains(text, []byte(`"`+message+`"`)) {
				delete(missing, message)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for message := range missing {
		t.Errorf("got no code that logs %q, want some", message)
	}
	seen := map[string]bool{}
	for message, id := range messageIDs {
		if len(id) != 32 || seen[id] {
			t.Errorf("%q: got ID %q, want a new one of 32 digits", message, id)
		}
		seen[id] = true
		if !bytes.Contains(page, []byte(id)) || !bytes.Contains(page, []byte(message)) {
			t.Errorf("docs/monitoring.md: got no %q with %s, want it listed", message, id)
		}
	}
}
