package server

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorilla/websocket"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/portforward"
	"k8s.io/apimachinery/pkg/util/remotecommand"
	tunnel "k8s.io/client-go/tools/portforward"
	executor "k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"
	"k8s.io/klog/v2"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// pingTime is how often the server looks whether a client is still there.
const pingTime = 30 * time.Second

// maxTerminalSize bounds the message with a size of the client's terminal, in bytes.
const maxTerminalSize = 4 << 10

// translate serves exec or attach over a WebSocket with the protocol v5, in which a client can end standard input
// (KEP-4006). The streaming servers of runtimes can do that over SPDY only. Over their own WebSockets (v4) a command
// without input gets an empty one, at whose end containerd may cut off its output. An error means that the client has
// had no answer yet.
func (s *Server) translate(w http.ResponseWriter, r *http.Request, target *url.URL, o StreamOptions) error {
	command, err := NewExecutor(target)
	if err != nil {
		return err
	}
	conn, err := acceptWebSocket(w, r, remotecommand.StreamProtocolV5Name)
	if err != nil {
		return err
	}
	// The libraries would log a broken connection as an error.
	ctx, cancel := context.WithCancel(klog.NewContext(r.Context(), klog.Logger{}))
	defer cancel()
	began := time.Now()
	client := newCommandClient(ctx, cancel, conn, o)
	if s.cfg.Streams.Idle > 0 {
		defer watchIdle(s.cfg.Streams.Idle, client.moved.Load, cancel)()
	}
	if err = client.greet(o); err == nil {
		err = command.StreamWithContext(ctx, client.streams(ctx, o))
		err = errors.Join(err, client.finish(ctx, err))
	}
	s.log.Debug("stream ended", "path", r.URL.Path, "took", time.Since(began), "err", err)
	return nil
}

// commandClient is the client of an exec or attach over a WebSocket. Nothing of what it sends is held but a piece of
// chunk bytes, however large its frames are.
type commandClient struct {
	conn  *websocket.Conn
	moved atomic.Int64 // the bytes in both directions
	// stdin and resize are what the client sends, to has their other ends by channel. Other channels have none.
	stdin, resize *io.PipeReader
	to            [remotecommand.StreamResize + 1]*io.PipeWriter

	mu    sync.Mutex
	frame []byte // the last frame that was sent
}

// newCommandClient returns a client that is served until ctx ends. gone is called when it has gone.
func newCommandClient(ctx context.Context, gone func(), conn *websocket.Conn, o StreamOptions) *commandClient {
	c := &commandClient{conn: conn}
	if o.Stdin {
		c.stdin, c.to[remotecommand.StreamStdIn] = io.Pipe()
	}
	if o.TTY {
		c.resize, c.to[remotecommand.StreamResize] = io.Pipe()
	}
	// Without a deadline: a client that takes nothing for a while stays. After the result there is no answer any more. A
	// broken connection shows when it is read.
	conn.SetPingHandler(func(text string) error {
		_ = conn.WriteControl(websocket.PongMessage, []byte(text), time.Time{})
		return nil
	})
	context.AfterFunc(ctx, func() { _ = conn.Close(); c.ignore() })
	go func() { defer gone(); c.receive() }()
	go func() { defer gone(); c.ping(ctx) }()
	return c
}

// ignore drops what the client sends from now on.
func (c *commandClient) ignore() {
	for _, from := range []*io.PipeReader{c.stdin, c.resize} {
		if from != nil {
			_ = from.Close()
		}
	}
}

// receive passes on what the client sends, until it has gone or breaks the protocol.
func (c *commandClient) receive() {
	buf := chunks.Get().(*[chunk]byte)
	defer chunks.Put(buf)
	for {
		_, message, err := c.conn.NextReader()
		if err != nil || !c.pass(message, buf[:]) {
			return
		}
	}
}

// pass passes on a message and reports whether it is one of the protocol. What a channel does not take is skipped. An
// error of the connection comes again with the next message.
func (c *commandClient) pass(message io.Reader, buf []byte) bool {
	if n, _ := io.ReadFull(message, buf[:1]); n == 0 {
		return true
	}
	channel, closes := int(buf[0]), buf[0] == remotecommand.StreamClose
	if closes {
		if n, _ := io.ReadFull(message, buf[:2]); n != 1 || int(buf[0]) >= len(c.to) {
			return false
		}
		channel = int(buf[0])
	}
	if channel >= len(c.to) || c.to[channel] == nil {
		return true
	}
	if closes {
		_ = c.to[channel].Close()
		return true
	}
	for {
		n, err := message.Read(buf)
		c.moved.Add(int64(n))
		if n > 0 {
			if _, err := c.to[channel].Write(buf[:n]); err != nil {
				return true
			}
		}
		if err != nil {
			return true
		}
	}
}

// ping finds out whether the client has gone, which receive does not see while the command takes no input. After the
// result receive sees it.
func (c *commandClient) ping(ctx context.Context) {
	every := time.NewTicker(pingTime)
	defer every.Stop()
	for {
		err := c.conn.WriteControl(websocket.PingMessage, nil, time.Time{})
		if err != nil && !errors.Is(err, websocket.ErrCloseSent) {
			return
		}
		select {
		case <-every.C:
		case <-ctx.Done():
			return
		}
	}
}

// channel is one in which the server sends.
type channel struct {
	*commandClient
	number byte
}

// Write sends p in one frame.
func (c channel) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.frame = append(append(c.frame[:0], c.number), p...)
	if err := c.conn.WriteMessage(websocket.BinaryMessage, c.frame); err != nil {
		return 0, err
	}
	c.moved.Add(int64(len(c.frame)))
	return len(p), nil
}

// greet sends an empty message, which says that the connection is open, as with the kubelet.
func (c *commandClient) greet(o StreamOptions) error {
	first := byte(remotecommand.StreamErr)
	switch {
	case o.Stdout:
		first = remotecommand.StreamStdOut
	case o.Stderr:
		first = remotecommand.StreamStdErr
	}
	_, err := channel{c, first}.Write(nil)
	return err
}

// streams returns the streams that the client requests.
func (c *commandClient) streams(ctx context.Context, o StreamOptions) executor.StreamOptions {
	out := executor.StreamOptions{Tty: o.TTY}
	if o.Stdin {
		out.Stdin = c.stdin
	}
	if o.Stdout {
		out.Stdout = channel{c, remotecommand.StreamStdOut}
	}
	if o.Stderr {
		out.Stderr = channel{c, remotecommand.StreamStdErr}
	}
	if o.TTY {
		sizes := make(terminalSizes)
		go sizes.read(ctx, c.resize)
		out.TerminalSizeQueue = sizes
	}
	return out
}

// finish sends how the command ended. What the client still sends is read until it has gone, or has taken nothing for
// lingerTime: if it were not, the kernel would drop what the client has not read yet.
func (c *commandClient) finish(ctx context.Context, err error) error {
	text, merr := json.Marshal(commandStatus(err))
	if merr != nil {
		return merr
	}
	c.ignore()
	// A deadline would not do: until it can write, the library waits for a ping that the client does not take.
	taken := func() int64 { return -unsent(c.conn.NetConn()) }
	defer watchIdle(lingerTime, taken, func() { _ = c.conn.Close() })()
	_, werr := channel{c, remotecommand.StreamErr}.Write(text)
	if werr == nil {
		normal := websocket.FormatCloseMessage(websocket.CloseNormalClosure, "")
		werr = c.conn.WriteControl(websocket.CloseMessage, normal, time.Time{})
	}
	if werr != nil {
		return fmt.Errorf("send the result: %w", werr)
	}
	<-ctx.Done()
	return nil
}

// commandStatus returns the status with which a stream ends.
func commandStatus(err error) metav1.Status {
	var refused *apierrors.StatusError
	var exit exec.CodeExitError
	switch {
	case err == nil:
		return metav1.Status{Status: metav1.StatusSuccess}
	case errors.As(err, &refused):
		return refused.Status()
	case !errors.As(err, &exit):
		return apierrors.NewInternalError(err).Status()
	}
	return metav1.Status{
		Status:  metav1.StatusFailure,
		Reason:  remotecommand.NonZeroExitCodeReason,
		Message: fmt.Sprintf("command terminated with non-zero exit code: %v", exit),
		Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{
			Type:    remotecommand.ExitCodeCauseType,
			Message: strconv.Itoa(exit.Code),
		}}},
	}
}

// terminalSizes are the sizes of the client's terminal. It implements remotecommand.TerminalSizeQueue.
type terminalSizes chan executor.TerminalSize

// Next returns the next size; nil: there are no more.
func (t terminalSizes) Next() *executor.TerminalSize {
	size, ok := <-t
	if !ok {
		return nil
	}
	return &size
}

// read passes on what the client says, until it is gone, says something that is not a size, or ctx ends. The terminal
// keeps its last size then.
func (t terminalSizes) read(ctx context.Context, from io.ReadCloser) {
	defer close(t)
	defer from.Close()
	limited := &io.LimitedReader{R: from}
	for d := json.NewDecoder(limited); ; {
		var size executor.TerminalSize
		limited.N = maxTerminalSize
		if d.Decode(&size) != nil {
			return
		}
		select {
		case t <- size:
		case <-ctx.Done():
			return
		}
	}
}

// speaks reports whether a request is for a WebSocket with a protocol.
func speaks(r *http.Request, protocol string) bool {
	return websocket.IsWebSocketUpgrade(r) && slices.Contains(websocket.Subprotocols(r), protocol)
}

// untunneled turns the headers of such a request into those of one for SPDY, which every runtime serves.
func untunneled(h http.Header) {
	for name := range h {
		if strings.HasPrefix(name, "Sec-Websocket-") {
			h.Del(name)
		}
	}
	h.Set("Upgrade", spdy.HeaderSpdy31)
	h.Set("X-Stream-Protocol-Version", portforward.PortForwardV1Name)
}

// acceptTunnel opens the WebSocket of a port-forward. An error means that the client has had no answer yet.
func acceptTunnel(w http.ResponseWriter, r *http.Request, answer *http.Response) (side, error) {
	chosen := answer.Header.Get("X-Stream-Protocol-Version")
	if !strings.EqualFold(answer.Header.Get("Upgrade"), spdy.HeaderSpdy31) || chosen != portforward.PortForwardV1Name {
		return side{}, Errorf(http.StatusBadGateway, "the container runtime chose the protocol %s of %s instead of %s of %s",
			short(chosen), short(answer.Header.Get("Upgrade")), portforward.PortForwardV1Name, spdy.HeaderSpdy31)
	}
	conn, err := acceptWebSocket(w, r, portforward.WebsocketsSPDYTunnelingPortForwardV1)
	if err != nil {
		return side{}, err
	}
	client := tunneled{tunnel.NewTunnelingConnectionWithLogger(klog.Logger{}, conn), conn}
	return side{client, bufio.NewReader(client)}, nil
}

// acceptWebSocket opens a WebSocket with a protocol. An error means that the client has had no answer yet.
func acceptWebSocket(w http.ResponseWriter, r *http.Request, protocol string) (*websocket.Conn, error) {
	var refused error
	upgrader := websocket.Upgrader{
		HandshakeTimeout: upgradeTime,
		Subprotocols:     []string{protocol},
		CheckOrigin:      func(*http.Request) bool { return true }, // callers are authenticated, and never by cookies
		Error: func(_ http.ResponseWriter, _ *http.Request, status int, reason error) {
			refused = Errorf(status, "%v", reason)
		},
	}
	conn, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		return nil, cmp.Or(refused, err)
	}
	return conn, nil
}

// tunneled is the client's side of a port-forward in a WebSocket.
type tunneled struct {
	*tunnel.TunnelingConnection
	conn *websocket.Conn
}

// NetConn returns the connection below the WebSocket.
func (t tunneled) NetConn() net.Conn { return t.conn.NetConn() }

// CloseWrite asks the client to end the session: a WebSocket has no half that could be closed alone.
func (t tunneled) CloseWrite() error {
	normal := websocket.FormatCloseMessage(websocket.CloseNormalClosure, "")
	return t.conn.WriteControl(websocket.CloseMessage, normal, time.Time{})
}
