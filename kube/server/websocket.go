package server

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gorilla/websocket"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/portforward"
	"k8s.io/apimachinery/pkg/util/remotecommand"
	tunnel "k8s.io/client-go/tools/portforward"
	executor "k8s.io/client-go/tools/remotecommand"
	clientspdy "k8s.io/client-go/transport/spdy"
	"k8s.io/client-go/util/exec"
	"k8s.io/klog/v2"
	"k8s.io/streaming/pkg/httpstream/spdy"
	"k8s.io/streaming/pkg/httpstream/wsstream"
)

// statusTime bounds the writing of the result of a command.
const statusTime = 10 * time.Second

// maxTerminalSize bounds the message with a size of the client's terminal, in bytes.
const maxTerminalSize = 4 << 10

// connected is a channel beyond those of the protocol. It ends with the connection: clients may close only the others.
const connected = remotecommand.StreamResize + 1

// translate serves exec or attach over a WebSocket with the protocol v5, in which a client can end standard input
// (KEP-4006). The streaming servers of runtimes can do that over SPDY only. Over their own WebSockets (v4) a command
// without input gets an empty one, at whose end containerd may cut off its output. An error means that the client has
// had no answer yet.
func (s *Server) translate(w http.ResponseWriter, r *http.Request, target *url.URL, o StreamOptions) error {
	command, err := NewExecutor(target)
	if err != nil {
		return err
	}
	// The libraries would log a broken connection as an error.
	ctx, cancel := context.WithCancel(klog.NewContext(r.Context(), klog.Logger{}))
	defer cancel()
	began := time.Now()
	client, err := acceptCommand(w, r.WithContext(ctx), o, s.cfg.Streams.Idle)
	if err != nil {
		s.log.Debug("cannot open a WebSocket", "path", r.URL.Path, "err", err) // the library has answered
		return nil
	}
	defer client.Close()
	sizes := make(terminalSizes)
	go func() {
		defer cancel()
		_, _ = io.Copy(io.Discard, client.channels[connected])
	}()
	go func() {
		resize := client.channels[remotecommand.StreamResize]
		sizes.read(ctx, resize, o.TTY)
		_, _ = io.Copy(io.Discard, resize) // what is not read would hold up the input
	}()
	err = command.StreamWithContext(ctx, client.streams(o, sizes))
	if werr := client.finish(err); werr != nil {
		err = errors.Join(err, fmt.Errorf("send the result: %w", werr))
	}
	s.log.Debug("stream ended", "path", r.URL.Path, "took", time.Since(began), "err", err)
	return nil
}

// NewExecutor returns a client of the runtime's streaming server. The rule of pipe.dial holds for certificates. There
// is no proxy, and redirects are not followed (CVE-2018-1002102).
func NewExecutor(target *url.URL) (executor.Executor, error) {
	transport, err := spdy.NewRoundTripperWithConfig(spdy.RoundTripperConfig{
		TLS:     &tls.Config{InsecureSkipVerify: true},
		Proxier: func(*http.Request) (*url.URL, error) { return nil, nil },
	})
	if err != nil {
		return nil, err
	}
	upgrader := clientspdy.NewUpgraderForStreaming(transport)
	return executor.NewSPDYExecutorRejectRedirects(transport, upgrader, http.MethodPost, target)
}

// commandClient is the client of an exec or attach over a WebSocket.
type commandClient struct {
	*wsstream.Conn
	channels []io.ReadWriteCloser // by remotecommand.StreamStdIn and so on
}

// acceptCommand opens the WebSocket.
func acceptCommand(w http.ResponseWriter, r *http.Request, o StreamOptions, idle time.Duration) (
	*commandClient, error) {
	either := func(on bool, kind wsstream.ChannelType) wsstream.ChannelType {
		if on {
			return kind
		}
		return wsstream.IgnoreChannel
	}
	channels := make([]wsstream.ChannelType, connected+1)
	channels[remotecommand.StreamStdIn] = either(o.Stdin, wsstream.ReadChannel)
	channels[remotecommand.StreamStdOut] = either(o.Stdout, wsstream.WriteChannel)
	channels[remotecommand.StreamStdErr] = either(o.Stderr, wsstream.WriteChannel)
	channels[remotecommand.StreamErr] = wsstream.WriteChannel
	channels[remotecommand.StreamResize] = wsstream.ReadChannel
	channels[connected] = wsstream.ReadChannel
	c := &commandClient{Conn: wsstream.NewConn(map[string]wsstream.ChannelProtocolConfig{
		remotecommand.StreamProtocolV5Name: {Binary: true, Channels: channels},
	})}
	c.SetIdleTimeout(idle)
	_, opened, err := c.Open(w, r)
	if err != nil {
		return nil, err
	}
	c.channels = opened
	// As with the kubelet, an empty message says that the connection is open.
	first := slices.Index(channels, wsstream.WriteChannel)
	if _, err := opened[first].Write(nil); err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

// streams returns the streams that the client requests.
func (c *commandClient) streams(o StreamOptions, sizes terminalSizes) executor.StreamOptions {
	out := executor.StreamOptions{Tty: o.TTY}
	if o.Stdin {
		out.Stdin = c.channels[remotecommand.StreamStdIn]
	}
	if o.Stdout {
		out.Stdout = c.channels[remotecommand.StreamStdOut]
	}
	if o.Stderr {
		out.Stderr = c.channels[remotecommand.StreamStdErr]
	}
	if o.TTY {
		out.TerminalSizeQueue = sizes
	}
	return out
}

// finish sends how the command ended.
func (c *commandClient) finish(err error) error {
	text, merr := json.Marshal(commandStatus(err))
	if merr != nil {
		return merr
	}
	c.SetWriteDeadline(statusTime)
	_, werr := c.channels[remotecommand.StreamErr].Write(text)
	return werr
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
func (t terminalSizes) read(ctx context.Context, from io.Reader, tty bool) {
	defer close(t)
	limited := &io.LimitedReader{R: from}
	for d := json.NewDecoder(limited); ; {
		var size executor.TerminalSize
		limited.N = maxTerminalSize
		if d.Decode(&size) != nil {
			return
		}
		if !tty {
			continue
		}
		select {
		case t <- size:
		case <-ctx.Done():
			return
		}
	}
}

// tunnels reports whether a request is a port-forward whose SPDY frames come in the messages of a WebSocket (KEP-4006).
func tunnels(r *http.Request) bool {
	return websocket.IsWebSocketUpgrade(r) &&
		slices.Contains(websocket.Subprotocols(r), portforward.WebsocketsSPDYTunnelingPortForwardV1)
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
	var refused error
	upgrader := websocket.Upgrader{
		HandshakeTimeout: upgradeTime,
		Subprotocols:     []string{portforward.WebsocketsSPDYTunnelingPortForwardV1},
		CheckOrigin:      func(*http.Request) bool { return true }, // callers are authenticated, and never by cookies
		Error: func(_ http.ResponseWriter, _ *http.Request, status int, reason error) {
			refused = Errorf(status, "%v", reason)
		},
	}
	conn, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		return side{}, cmp.Or(refused, err)
	}
	client := tunneled{tunnel.NewTunnelingConnectionWithLogger(klog.Logger{}, conn)}
	return side{client, bufio.NewReader(client)}, nil
}

// tunneled is the client's side of a port-forward in a WebSocket.
type tunneled struct{ *tunnel.TunnelingConnection }

// CloseWrite ends the session: a WebSocket has no half that could be closed alone.
func (t tunneled) CloseWrite() error { return t.Close() }
