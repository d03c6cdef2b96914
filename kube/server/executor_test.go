package server

import (
	"context"
	"io"
	"net/url"
	"testing"
	"testing/synctest"
	"time"

	executor "k8s.io/client-go/tools/remotecommand"

	memory "github.com/nodelet/nodelet/test/pipe"
)

// TestNoAnswerToUpgrade checks that a runtime that does not answer an upgrade holds up a client for a limited time, and
// not after the client has gone.
func TestNoAnswerToUpgrade(t *testing.T) {
	const leaves = time.Second
	for _, most := range []time.Duration{upgradeTime, leaves} {
		synctest.Test(t, func(t *testing.T) {
			l := memory.Listen()
			defer l.Close()
			go func() {
				if c, err := l.Accept(); err == nil {
					_, _ = io.Copy(io.Discard, c)
				}
			}()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if most == leaves {
				time.AfterFunc(leaves, cancel)
			}
			command, err := newExecutor(&url.URL{Scheme: "http", Host: "runtime", Path: "/exec/token"}, l.Dial)
			if err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			err = command.StreamWithContext(ctx, executor.StreamOptions{Stdout: io.Discard})
			if took := time.Since(began); err == nil || took > most {
				t.Errorf("got %v after %s, want an error after at most %s", err, took, most)
			}
		})
	}
}
