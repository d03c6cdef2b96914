package pods

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"golang.org/x/net/websocket"

	"github.com/nodelet/nodelet/cmd/nodelet/command"
)

// serveStreams is a streaming server of a runtime, made with another implementation of WebSockets. It calls run with
// what standard input has sent until it was closed.
func serveStreams(t *testing.T, run func(ws *websocket.Conn, stdin string)) string {
	t.Helper()
	s := httptest.NewServer(&websocket.Server{
		Handshake: func(c *websocket.Config, _ *http.Request) error {
			c.Protocol = []string{protocol5}
			return nil
		},
		Handler: func(ws *websocket.Conn) {
			ws.PayloadType = websocket.BinaryFrame
			var stdin []byte
			for {
				var message []byte
				if err := websocket.Message.Receive(ws, &message); err != nil {
					return
				}
				if message[0] == channelClose {
					break
				}
				stdin = append(stdin, message[1:]...)
			}
			run(ws, string(stdin))
		},
	})
	t.Cleanup(s.Close)
	return s.URL + "/exec/x"
}

func send(t *testing.T, ws *websocket.Conn, channel byte, text string) {
	t.Helper()
	if err := websocket.Message.Send(ws, append([]byte{channel}, text...)); err != nil {
		t.Error(err)
	}
}

// TestStreams passes input, output, errors and the exit code of a command; messages have sizes of each length format.
func TestStreams(t *testing.T) {
	big := strings.Repeat("x", 70_000)
	for status, want := range map[string]int{
		`{"status":"Success"}`: 0,
		`{"status":"Failure","message":"exit","details":{"causes":[{"reason":"ExitCode","message":"7"}]}}`: 7,
	} {
		at := serveStreams(t, func(ws *websocket.Conn, stdin string) {
			send(t, ws, channelStdout, "got "+stdin)
			send(t, ws, channelStdout, strings.Repeat("y", 300)+big)
			send(t, ws, channelStderr, "oops")
			send(t, ws, channelError, status)
		})
		var out, errs bytes.Buffer
		call := command.Call{Context: t.Context(), In: strings.NewReader("hello"), Out: &out, Err: &errs}
		err := stream(call, at, true, false)
		var exit *command.ExitError
		if code := 0; errors.As(err, &exit) {
			if code = exit.Code; code != want {
				t.Errorf("exit code: got %d, want %d", code, want)
			}
		} else if err != nil || want != 0 {
			t.Errorf("got %v, want exit code %d", err, want)
		}
		if got := out.String(); got != "got hello"+strings.Repeat("y", 300)+big || errs.String() != "oops" {
			t.Errorf("got %d bytes and errors %q", len(got), errs.String())
		}
	}
}

// TestStreamFails checks that a connection that breaks or a server that refuses is an error.
func TestStreamFails(t *testing.T) {
	at := serveStreams(t, func(*websocket.Conn, string) {})
	call := command.Call{Context: t.Context(), In: strings.NewReader(""), Out: io.Discard, Err: io.Discard}
	if err := stream(call, at, true, false); err == nil || !strings.Contains(err.Error(), "broke") {
		t.Errorf("broken connection: got %v", err)
	}
	refusing := httptest.NewServer(http.NotFoundHandler())
	defer refusing.Close()
	if err := stream(call, refusing.URL, false, false); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("refusal: got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	call.Context = ctx
	if err := stream(call, at, false, false); err == nil {
		t.Error("ended context: got no error")
	}
}

// TestExitCode checks how the runtime's last message is read.
func TestExitCode(t *testing.T) {
	for text, want := range map[string]string{
		`{"status":"Success"}`:                     "0 <nil>",
		`{"status":"Failure","message":"no such"}`: "0 no such",
		`{`: "0 read the result of the command: unexpected end of JSON input",
	} {
		code, err := exitCode([]byte(text))
		if got := fmt.Sprint(code, " ", err); got != want {
			t.Errorf("%s: got %s, want %s", text, got, want)
		}
	}
}

// TestUnknownProtocol checks that a server that chooses no protocol is refused.
func TestUnknownProtocol(t *testing.T) {
	s := httptest.NewServer(&websocket.Server{
		Handshake: func(c *websocket.Config, _ *http.Request) error { c.Protocol = nil; return nil },
		Handler:   func(*websocket.Conn) {},
	})
	defer s.Close()
	if _, err := dial(t.Context(), s.URL); err == nil || !strings.Contains(err.Error(), "unknown protocol") {
		t.Errorf("got %v, want an error about the protocols", err)
	}
}
