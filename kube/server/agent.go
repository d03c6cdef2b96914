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

// Agent answers requests about the pods of the node. An error that is an *Error has its own HTTP status; any other is a
// 500.
type Agent interface {
	// Pods returns the pods that a source has, with their newest status.
	Pods(ctx context.Context) ([]*corev1.Pod, error)
	// Allocated returns the pods that are admitted and have not ended, with the resources that they have; a 404 if the
	// gate KubeletAllocatedPodsEndpoint is off.
	Allocated(ctx context.Context) ([]*corev1.Pod, error)
	// Running returns all pods that the runtime runs: names and containers only.
	Running(ctx context.Context) ([]*corev1.Pod, error)
	// Logs writes the log of a container. Only its first write may be empty: it shows that the request has been accepted.
	// A nil writer means that the stream is not requested.
	Logs(ctx context.Context, of Container, o *corev1.PodLogOptions, stdout, stderr io.Writer) error
	// Exec, Attach and PortForward return the URL at which the runtime serves the stream.
	Exec(ctx context.Context, in Container, command []string, o StreamOptions) (url string, err error)
	Attach(ctx context.Context, to Container, o StreamOptions) (url string, err error)
	PortForward(ctx context.Context, to Container, ports []int32) (url string, err error)
	// Run runs a command until it ends and returns its output.
	Run(ctx context.Context, in Container, command []string) ([]byte, error)
	// Checkpoint writes a checkpoint of a container (KEP-2008) and returns its file; a timeout of 0 means the runtime's
	// own.
	Checkpoint(ctx context.Context, of Container, timeout time.Duration) (file string, err error)
}

// Container identifies a container as the path of a request does. UID may be empty; for a static pod it is that of the
// mirror pod. A port-forward has no Name.
type Container struct {
	Namespace, Pod string
	UID            types.UID
	Name           string
}

// StreamOptions says which streams a client requests.
type StreamOptions struct{ Stdin, Stdout, Stderr, TTY bool }

// Error is an error with its HTTP status.
type Error struct {
	// Code is the HTTP status.
	Code int
	Text string
	// RetryAfter is when the client may try again; 0: the answer does not say.
	RetryAfter time.Duration
}

func (e *Error) Error() string { return e.Text }

// Errorf returns an *Error.
func Errorf(code int, format string, args ...any) error {
	return &Error{Code: code, Text: fmt.Sprintf(format, args...)}
}

// NotFound returns an *Error with status 404.
func NotFound(format string, args ...any) error { return Errorf(http.StatusNotFound, format, args...) }
