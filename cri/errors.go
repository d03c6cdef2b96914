package cri

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Error is a call that failed. status.FromError and the predicates of this package find its gRPC status.
type Error struct {
	// Verb is the name of the call in the CRI, Object what it is about, such as default/web#0.
	Verb, Object string
	// NoAnswer is how long the runtime did not answer before the call timed out, 0 otherwise. Whether the call took effect
	// is unknown then.
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

// Unwrap returns the error of gRPC.
func (e *Error) Unwrap() error { return e.Err }

// Message returns the runtime's own text, without the call and without gRPC's prefix "rpc error: code = …".
func Message(err error) string {
	if e, ok := errors.AsType[*Error](err); ok {
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

// IsNotFound reports whether the runtime knows no such sandbox, container or image.
func IsNotFound(err error) bool { return is(err, codes.NotFound) }

// IsNameHeld reports whether containerd refuses to create a sandbox or container because its name and attempt have an
// owner: one that is listed, or one that another call makes, such as an earlier one that has timed out. CRI has no code
// for it. CRI-O means something else by its own answer: it hands the object over at a later call with the same attempt.
func IsNameHeld(err error) bool {
	return err != nil && heldName.MatchString(Message(err))
}

var heldName = regexp.MustCompile(`^failed to reserve (sandbox|container) name .*name .* is reserved for `)

// IsExhausted reports whether the runtime is at one of its limits.
func IsExhausted(err error) bool { return is(err, codes.ResourceExhausted) }

// IsUnavailable reports whether there was no connection to the runtime, or it broke during the call. For ExecSync also
// whether the runtime has stopped answering.
func IsUnavailable(err error) bool { return is(err, codes.Unavailable) }

var errCutOff = errors.New("the connection broke before the answer")

// IsCutOff reports whether the connection broke during a call of ExecSync: the command may have run, or may still run.
// IsUnavailable reports this error too.
func IsCutOff(err error) bool { return errors.Is(err, errCutOff) }

// IsUnimplemented reports whether the runtime does not support the call. A server without any CRI service is no runtime
// yet: containerd answers so as long as it cannot load its CRI plugin.
func IsUnimplemented(err error) bool { return is(err, codes.Unimplemented) && !noService(err) }

// noService reports whether the server has no CRI service.
func noService(err error) bool {
	return is(err, codes.Unimplemented) && strings.Contains(err.Error(), "unknown service")
}

// Remedy returns what an operator can do about a runtime that does not answer Version.
func Remedy(err error) string {
	if noService(err) {
		return "load the CRI plugin of containerd: remove cri from disabled_plugins in /etc/containerd/config.toml, " +
			"and restart containerd"
	}
	return "start the container runtime, such as with systemctl start containerd"
}

// IsDeadline reports whether the call timed out: by the caller's context, by its own limit or, for ExecSync, by that of
// the command.
func IsDeadline(err error) bool {
	return is(err, codes.DeadlineExceeded) || errors.Is(err, context.DeadlineExceeded)
}

// IsCanceled reports whether the caller has cancelled the call, or the client was closed.
func IsCanceled(err error) bool { return is(err, codes.Canceled) || errors.Is(err, context.Canceled) }

// Answered reports whether the runtime has answered, if only with an error. Otherwise the call may have taken effect or
// not.
func Answered(err error) bool {
	return err == nil || !IsUnavailable(err) && !IsDeadline(err) && !IsCanceled(err)
}
