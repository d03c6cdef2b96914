package pods

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/sha1"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The streams of a command are channels of a WebSocket (RFC 6455): the first byte of each message is the channel. The
// protocol is that of the CRI streaming servers of containerd and CRI-O, k8s.io/apimachinery remotecommand.
const (
	protocol  = "v4.channel.k8s.io"
	protocol5 = "v5.channel.k8s.io" // can close standard input

	channelStdin  = 0
	channelStdout = 1
	channelStderr = 2
	channelError  = 3
	channelResize = 4
	channelClose  = 255

	opText, opBinary, opClose, opPing, opPong = 1, 2, 8, 9, 10

	// maxMessage bounds a message of the runtime.
	maxMessage = 1 << 20
)

// connection is a WebSocket to the streaming server of the runtime.
type connection struct {
	net.Conn
	r           *bufio.Reader
	subprotocol string
	sending     sync.Mutex
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
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", u.Host)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	c := &connection{Conn: conn, r: bufio.NewReader(conn)}
	if err := c.upgrade(u); err != nil {
		stop()
		_ = conn.Close()
		return nil, err
	}
	return c, nil
}

// upgrade makes the opening handshake.
func (c *connection) upgrade(u *url.URL) error {
	nonce := make([]byte, 16)
	_, _ = rand.Read(nonce) // never fails
	key := base64.StdEncoding.EncodeToString(nonce)
	req := &http.Request{Method: http.MethodGet, URL: u, Host: u.Host, Header: http.Header{
		"Connection":             {"Upgrade"},
		"Upgrade":                {"websocket"},
		"Sec-Websocket-Version":  {"13"},
		"Sec-Websocket-Key":      {key},
		"Sec-Websocket-Protocol": {protocol5 + ", " + protocol},
	}}
	if err := req.Write(c.Conn); err != nil {
		return err
	}
	resp, err := http.ReadResponse(c.r, req)
	if err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	sum := sha1.Sum([]byte(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	c.subprotocol = resp.Header.Get("Sec-Websocket-Protocol")
	switch {
	case resp.StatusCode != http.StatusSwitchingProtocols:
		return fmt.Errorf("the runtime answers %s instead of a WebSocket", resp.Status)
	case resp.Header.Get("Sec-Websocket-Accept") != base64.StdEncoding.EncodeToString(sum[:]):
		return errors.New("the runtime's WebSocket answer does not fit the request")
	case c.subprotocol != protocol && c.subprotocol != protocol5:
		return fmt.Errorf("the runtime chose the unknown protocol %q", c.subprotocol)
	}
	return nil
}

// channel returns a writer that sends each write as a message of a channel.
func (c *connection) channel(n byte) io.Writer { return channelWriter{c, n} }

type channelWriter struct {
	c *connection
	n byte
}

func (w channelWriter) Write(p []byte) (int, error) {
	return len(p), w.c.send(opBinary, append([]byte{w.n}, p...))
}

// closeStdin says that standard input has ended. Protocol 4 cannot say it.
func (c *connection) closeStdin() error {
	if c.subprotocol != protocol5 {
		return nil
	}
	return c.send(opBinary, []byte{channelClose, channelStdin})
}

// send sends one masked frame.
func (c *connection) send(op byte, payload []byte) error {
	frame := []byte{0x80 | op}
	switch n := len(payload); {
	case n < 126:
		frame = append(frame, 0x80|byte(n))
	case n < 1<<16:
		frame = binary.BigEndian.AppendUint16(append(frame, 0x80|126), uint16(n))
	default:
		frame = binary.BigEndian.AppendUint64(append(frame, 0x80|127), uint64(n))
	}
	var mask [4]byte
	_, _ = rand.Read(mask[:])
	frame = append(frame, mask[:]...)
	for i, b := range payload {
		frame = append(frame, b^mask[i%4])
	}
	c.sending.Lock()
	defer c.sending.Unlock()
	_, err := c.Conn.Write(frame)
	return err
}

// receive passes the output of the command on until it ends, and returns its exit code.
func (c *connection) receive(stdout, stderr io.Writer) (code int, err error) {
	for {
		message, err := c.message()
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

// message returns the next message; the frames of control are answered here.
func (c *connection) message() ([]byte, error) {
	var message []byte
	for {
		op, last, payload, err := c.frame(maxMessage - len(message))
		if err != nil {
			return nil, err
		}
		switch op {
		case opClose:
			return nil, io.EOF
		case opPing:
			if err := c.send(opPong, payload); err != nil {
				return nil, err
			}
			continue
		case opPong:
			continue
		}
		message = append(message, payload...)
		if last {
			return message, nil
		}
	}
}

// frame reads one frame of at most limit bytes.
func (c *connection) frame(limit int) (op byte, last bool, payload []byte, err error) {
	var head [2]byte
	if _, err := io.ReadFull(c.r, head[:]); err != nil {
		return 0, false, nil, err
	}
	size := uint64(head[1] & 0x7f)
	switch size {
	case 126:
		var n uint16
		err = binary.Read(c.r, binary.BigEndian, &n)
		size = uint64(n)
	case 127:
		err = binary.Read(c.r, binary.BigEndian, &size)
	}
	switch {
	case err != nil:
		return 0, false, nil, err
	case head[1]&0x80 != 0:
		return 0, false, nil, errors.New("a masked frame from a server")
	case size > uint64(limit):
		return 0, false, nil, fmt.Errorf("a message of more than %d bytes", maxMessage)
	}
	payload = make([]byte, size)
	_, err = io.ReadFull(c.r, payload)
	return head[0] & 0x0f, head[0]&0x80 != 0, payload, err
}
