package cni

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
	"golang.org/x/sys/unix"

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
	Verb   string        `json:"verb"`   // ADD, CHECK, DEL, STATUS, GC
	Took   time.Duration `json:"took"`   // ns
	Err    string        `json:"err,omitempty"`
}

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
	limit := r.limit
	if limit <= 0 {
		limit = callLimit
	}
	timed, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var stdout, stderr *bounded
	var err error
	for try := 0; ; try++ {
		stdout, stderr = &bounded{limit: maxOutput}, &bounded{limit: maxComplaint, forgiving: true}
		cmd := command(timed, path, stdin, environ, stdout, stderr)
		// A program that is being written cannot be run (ETXTBSY): its installer has not finished.
		if err = cmd.Run(); !errors.Is(err, unix.ETXTBSY) || try == 20 || !backoff.Sleep(timed, 100*time.Millisecond) {
			break
		}
	}
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("plugin %s was stopped during %s: %w", call.Plugin, call.Verb, context.Cause(ctx))
	case timed.Err() != nil:
		return nil, fmt.Errorf("plugin %s did not finish %s within %s and was killed with all that it had started%s",
			call.Plugin, call.Verb, limit, complaint(stderr))
	case stdout.overflown:
		return nil, fmt.Errorf("plugin %s printed more than %d bytes for %s", call.Plugin, maxOutput, call.Verb)
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

func command(ctx context.Context, path string, stdin []byte, environ []string, stdout, stderr *bounded) *exec.Cmd {
	cmd := exec.CommandContext(ctx, path)
	cmd.Env, cmd.Stdin = environ, bytes.NewReader(stdin)
	cmd.Stdout, cmd.Stderr = stdout, stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = 2 * time.Second // a process outside of the group may hold the pipes
	return cmd
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
func pluginError(call *Call, err error, stdout, stderr *bounded) error {
	said := &types.Error{}
	if json.Unmarshal(stdout.Bytes(), said) == nil && said.Msg != "" {
		return said
	}
	text := fmt.Sprintf("plugin %s failed at %s: %v", call.Plugin, call.Verb, err)
	if len(stdout.kept) > 0 {
		text += "; it printed " + excerpt(stdout.Bytes())
	}
	return errors.New(text + complaint(stderr))
}

func complaint(stderr *bounded) string {
	if len(stderr.kept) == 0 {
		return ""
	}
	return "; it complained: " + excerpt(stderr.Bytes())
}

// excerpt quotes the beginning of untrusted text.
func excerpt(b []byte) string {
	b = bytes.TrimSpace(b)
	if len(b) > 300 {
		return fmt.Sprintf("%.300q…", b)
	}
	return fmt.Sprintf("%q", b)
}

// bounded keeps the first limit bytes. More bytes are an error, unless it is forgiving. The buffer is not embedded
// because its ReadFrom would ignore the limit.
type bounded struct {
	kept                 []byte
	limit                int
	overflown, forgiving bool
}

func (b *bounded) Bytes() []byte { return b.kept }

func (b *bounded) Write(p []byte) (int, error) {
	free := b.limit - len(b.kept)
	if len(p) <= free {
		b.kept = append(b.kept, p...)
		return len(p), nil
	}
	b.kept = append(b.kept, p[:free]...)
	b.overflown = true
	if b.forgiving {
		return len(p), nil
	}
	return free, errors.New("too much output")
}
