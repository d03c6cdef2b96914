package pods

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"sync"

	"github.com/gorilla/websocket"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The streams of a command are channels of a WebSocket: the first byte of each message is the channel. The protocol is
// that of the CRI streaming servers of containerd and CRI-O, k8s.io/apimachinery remotecommand.
const (
	protocol  = "v4.channel.k8s.io"
	protocol5 = "v5.channel.k8s.io" // can close standard input

	channelStdin  = 0
	channelStdout = 1
	channelStderr = 2
	channelError  = 3
	channelResize = 4
	channelClose  = 255

	// maxMessage bounds a message of the runtime.
	maxMessage = 1 << 20
)

// connection is a WebSocket to the streaming server of the runtime.
type connection struct {
	*websocket.Conn
	sending sync.Mutex
}

// dial opens the WebSocket at the URL that the runtime has given.
func dial(ctx context.Context, at string) (*connection, error) {
	u, err := url.Parse(at)
	if err != nil {
		return nil, err
	}
	if u.Scheme != "http" {
		return nil, fmt.Errorf("the runtime streams over %s; only http on this machine is supported", u.Scheme)
	}
	u.Scheme = "ws"
	dialer := websocket.Dialer{Subprotocols: []string{protocol5, protocol}}
	conn, resp, err := dialer.DialContext(ctx, u.String(), nil)
	if errors.Is(err, websocket.ErrBadHandshake) {
		return nil, fmt.Errorf("the runtime answers %s instead of a WebSocket", resp.Status)
	}
	if err != nil {
		return nil, err
	}
	if p := conn.Subprotocol(); p != protocol && p != protocol5 {
		_ = conn.Close()
		return nil, fmt.Errorf("the runtime chose the unknown protocol %q", p)
	}
	context.AfterFunc(ctx, func() { _ = conn.Close() })
	conn.SetReadLimit(maxMessage)
	return &connection{Conn: conn}, nil
}

// channel returns a writer that sends each write as a message of a channel.
func (c *connection) channel(n byte) io.Writer { return channelWriter{c, n} }

type channelWriter struct {
	c *connection
	n byte
}

func (w channelWriter) Write(p []byte) (int, error) {
	w.c.sending.Lock()
	defer w.c.sending.Unlock()
	return len(p), w.c.WriteMessage(websocket.BinaryMessage, append([]byte{w.n}, p...))
}

// closeStdin says that standard input has ended. Protocol 4 cannot say it.
func (c *connection) closeStdin() error {
	if c.Subprotocol() != protocol5 {
		return nil
	}
	_, err := c.channel(channelClose).Write([]byte{channelStdin})
	return err
}

// receive passes the output of the command on until it ends, and returns its exit code.
func (c *connection) receive(stdout, stderr io.Writer) (code int, err error) {
	for {
		_, message, err := c.ReadMessage()
		if err != nil {
			return 0, fmt.Errorf("the connection to the container runtime broke: %w", err)
		}
		if len(message) == 0 {
			continue
		}
		switch body := message[1:]; message[0] {
		case channelStdout:
			_, err = stdout.Write(body)
		case channelStderr:
			_, err = stderr.Write(body)
		case channelError:
			return exitCode(body)
		}
		if err != nil {
			return 0, err
		}
	}
}

// exitCode reads the metav1.Status with which the runtime ends the streams.
func exitCode(status []byte) (int, error) {
	var s metav1.Status
	if err := json.Unmarshal(status, &s); err != nil {
		return 0, fmt.Errorf("read the result of the command: %w", err)
	}
	if s.Status == metav1.StatusSuccess {
		return 0, nil
	}
	if s.Details != nil {
		for _, cause := range s.Details.Causes {
			if n, err := strconv.Atoi(cause.Message); err == nil && cause.Type == "ExitCode" {
				return n, nil
			}
		}
	}
	return 0, errors.New(s.Message)
}
