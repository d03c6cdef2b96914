package cri

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Error is a call that failed. The gRPC status is reachable with status.FromError and the predicates of this package.
type Error struct {
	// Verb and Object are those of Call.
	Verb, Object string
	// NoAnswer is how long the runtime kept silent when the call was given up for that, 0 otherwise. Whether the call took
	// effect is then unknown.
	NoAnswer time.Duration
	// Err is what gRPC returned.
	Err error
}

func (e *Error) Error() string {
	what := e.Verb
	if e.Object != "" {
		what += " " + e.Object
	}
	if e.NoAnswer > 0 {
		return fmt.Sprintf("%s: no answer from the container runtime within %s: %v", what, e.NoAnswer, e.Err)
	}
	return fmt.Sprintf("%s: %v", what, e.Err)
}

// Unwrap gives the error of gRPC.
func (e *Error) Unwrap() error { return e.Err }

// Message is the runtime's own text, without the call and without gRPC's "rpc error: code = …" before it.
func Message(err error) string {
	var e *Error
	if errors.As(err, &e) {
		err = e.Err
	}
	if s, ok := status.FromError(err); ok {
		return s.Message()
	}
	return err.Error()
}

func is(err error, code codes.Code) bool {
	s, ok := status.FromError(err)
	return err != nil && ok && s.Code() == code
}

// IsNotFound: the runtime knows no such sandbox, container or image.
func IsNotFound(err error) bool { return is(err, codes.NotFound) }

// IsUnavailable: there is no connection to the runtime, or it broke during the call.
func IsUnavailable(err error) bool { return is(err, codes.Unavailable) }

// IsUnimplemented: the runtime does not know the call.
func IsUnimplemented(err error) bool { return is(err, codes.Unimplemented) }

// IsDeadline: the time was up, the caller's, the call's or, for ExecSync, the command's.
func IsDeadline(err error) bool {
	return is(err, codes.DeadlineExceeded) || errors.Is(err, context.DeadlineExceeded)
}

// IsCanceled: the caller gave the call up, or the client was closed.
func IsCanceled(err error) bool { return is(err, codes.Canceled) || errors.Is(err, context.Canceled) }

// Answered reports whether the runtime has answered, be it with an error of its own. Otherwise it may have done the
// work or not.
func Answered(err error) bool {
	return err == nil || !IsUnavailable(err) && !IsDeadline(err) && !IsCanceled(err)
}
