package server_test

import (
	"encoding/binary"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	runtimecommand "k8s.io/cri-streaming/pkg/streaming/remotecommand"

	"github.com/nodelet/nodelet/test/waittest"
)

// frameSize is that of the largest frame that a library might hold.
const frameSize = 32 << 20

// beginFrame sends the beginning of a binary frame of frameSize bytes. Its mask changes nothing.
func beginFrame(t *testing.T, c *websocket.Conn, data string) {
	t.Helper()
	header := append([]byte{0x82, 0x80 | 127}, binary.BigEndian.AppendUint64(nil, frameSize)...)
	header = append(header, 0, 0, 0, 0)
	if _, err := c.NetConn().Write(append(header, data...)); err != nil {
		t.Fatal(err)
	}
}

// answers returns all that the server sends until the connection ends, and how it ends.
func answers(c *websocket.Conn) (string, error) {
	var all []string
	for {
		_, message, err := c.ReadMessage()
		if err != nil {
			return strings.Join(all, " "), err
		}
		if len(message) > 1 {
			all = append(all, string(message))
		}
	}
}

// TestLargeFrame checks that the agent never holds a whole frame: a command gets the first byte of one whose rest comes
// later. The command reads nothing else, and what it has not read does not hold up its result.
func TestLargeFrame(t *testing.T) {
	got := make(chan byte, 1)
	end := make(chan struct{})
	s := newStreamingStand(t, false, containers{
		func(in io.Reader, _, _ io.Writer, _ <-chan runtimecommand.TerminalSize) error {
			var first [1]byte
			_, err := in.Read(first[:])
			got <- first[0]
			<-end
			return err
		}})
	c, _, err := s.dial(true, false)
	if err != nil {
		t.Fatal(err)
	}
	beginFrame(t, c, "\x00first")
	select {
	case first := <-got:
		if first != 'f' {
			t.Errorf("got %q, want the first byte of the frame", first)
		}
	case <-time.After(waittest.Limit):
		t.Error("got nothing of a frame that has not ended, want its first byte")
	}
	go func() { // the rest, of which not all fits anywhere while the command does not read
		rest := make([]byte, 1<<20)
		for sent := len("\x00first"); sent < frameSize; {
			n, err := c.NetConn().Write(rest[:min(len(rest), frameSize-sent)])
			if err != nil {
				return
			}
			sent += n
		}
	}()
	close(end)
	if text, err := answers(c); !strings.Contains(text, `"status":"Success"`) ||
		!websocket.IsCloseError(err, websocket.CloseNormalClosure) {
		t.Errorf("got %q and %v, want success and a normal end", text, err)
	}
}

// TestIgnoredFrames checks that what the protocol does not know is no input, and does not end the command.
func TestIgnoredFrames(t *testing.T) {
	s := newStreamingStand(t, false, containers{
		func(in io.Reader, out, _ io.Writer, _ <-chan runtimecommand.TerminalSize) error {
			_, err := io.Copy(out, in)
			return err
		}})
	c, _, err := s.dial(true, false)
	if err != nil {
		t.Fatal(err)
	}
	// An empty message, ones for channels that are unknown or the server's, empty input, input, its end, and more input.
	for _, message := range []string{"", "\x09unknown", "\x01output", "\x03status", "\x04", "\x00", "\x00in", "\x00put",
		"\xff\x00", "\x00more", "\xff\x00"} {
		if err := c.WriteMessage(websocket.TextMessage, []byte(message)); err != nil {
			t.Fatal(err)
		}
	}
	text, err := answers(c)
	if in := strings.ReplaceAll(strings.ReplaceAll(text, "\x01", ""), " ", ""); !strings.HasPrefix(in, "input\x03") ||
		!strings.Contains(text, `"status":"Success"`) || !websocket.IsCloseError(err, websocket.CloseNormalClosure) {
		t.Errorf("got %q and %v, want the input, success and a normal end", text, err)
	}
}

// TestBrokenProtocol checks that an end of a channel that is none ends the session.
func TestBrokenProtocol(t *testing.T) {
	for _, message := range []string{"\xff", "\xff\x05", "\xff\x00\x00"} {
		steps := make(chan string, 2)
		s := newStreamingStand(t, false, containers{
			func(in io.Reader, _, _ io.Writer, _ <-chan runtimecommand.TerminalSize) error {
				steps <- "begun"
				_, _ = io.Copy(io.Discard, in)
				steps <- "ended"
				return nil
			}})
		c, _, err := s.dial(true, false)
		if err != nil {
			t.Fatal(err)
		}
		<-steps
		if err := c.WriteMessage(websocket.BinaryMessage, []byte(message)); err != nil {
			t.Fatal(err)
		}
		if _, err := answers(c); err == nil {
			t.Errorf("%q: got no end, want one", message)
		}
		<-steps
	}
}
