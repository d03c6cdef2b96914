package server_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"
	runtimecommand "k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"

	"github.com/nodelet/nodelet/kube/server"
	"github.com/nodelet/nodelet/test/waittest"
)

// containers is what containers do behind the streaming server that containerd and CRI-O are built with.
type containers struct {
	command func(in io.Reader, out, errs io.Writer, sizes <-chan runtimecommand.TerminalSize) error
}

func (c containers) Exec(_ context.Context, _ string, _ []string, in io.Reader, out, errs io.WriteCloser, _ bool,
	sizes <-chan runtimecommand.TerminalSize) error {
	return c.command(in, out, errs, sizes)
}

func (c containers) Attach(_ context.Context, _ string, in io.Reader, out, errs io.WriteCloser, _ bool,
	sizes <-chan runtimecommand.TerminalSize) error {
	return c.command(in, out, errs, sizes)
}

// PortForward answers what it receives, with the port in front.
func (c containers) PortForward(_ context.Context, _ string, port int32, stream io.ReadWriteCloser) error {
	defer stream.Close()
	_, _ = fmt.Fprintf(stream, "port %d: ", port)
	_, err := io.Copy(stream, stream)
	return err
}

// streamingStand is a stand whose runtime is a real streaming server.
type streamingStand struct {
	*stand
	runtime  streaming.Server
	requests *recordedRequests
	config   *rest.Config
}

func newStreamingStand(t *testing.T, secure bool, c containers, change ...func(*server.Config)) *streamingStand {
	t.Helper()
	out := &streamingStand{requests: &recordedRequests{make(chan string, 100)}}
	out.stand = newStand(t, func(cfg *server.Config) {
		cfg.Streams.WebSockets, cfg.Metrics = true, out.requests
		for _, f := range change {
			f(cfg)
		}
	})
	front := httptest.NewUnstartedServer(nil)
	base := &url.URL{Scheme: "http", Host: front.Listener.Addr().String()}
	settings := streaming.DefaultConfig
	settings.BaseURL = base
	if secure {
		base.Scheme = "https"
	}
	var err error
	if out.runtime, err = streaming.NewServer(settings, c); err != nil {
		t.Fatal(err)
	}
	front.Config.Handler = out.runtime
	if secure {
		front.StartTLS()
	} else {
		front.Start()
	}
	t.Cleanup(front.Close)
	root := out.ca.issue(t, "root", []string{"system:masters"}, nil)
	out.config = &rest.Config{Host: "https://" + out.addr.String()}
	out.config.Insecure = true
	out.config.CertData, out.config.KeyData = keyPair(t, root)
	return out
}

// exec runs the command of the container for kubectl's own client.
func (s *streamingStand) exec(ctx context.Context, o remotecommand.StreamOptions) error {
	s.t.Helper()
	resp, err := s.runtime.GetExec(&runtimeapi.ExecRequest{
		ContainerId: "id",
		Stdin:       o.Stdin != nil,
		Stdout:      o.Stdout != nil,
		Stderr:      o.Stderr != nil,
		Tty:         o.Tty,
	})
	if err != nil {
		s.t.Fatal(err)
	}
	s.agent.stream = resp.Url
	query := url.Values{"command": {"run"}}
	for name, on := range map[string]bool{
		corev1.ExecStdinParam:  o.Stdin != nil,
		corev1.ExecStdoutParam: o.Stdout != nil,
		corev1.ExecStderrParam: o.Stderr != nil,
		corev1.ExecTTYParam:    o.Tty,
	} {
		if on {
			query.Set(name, "1")
		}
	}
	at := s.config.Host + "/exec/ns/pod/app?" + query.Encode()
	client, err := remotecommand.NewWebSocketExecutor(s.config, "GET", at)
	if err != nil {
		s.t.Fatal(err)
	}
	return client.StreamWithContext(ctx, o)
}

// TestExecOverWebSocket: all input arrives with its end, output and errors come back, and then the exit code.
func TestExecOverWebSocket(t *testing.T) {
	for _, secure := range []bool{false, true} {
		s := newStreamingStand(t, secure, containers{
			func(in io.Reader, out, errs io.Writer, _ <-chan runtimecommand.TerminalSize) error {
				n, err := io.Copy(out, in) // until the client closes its input
				_, _ = fmt.Fprintf(errs, "copied %d bytes, %v", n, err)
				return utilexec.CodeExitError{Code: 7, Err: errors.New("exit 7")}
			}})
		sent := make([]byte, 1<<20)
		_, _ = rand.Read(sent)
		var out, errs bytes.Buffer
		err := s.exec(t.Context(),
			remotecommand.StreamOptions{Stdin: bytes.NewReader(sent), Stdout: &out, Stderr: &errs})
		if exit, ok := errors.AsType[exec.CodeExitError](err); !ok || exit.Code != 7 {
			t.Errorf("got %v, want exit code 7", err)
		}
		if !bytes.Equal(out.Bytes(), sent) || errs.String() != "copied 1048576 bytes, <nil>" {
			t.Errorf("got %d bytes of output, errors %q; want the %d bytes that were sent", out.Len(), errs.String(),
				len(sent))
		}
		if got := <-s.requests.served; got != "websocket exec" {
			t.Errorf("got %q counted, want %q", got, "websocket exec")
		}
	}
}

// TestExecWithoutInput: the streams that the client does not request stay away, and success is reported.
func TestExecWithoutInput(t *testing.T) {
	s := newStreamingStand(t, false, containers{
		func(in io.Reader, out, errs io.Writer, _ <-chan runtimecommand.TerminalSize) error {
			_, err := fmt.Fprintf(out, "input %v", in)
			return err
		}})
	var out bytes.Buffer
	err := s.exec(t.Context(), remotecommand.StreamOptions{Stdout: &out})
	if err != nil || out.String() != "input <nil>" {
		t.Errorf("got output %q, %v; want %q", out.String(), err, "input <nil>")
	}
}

// windows are the sizes of a client's terminal.
type windows []remotecommand.TerminalSize

func (w *windows) Next() *remotecommand.TerminalSize {
	if len(*w) == 0 {
		return nil
	}
	first := (*w)[0]
	*w = (*w)[1:]
	return &first
}

// TestTerminalSizes: each size of the client's terminal reaches the container, in order.
func TestTerminalSizes(t *testing.T) {
	s := newStreamingStand(t, false, containers{
		func(_ io.Reader, out, _ io.Writer, sizes <-chan runtimecommand.TerminalSize) error {
			for range 2 {
				size := <-sizes
				_, _ = fmt.Fprintf(out, "%dx%d ", size.Width, size.Height)
			}
			return nil
		}})
	var out bytes.Buffer
	err := s.exec(t.Context(), remotecommand.StreamOptions{Stdin: strings.NewReader(""), Stdout: &out, Tty: true,
		TerminalSizeQueue: &windows{{Width: 80, Height: 25}, {Width: 132, Height: 50}}})
	if err != nil || out.String() != "80x25 132x50 " {
		t.Errorf("got output %q, %v; want both sizes", out.String(), err)
	}
}

// TestBadTerminalSize: what is no size of a terminal does not end the command, nor does the end of the sizes.
func TestBadTerminalSize(t *testing.T) {
	s := newStreamingStand(t, false, containers{
		func(in io.Reader, out, _ io.Writer, _ <-chan runtimecommand.TerminalSize) error {
			_, err := io.Copy(out, in)
			return err
		}})
	c, _, err := s.dial(true, true)
	if err != nil {
		t.Fatal(err)
	}
	// A fraction, a size, the end of the sizes, another size, input, and the end of the input.
	for _, message := range []string{"\x04{\"Width\":80.5}", "\x04{\"Width\":80}", "\xff\x04", "\x04{\"Width\":90}",
		"\x00input", "\xff\x00"} {
		if err := c.WriteMessage(websocket.BinaryMessage, []byte(message)); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for {
		_, message, err := c.ReadMessage()
		if err != nil {
			break
		}
		if len(message) > 1 { // the first one has the number of a channel only
			got = append(got, string(message))
		}
	}
	if text, want := strings.Join(got, " "), "\x01input \x03"; !strings.HasPrefix(text, want) ||
		!strings.Contains(text, `"status":"Success"`) {
		t.Errorf("got %q, want %q and success", text, want)
	}
}

// dial opens a WebSocket for a command as kubectl does. The runtime expects it.
func (s *streamingStand) dial(stdin, tty bool) (*websocket.Conn, *http.Response, error) {
	s.t.Helper()
	resp, err := s.runtime.GetExec(&runtimeapi.ExecRequest{ContainerId: "id", Stdout: true, Stdin: stdin, Tty: tty})
	if err != nil {
		s.t.Fatal(err)
	}
	s.agent.stream = resp.Url
	root := s.ca.issue(s.t, "root", []string{"system:masters"}, nil)
	dialer := websocket.Dialer{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{*root}},
		Subprotocols:    []string{"v5.channel.k8s.io"},
	}
	at := "wss://" + s.addr.String() + "/exec/ns/pod/app?command=run&output=1"
	if stdin {
		at += "&input=1"
	}
	if tty {
		at += "&tty=1"
	}
	c, answer, err := dialer.Dial(at, nil)
	if err == nil {
		s.t.Cleanup(func() { c.Close() })
	}
	return c, answer, err
}

// TestClientLeaves: when the client closes its WebSocket, the runtime's stream ends, whatever the container still
// writes.
func TestClientLeaves(t *testing.T) {
	for _, stdin := range []bool{false, true} {
		ended := make(chan error, 1)
		s := newStreamingStand(t, false, containers{
			func(_ io.Reader, out, _ io.Writer, _ <-chan runtimecommand.TerminalSize) error {
				for {
					if _, err := io.WriteString(out, "still there"); err != nil {
						ended <- err
						return nil
					}
				}
			}})
		c, _, err := s.dial(stdin, false)
		if err != nil {
			t.Fatal(err)
		}
		for output := 0; output == 0; { // the first message has the number of a channel only
			_, message, err := c.ReadMessage()
			if err != nil {
				t.Fatal(err)
			}
			output = len(message) - 1
		}
		if err := c.WriteControl(websocket.CloseMessage, nil, time.Time{}); err != nil {
			t.Fatal(err)
		}
		<-ended
	}
}

// TestInputThatNobodyReads: the idle time ends a session whose runtime takes no more of the input, while the command
// goes on.
func TestInputThatNobodyReads(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	s := newStreamingStand(t, false, containers{
		func(io.Reader, io.Writer, io.Writer, <-chan runtimecommand.TerminalSize) error {
			<-release
			return nil
		}}, func(cfg *server.Config) { cfg.Streams.Idle = 500 * time.Millisecond })
	c, _, err := s.dial(true, false)
	if err != nil {
		t.Fatal(err)
	}
	for message := make([]byte, 16<<10); err == nil; { // until the server closes the connection
		err = c.WriteMessage(websocket.BinaryMessage, message)
	}
	for range 2 { // once as a WebSocket, and once when it has ended
		select {
		case <-s.requests.served:
		case <-time.After(waittest.Limit):
			t.Fatal("got no end of the session, want one")
		}
	}
}

// TestTranslationCountsMore: a session that is translated counts as several, and as none when it has ended.
func TestTranslationCountsMore(t *testing.T) {
	s := newStreamingStand(t, false, containers{
		func(in io.Reader, _, _ io.Writer, _ <-chan runtimecommand.TerminalSize) error {
			_, err := io.Copy(io.Discard, in)
			return err
		}}, func(cfg *server.Config) { cfg.Sessions.All = 23 })
	first, _, err := s.dial(true, false)
	if err != nil {
		t.Fatal(err)
	}
	_, answer, err := s.dial(true, false)
	if err == nil || answer == nil || answer.StatusCode != http.StatusTooManyRequests {
		t.Errorf("another session: got %v, want status 429", err)
	}
	if err := first.WriteMessage(websocket.BinaryMessage, []byte{255, 0}); err != nil { // the end of the input
		t.Fatal(err)
	}
	if text, _ := answers(first); !strings.Contains(text, "Success") {
		t.Errorf("got %q of the first session, want success", text)
	}
	for range 4 {
		<-s.requests.served // for each session once as a WebSocket, and once when it has ended
	}
	if _, _, err := s.dial(true, false); err != nil {
		t.Errorf("after the end of the first session: got %v, want another", err)
	}
}

// TestRuntimeRefusesStream: the runtime's answer reaches the client, which has a WebSocket already.
func TestRuntimeRefusesStream(t *testing.T) {
	s := newStreamingStand(t, false, containers{})
	var out bytes.Buffer
	at := s.config.Host + "/exec/ns/pod/app?command=run&output=1&input=1"
	resp, err := s.runtime.GetExec(&runtimeapi.ExecRequest{ContainerId: "id", Stdin: true, Stdout: true})
	if err != nil {
		t.Fatal(err)
	}
	s.agent.stream = resp.Url + "x" // an unknown token
	client, err := remotecommand.NewWebSocketExecutor(s.config, "GET", at)
	if err != nil {
		t.Fatal(err)
	}
	err = client.StreamWithContext(t.Context(),
		remotecommand.StreamOptions{Stdin: strings.NewReader("x"), Stdout: &out})
	if err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("got %v, want an error with the runtime's status 404", err)
	}
}

// TestForwardOverWebSocket: the SPDY streams of kubectl's own client pass through messages of a WebSocket.
func TestForwardOverWebSocket(t *testing.T) {
	s := newStreamingStand(t, false, containers{})
	resp, err := s.runtime.GetPortForward(&runtimeapi.PortForwardRequest{PodSandboxId: "id"})
	if err != nil {
		t.Fatal(err)
	}
	s.agent.stream = resp.Url
	at, _ := url.Parse(s.config.Host + "/portForward/ns/pod")
	dialer, err := portforward.NewSPDYOverWebsocketDialer(at, s.config)
	if err != nil {
		t.Fatal(err)
	}
	stop, ready := make(chan struct{}), make(chan struct{})
	f, err := portforward.NewOnAddresses(dialer, []string{"127.0.0.1"}, []string{"0:8080"}, stop, ready, io.Discard,
		io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- f.ForwardPorts() }()
	select {
	case <-ready:
	case err := <-done:
		t.Fatal(err)
	}
	ports, err := f.GetPorts()
	if err != nil {
		t.Fatal(err)
	}
	sent := strings.Repeat("there and back ", 100_000)
	if got := through(t, ports[0].Local, sent); got != "port 8080: "+sent {
		t.Errorf("got %d bytes back, want the port and the %d bytes that were sent", len(got), len(sent))
	}
	close(stop)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if got := <-s.requests.served; got != "websocket portforward" {
		t.Errorf("got %q counted, want %q", got, "websocket portforward")
	}
	if asked := s.agent.wasAsked(); len(asked) != 1 || asked[0] != "forward ns/pod/ []" {
		t.Errorf("the agent was asked %q, want one port-forward without ports", asked)
	}
}

// keyPair returns a certificate and its key as PEM.
func keyPair(t *testing.T, of *tls.Certificate) (cert, key []byte) {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(of.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: of.Certificate[0]}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

// through sends text to a port of this machine, closes that half of the connection, and returns the answer.
func through(t *testing.T, port uint16, text string) string {
	t.Helper()
	c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	go func() {
		_, _ = io.WriteString(c, text)
		_ = c.(*net.TCPConn).CloseWrite()
	}()
	answer, err := io.ReadAll(c)
	if err != nil {
		t.Error(err)
	}
	return string(answer)
}

// TestWebSocketsOff: without the feature gate a WebSocket goes to the runtime as it is.
func TestWebSocketsOff(t *testing.T) {
	r := newRuntime(t, nil)
	s := newStand(t, nil)
	s.agent.stream = r.url()
	r.answerWith("HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
	c := s.client(s.ca.issue(t, "root", []string{"system:masters"}, nil))
	code, _ := s.ask(c, "GET", "/exec/ns/pod/app?output=1", map[string]string{
		"Connection":             "Upgrade",
		"Upgrade":                "websocket",
		"Sec-WebSocket-Protocol": "v5.channel.k8s.io",
		"Sec-WebSocket-Version":  "13",
		"Sec-WebSocket-Key":      "x3JJHMbDL1EzLkh9GBhXDw==",
	})
	if code != 403 || len(r.seen) != 1 || r.seen[0].Header.Get("Sec-WebSocket-Protocol") != "v5.channel.k8s.io" {
		t.Errorf("got status %d, the runtime saw %v; want its answer 403 to the WebSocket", code, r.seen)
	}
}
