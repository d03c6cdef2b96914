package server

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Agent answers for the pods of the node. An error that is an *Error says with which HTTP status it is told; any other
// is a 500.
type Agent interface {
	// Pods are the pods that are wanted here, with their newest status.
	Pods(ctx context.Context) ([]*corev1.Pod, error)
	// Running are the pods that the runtime runs, whoever wants them: names and containers, no more.
	Running(ctx context.Context) ([]*corev1.Pod, error)
	// Logs writes the log of a container. It makes no write that is empty but the first, by which the reader is known to
	// be served. A nil writer is a stream that is not wanted.
	Logs(ctx context.Context, of Container, o *corev1.PodLogOptions, stdout, stderr io.Writer) error
	// Exec, Attach and PortForward give the URL at which the runtime serves the stream.
	Exec(ctx context.Context, in Container, command []string, o StreamOptions) (url string, err error)
	Attach(ctx context.Context, to Container, o StreamOptions) (url string, err error)
	PortForward(ctx context.Context, to Container, ports []int32) (url string, err error)
	// Run runs a command to its end and gives its output.
	Run(ctx context.Context, in Container, command []string) ([]byte, error)
	// Checkpoint writes a checkpoint of a container (KEP-2008) and gives its file; a timeout of 0 is the runtime's own.
	Checkpoint(ctx context.Context, of Container, timeout time.Duration) (file string, err error)
}

// A Container is named as the path of a request names it. UID may be empty; of a static pod it is that of the mirror
// pod. For a port-forward there is no Name.
type Container struct {
	Namespace, Pod string
	UID            types.UID
	Name           string
}

// StreamOptions say which streams a client wants.
type StreamOptions struct{ Stdin, Stdout, Stderr, TTY bool }

// An Error says with which HTTP status it is told.
type Error struct {
	Code int
	Text string
}

func (e *Error) Error() string { return e.Text }

// Errorf makes an Error.
func Errorf(code int, format string, args ...any) error {
	return &Error{Code: code, Text: fmt.Sprintf(format, args...)}
}

// NotFound is the error of what is not there.
func NotFound(format string, args ...any) error { return Errorf(http.StatusNotFound, format, args...) }
