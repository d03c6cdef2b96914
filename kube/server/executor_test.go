package server

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/url"
	"testing"
	"testing/synctest"
	"time"

	executor "k8s.io/client-go/tools/remotecommand"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"
	runtimecommand "k8s.io/cri-streaming/pkg/streaming/remotecommand"

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

// late is a container in which a command takes two hours for one word.
type late struct{ streaming.Runtime }

func (late) Exec(_ context.Context, _ string, _ []string, _ io.Reader, out, _ io.WriteCloser, _ bool,
	_ <-chan runtimecommand.TerminalSize) error {
	time.Sleep(2 * time.Hour)
	_, err := io.WriteString(out, "done")
	return err
}

// TestQuietCommandStays checks that the runtime's own idle time does not end the stream of a command that neither reads
// nor writes.
func TestQuietCommandStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		settings := streaming.DefaultConfig
		settings.BaseURL = &url.URL{Scheme: "http", Host: "runtime"}
		settings.StreamIdleTimeout = time.Minute
		runtime, err := streaming.NewServer(settings, late{})
		if err != nil {
			t.Fatal(err)
		}
		l := memory.Listen()
		srv := &http.Server{Handler: runtime}
		go func() { _ = srv.Serve(l) }()
		defer srv.Close()
		resp, err := runtime.GetExec(&runtimeapi.ExecRequest{ContainerId: "id", Stdout: true})
		if err != nil {
			t.Fatal(err)
		}
		target, err := url.Parse(resp.Url)
		if err != nil {
			t.Fatal(err)
		}
		command, err := newExecutor(target, l.Dial)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var out bytes.Buffer
		err = command.StreamWithContext(ctx, executor.StreamOptions{Stdout: &out})
		if err != nil || out.String() != "done" {
			t.Errorf("got output %q, %v, want %q", out.String(), err, "done")
		}
	})
}
