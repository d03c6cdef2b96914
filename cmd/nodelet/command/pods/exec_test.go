package pods

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/util/exec"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"

	"github.com/nodelet/nodelet/cmd/nodelet/command"
)

// container is what the runtime's streaming server runs: a function in place of a command. err is how it ends.
type container func(in io.Reader, out, errs io.Writer) (err error)

func (c container) Exec(_ context.Context, _ string, _ []string, in io.Reader, out, errs io.WriteCloser, _ bool,
	_ <-chan remotecommand.TerminalSize) error {
	return c(in, out, errs)
}

func (container) Attach(context.Context, string, io.Reader, io.WriteCloser, io.WriteCloser, bool,
	<-chan remotecommand.TerminalSize) error {
	return errors.New("not expected")
}

func (container) PortForward(context.Context, string, int32, io.ReadWriteCloser) error {
	return errors.New("not expected")
}

// serve starts a runtime's streaming server and returns the URL of one command with input and output.
func serve(t *testing.T, c container) string {
	t.Helper()
	return serveFor(t, c, &runtimeapi.ExecRequest{Stdin: true, Stdout: true, Stderr: true})
}

func serveFor(t *testing.T, c container, req *runtimeapi.ExecRequest) string {
	t.Helper()
	front := httptest.NewUnstartedServer(nil)
	settings := streaming.DefaultConfig
	settings.BaseURL = &url.URL{Scheme: "http", Host: front.Listener.Addr().String()}
	s, err := streaming.NewServer(settings, c)
	if err != nil {
		t.Fatal(err)
	}
	front.Config.Handler = s
	front.Start()
	t.Cleanup(front.Close)
	req.ContainerId = "id"
	resp, err := s.GetExec(req)
	if err != nil {
		t.Fatal(err)
	}
	return resp.Url
}

// TestStreams passes input, output, errors and the exit code of a command.
func TestStreams(t *testing.T) {
	big := strings.Repeat("x", 70_000)
	for _, want := range []int{0, 7} {
		at := serve(t, func(in io.Reader, out, errs io.Writer) error {
			stdin, err := io.ReadAll(in)
			if err != nil {
				return err
			}
			_, outErr := io.WriteString(out, "got "+string(stdin)+big)
			_, errsErr := io.WriteString(errs, "oops")
			if want != 0 {
				return exec.CodeExitError{Err: errors.New("exit"), Code: want}
			}
			return errors.Join(outErr, errsErr)
		})
		var out, errs bytes.Buffer
		call := command.Call{Context: t.Context(), In: strings.NewReader("hello"), Out: &out, Err: &errs}
		err := stream(call, at, true, false)
		got := 0
		if exit, ok := errors.AsType[*command.ExitError](err); ok {
			got, err = exit.Code, nil
		}
		if got != want || err != nil {
			t.Errorf("exit code: got %d, %v, want %d", got, err, want)
		}
		if out.String() != "got hello"+big || errs.String() != "oops" {
			t.Errorf("got %d bytes and errors %q, want %d and oops", out.Len(), errs.String(), len("got hello")+len(big))
		}
	}
}

// TestStreamFails checks that a command that cannot run, a server that refuses, and an interrupt are errors.
func TestStreamFails(t *testing.T) {
	at := serve(t, func(io.Reader, io.Writer, io.Writer) error { return errors.New("no such program") })
	call := command.Call{Context: t.Context(), In: strings.NewReader(""), Out: io.Discard, Err: io.Discard}
	if err := stream(call, at, true, false); err == nil || !strings.Contains(err.Error(), "no such program") {
		t.Errorf("command that cannot run: got %v, want its error", err)
	}
	refusing := httptest.NewServer(http.NotFoundHandler())
	defer refusing.Close()
	if err := stream(call, refusing.URL, true, false); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("refusal: got %v, want status 404", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	at = serve(t, func(in io.Reader, _, _ io.Writer) error {
		cancel()
		_, err := io.Copy(io.Discard, in)
		return err
	})
	block, release := io.Pipe()
	defer release.Close()
	call.Context, call.In = ctx, block
	if err := stream(call, at, true, false); err == nil || err.Error() != "interrupted" {
		t.Errorf("ended context: got %v, want interrupted", err)
	}
}

// TestInterruptWithoutInput checks that the keys of the user still end the program if the command has a terminal but
// gets no input.
func TestInterruptWithoutInput(t *testing.T) {
	for _, stdin := range []bool{false, true} {
		user := terminalOf(t)
		signals := func() bool {
			mode, err := unix.IoctlGetTermios(int(user.Fd()), unix.TCGETS)
			if err != nil {
				t.Error(err)
				return false
			}
			return mode.Lflag&unix.ISIG != 0
		}
		var during atomic.Bool
		at := serveFor(t, func(io.Reader, io.Writer, io.Writer) error { during.Store(signals()); return nil },
			&runtimeapi.ExecRequest{Stdin: stdin, Stdout: true, Tty: true})
		call := command.Call{Context: t.Context(), In: user, Out: io.Discard, Err: io.Discard}
		if err := stream(call, at, stdin, true); err != nil {
			t.Fatal(err)
		}
		if got, after := during.Load(), signals(); got == stdin || !after {
			t.Errorf("input %v: Ctrl-C is a signal: got %v, and %v afterwards, want %v, and true", stdin, got, after, !stdin)
		}
	}
}

// terminalOf returns a terminal that nobody types on.
func terminalOf(t *testing.T) *os.File {
	t.Helper()
	keyboard, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip("this system has no terminals: ", err)
	}
	t.Cleanup(func() { _ = keyboard.Close() })
	number, err := unix.IoctlGetInt(int(keyboard.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(keyboard.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	user, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("this system has no terminals: ", err)
	}
	t.Cleanup(func() { _ = user.Close() })
	return user
}
