package server

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gorilla/websocket"

	memory "github.com/nodelet/nodelet/test/pipe"
)

// stuck calls serve, in a synctest bubble, with a client that has sent input that the command does not read.
func stuck(t *testing.T, serve func(client *websocket.Conn, c *commandClient, ended <-chan struct{})) {
	synctest.Test(t, func(t *testing.T) {
		opened := make(chan *commandClient)
		ended := make(chan struct{})
		l := memory.Listen()
		srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			conn, err := acceptWebSocket(w, r, "v5.channel.k8s.io")
			if err != nil {
				t.Error(err)
				return
			}
			ctx, cancel := context.WithCancel(r.Context())
			defer cancel()
			opened <- newCommandClient(ctx, cancel, conn, StreamOptions{Stdin: true})
			<-ctx.Done()
			close(ended)
		})}
		go func() { _ = srv.Serve(l) }()
		defer srv.Close()
		dialer := websocket.Dialer{NetDialContext: l.Dial, Subprotocols: []string{"v5.channel.k8s.io"}}
		client, _, err := dialer.DialContext(t.Context(), "ws://node/", nil)
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		go func() { _, _, _ = client.NextReader() }() // the pings
		if err := client.WriteMessage(websocket.BinaryMessage, []byte("\x00input")); err != nil {
			t.Fatal(err)
		}
		serve(client, <-opened, ended)
	})
}

// TestClientGoesWhileInputWaits checks that a session ends soon after its client has gone, even if the command never
// reads its input.
func TestClientGoesWhileInputWaits(t *testing.T) {
	stuck(t, func(client *websocket.Conn, _ *commandClient, ended <-chan struct{}) {
		time.Sleep(24 * time.Hour)
		select {
		case <-ended:
			t.Fatal("got the end of a session whose client is there, want it to stay")
		default:
		}
		went := time.Now()
		client.Close()
		<-ended
		if took := time.Since(went); took > 2*pingTime {
			t.Errorf("got the end %s after the client had gone, want it after at most %s", took, 2*pingTime)
		}
	})
}

// TestResultTakesLimitedTime checks that a client that takes nothing any more does not hold up the end of the session.
func TestResultTakesLimitedTime(t *testing.T) {
	stuck(t, func(client *websocket.Conn, c *commandClient, ended <-chan struct{}) {
		client.NetConn().SetReadDeadline(time.Now())
		time.Sleep(2 * pingTime) // the next ping holds the connection
		began := time.Now()
		if err := c.finish(t.Context(), nil); err == nil {
			t.Error("got no error, want one for a client that reads nothing")
		}
		if took := time.Since(began); took > statusTime {
			t.Errorf("got the end after %s, want it after at most %s", took, statusTime)
		}
	})
}
