package endpoints

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// TestListenTriesAgain checks that a port that another program has is tried again, with one message.
func TestListenTriesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		want := &net.TCPListener{}
		tries, messages := 0, 0
		open := func() (net.Listener, error) {
			if tries++; tries < 4 {
				return nil, errors.New("address in use")
			}
			return want, nil
		}
		if got := listen(t.Context(), open, func(error) { messages++ }); got != want || messages != 1 || tries != 4 {
			t.Errorf("got %v after %d tries with %d messages, want the listener after 4 with 1", got, tries, messages)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		never := func() (net.Listener, error) { return nil, errors.New("address in use") }
		if got := listen(ctx, never, func(error) {}); got != nil {
			t.Errorf("after the end of the context: got %v, want nil", got)
		}
	})
}
