package server

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gorilla/websocket"
	tunnel "k8s.io/apimachinery/pkg/util/portforward"
	"k8s.io/apimachinery/pkg/util/remotecommand"
	"k8s.io/streaming/pkg/httpstream/spdy"

	memory "github.com/nodelet/nodelet/test/pipe"
)

// session is one over a WebSocket.
type session struct {
	*commandClient
	ctx   context.Context
	ended chan struct{}
}

// serving calls test, in a synctest bubble, with a session and its client. change may wrap the server's connection.
func serving(t *testing.T, change func(net.Conn) net.Conn,
	test func(t *testing.T, client *websocket.Conn, s *session)) {
	synctest.Test(t, func(t *testing.T) {
		opened := make(chan *session, 1)
		client := connect(t, change, "v5.channel.k8s.io", func(w http.ResponseWriter, r *http.Request) {
			conn, err := acceptWebSocket(w, r, "v5.channel.k8s.io")
			if err != nil {
				t.Error(err)
				return
			}
			ctx, cancel := context.WithCancel(r.Context())
			defer cancel()
			s := &session{newCommandClient(ctx, cancel, conn, StreamOptions{Stdin: true}), ctx, make(chan struct{})}
			opened <- s
			<-ctx.Done()
			close(s.ended)
		})
		test(t, client, <-opened)
	})
}

// connect returns a client that has opened a WebSocket at a server, until the test ends.
func connect(t *testing.T, change func(net.Conn) net.Conn, protocol string, serve http.HandlerFunc) *websocket.Conn {
	t.Helper()
	l := memory.Listen()
	srv := &http.Server{Handler: serve}
	go func() { _ = srv.Serve(changing{l, change}) }()
	t.Cleanup(func() { srv.Close() })
	dialer := websocket.Dialer{Subprotocols: []string{protocol}}
	dialer.NetDialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := l.Dial(ctx, network, addr)
		return &slow{Conn: c}, err
	}
	client, _, err := dialer.DialContext(t.Context(), "ws://node/", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

// changing changes the connections of a listener.
type changing struct {
	net.Listener
	change func(net.Conn) net.Conn
}

func (l changing) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil || l.change == nil {
		return c, err
	}
	return l.change(c), nil
}

// stuck is serving for a client that has sent input that the command does not read.
func stuck(t *testing.T, test func(client *websocket.Conn, s *session)) {
	serving(t, nil, func(t *testing.T, client *websocket.Conn, s *session) {
		go func() { _, _, _ = client.NextReader() }() // the pings
		if err := client.WriteMessage(websocket.BinaryMessage, []byte("\x00input")); err != nil {
			t.Fatal(err)
		}
		test(client, s)
	})
}

// TestClientGoesWhileInputWaits checks that a session ends soon after its client has gone, even if the command never
// reads its input.
func TestClientGoesWhileInputWaits(t *testing.T) {
	stuck(t, func(client *websocket.Conn, s *session) {
		time.Sleep(24 * time.Hour)
		select {
		case <-s.ended:
			t.Fatal("got the end of a session whose client is there, want it to stay")
		default:
		}
		went := time.Now()
		client.Close()
		<-s.ended
		if took := time.Since(went); took > 2*pingTime {
			t.Errorf("got the end %s after the client had gone, want it after at most %s", took, 2*pingTime)
		}
	})
}

// TestResultTakesLimitedTime checks that a client that takes nothing any more does not hold up the end of the session.
func TestResultTakesLimitedTime(t *testing.T) {
	stuck(t, func(client *websocket.Conn, s *session) {
		client.NetConn().SetReadDeadline(time.Now())
		time.Sleep(2 * pingTime) // the next ping holds the connection
		began := time.Now()
		if err := s.finish(s.ctx, nil); err == nil {
			t.Error("got no error, want one for a client that reads nothing")
		}
		if took := time.Since(began); took > lingerTime {
			t.Errorf("got the end after %s, want it after at most %s", took, lingerTime)
		}
	})
}

// TestClientThatStays checks that a client that neither goes after the result nor stops sending does not keep the
// session.
func TestClientThatStays(t *testing.T) {
	serving(t, nil, func(t *testing.T, client *websocket.Conn, s *session) {
		var sending sync.WaitGroup
		defer sending.Wait()
		sending.Go(func() {
			for client.WriteMessage(websocket.BinaryMessage, []byte("\x00input")) == nil {
				time.Sleep(time.Second)
			}
		})
		go func() { _, _ = io.Copy(io.Discard, client.NetConn()) }()
		began := time.Now()
		_ = s.finish(s.ctx, nil)
		if took := time.Since(began); took > lingerTime {
			t.Errorf("got the end after %s, want it after at most %s", took, lingerTime)
		}
	})
}

// kernel is a connection with a send buffer, which is lost when it is closed.
type kernel struct {
	net.Conn
	sent  chan []byte
	done  chan struct{}
	close func()
	left  atomic.Int64 // the bytes that the other end has not taken
}

func newKernel(c net.Conn) net.Conn {
	k := &kernel{Conn: c, sent: make(chan []byte, 1000), done: make(chan struct{})}
	k.close = sync.OnceFunc(func() { close(k.done) })
	go func() {
		for {
			select {
			case b := <-k.sent:
				for part := range slices.Chunk(b, 1<<10) {
					n, _ := c.Write(part)
					k.left.Add(-int64(n))
				}
			case <-k.done:
				return
			}
		}
	}()
	return k
}

func (k *kernel) Write(b []byte) (int, error) {
	k.left.Add(int64(len(b)))
	k.sent <- bytes.Clone(b)
	return len(b), nil
}

func (k *kernel) Close() error { k.close(); return k.Conn.Close() }

func (k *kernel) unsent() int64 { return k.left.Load() }

// slow is a connection that reads after a delay.
type slow struct {
	net.Conn
	delay atomic.Int64
}

func (c *slow) Read(b []byte) (int, error) {
	time.Sleep(time.Duration(c.delay.Load()))
	return c.Conn.Read(b)
}

// TestSlowClientGetsResult checks that a client that takes long for the rest of the output and for the result gets
// both, also if it sends pings meanwhile, which cannot be answered any more.
func TestSlowClientGetsResult(t *testing.T) {
	for _, pings := range []bool{false, true} {
		serving(t, newKernel, func(t *testing.T, client *websocket.Conn, s *session) {
			output := make([]byte, 32<<10)
			if _, err := (channel{s.commandClient, remotecommand.StreamStdOut}).Write(output); err != nil {
				t.Fatal(err)
			}
			client.NetConn().(*slow).delay.Store(int64(lingerTime / 3))
			go func() { _ = s.finish(s.ctx, nil) }()
			var sending sync.WaitGroup
			sending.Go(func() {
				for pings && client.WriteControl(websocket.PingMessage, nil, time.Time{}) == nil {
					time.Sleep(5 * time.Second)
				}
			})
			for _, want := range []string{string(output), `"status":"Success"`} {
				if _, got, err := client.ReadMessage(); err != nil || !strings.Contains(string(got), want) {
					t.Fatalf("pings %t: got %d bytes, %v, want the output, then the result", pings, len(got), err)
				}
			}
			client.Close()
			sending.Wait()
			<-s.ended
		})
	}
}

// TestRestOfForward checks that a slow client of a port-forward over a WebSocket gets all of what the runtime sent
// before it ended the stream.
func TestRestOfForward(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 32 << 10
		ended := make(chan struct{})
		protocol := tunnel.WebsocketsSPDYTunnelingPortForwardV1
		client := connect(t, newKernel, protocol, func(w http.ResponseWriter, r *http.Request) {
			defer close(ended)
			answer := &http.Response{Header: http.Header{"Upgrade": {spdy.HeaderSpdy31},
				"X-Stream-Protocol-Version": {tunnel.PortForwardV1Name}}}
			user, err := acceptTunnel(w, r, answer)
			if err != nil {
				t.Error(err)
				return
			}
			defer user.Close()
			runtime, backend := net.Pipe()
			go func() { defer runtime.Close(); _, _ = runtime.Write(make([]byte, size)) }()
			(&pipe{}).join(r.Context(), user, side{backend, bufio.NewReader(backend)})
		})
		client.NetConn().(*slow).delay.Store(int64(lingerTime / 3))
		got := 0
		for {
			_, message, err := client.ReadMessage()
			if got += len(message); err != nil {
				break
			}
		}
		if got != size {
			t.Errorf("got %d bytes, want %d", got, size)
		}
		client.Close()
		<-ended
	})
}
