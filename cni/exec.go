package cni

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/host/program"
	"github.com/nodelet/nodelet/internal/backoff"
)

const (
	// callLimit is the default limit of one call of a plugin.
	callLimit = time.Minute
	// maxOutput bounds the result of a plugin, and maxComplaint the part of its standard error that is kept, in bytes.
	maxOutput    = 1 << 20
	maxComplaint = 4 << 10
)

// Call is one run of a plugin.
type Call struct {
	Plugin string        `json:"plugin"` // its type, such as bridge
	Verb   string        `json:"verb"`   // ADD, CHECK, DEL, STATUS
	Took   time.Duration `json:"took"`   // ns
	Err    string        `json:"err,omitempty"`
}

// errTooMuch is the cause of the end of a plugin that prints more than maxOutput bytes.
var errTooMuch = errors.New("too much output")

// runner runs plugins for libcni and records the calls.
type runner struct {
	version.PluginDecoder
	limit time.Duration
	// observe is called after each call.
	observe func(Call)

	mu    sync.Mutex
	calls []Call
}

var _ invoke.Exec = (*runner)(nil)

// FindInPath finds a plugin's program; see invoke.FindInPath.
func (r *runner) FindInPath(plugin string, paths []string) (string, error) {
	return invoke.FindInPath(plugin, paths)
}

// ExecPlugin runs a plugin in a process group of its own. After the time limit it kills the whole group, because
// plugins run others, such as host-local, as children.
func (r *runner) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	call := Call{Plugin: filepath.Base(path), Verb: verbOf(environ)}
	began := time.Now()
	out, err := r.run(ctx, path, stdin, environ, &call)
	call.Took = time.Since(began)
	if err != nil {
		call.Err = err.Error()
	}
	r.mu.Lock()
	r.calls = append(r.calls, call)
	r.mu.Unlock()
	r.observe(call)
	return out, err
}

func (r *runner) run(ctx context.Context, path string, stdin []byte, environ []string, call *Call) ([]byte, error) {
	timed, cancel := context.WithTimeout(ctx, r.limit)
	defer cancel()
	timed, kill := context.WithCancelCause(timed)
	defer kill(nil)
	var stdout, stderr *program.Output
	var err error
	for try := 0; ; try++ {
		stdout = &program.Output{Limit: maxOutput, Overflow: func() { kill(errTooMuch) }}
		stderr = &program.Output{Limit: maxComplaint}
		cmd := program.Command(timed, path)
		cmd.Env, cmd.Stdin = environ, bytes.NewReader(stdin)
		cmd.Stdout, cmd.Stderr = stdout, stderr
		// A program that is being written cannot be run (ETXTBSY): its installer has not finished.
		if err = cmd.Run(); !errors.Is(err, unix.ETXTBSY) || try == 20 || !backoff.Sleep(timed, 100*time.Millisecond) {
			break
		}
	}
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("plugin %s was stopped during %s: %w", call.Plugin, call.Verb, context.Cause(ctx))
	case errors.Is(context.Cause(timed), errTooMuch):
		return nil, fmt.Errorf("plugin %s printed more than %d bytes for %s", call.Plugin, maxOutput, call.Verb)
	case timed.Err() != nil:
		return nil, fmt.Errorf("plugin %s did not finish %s within %s and was killed with all that it had started%s",
			call.Plugin, call.Verb, r.limit, complaint(stderr))
	case err != nil:
		return nil, pluginError(call, err, stdout, stderr)
	case call.Verb == "ADD":
		if err := checkResult(stdout.Bytes()); err != nil {
			return nil, fmt.Errorf("result of plugin %s: %w: %s", call.Plugin, err, excerpt(stdout.Bytes()))
		}
	}
	return stdout.Bytes(), nil
}

// checkResult returns an error for a result that package types of CNI cannot take: it panics at a null entry of a list.
func checkResult(text []byte) error {
	var lists struct{ Interfaces, IPs, Routes []*struct{} }
	if err := json.Unmarshal(text, &lists); err != nil {
		return fmt.Errorf("it is not JSON of the expected form: %w", err)
	}
	for _, list := range [][]*struct{}{lists.Interfaces, lists.IPs, lists.Routes} {
		if slices.Contains(list, nil) {
			return errors.New("a list has a null entry")
		}
	}
	return nil
}

func verbOf(environ []string) string {
	for _, e := range environ {
		if verb, ok := strings.CutPrefix(e, "CNI_COMMAND="); ok {
			return verb
		}
	}
	return ""
}

// pluginError returns the error that a failed plugin has printed: one of the CNI specification, or any text.
func pluginError(call *Call, err error, stdout, stderr *program.Output) error {
	said := &types.Error{}
	if json.Unmarshal(stdout.Bytes(), said) == nil && said.Msg != "" {
		return said
	}
	text := fmt.Sprintf("plugin %s failed at %s: %v", call.Plugin, call.Verb, err)
	if len(stdout.Bytes()) > 0 {
		text += "; it printed " + excerpt(stdout.Bytes())
	}
	return errors.New(text + complaint(stderr))
}

func complaint(stderr *program.Output) string {
	if len(stderr.Bytes()) == 0 {
		return ""
	}
	return "; its standard error: " + excerpt(stderr.Bytes())
}

// excerpt quotes the beginning of untrusted text.
func excerpt(b []byte) string {
	b = bytes.TrimSpace(b)
	if len(b) > 300 {
		return fmt.Sprintf("%.300q…", b)
	}
	return fmt.Sprintf("%q", b)
}
