package images

import (
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nodelet/nodelet/cri"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// Reason is why there is no image. Reason and Message become the waiting state of the container.
type Reason struct {
	Reason, Message string
	// Event is the text of the event, if that is not Message: what the runtime has said of the pull.
	Event string
	// Err is the error of the runtime; nil if it was not called.
	Err error
}

func (r *Reason) Error() string { return r.Message }

// Unwrap returns the error of the runtime.
func (r *Reason) Unwrap() error { return r.Err }

// neverPull returns the error for an image that is not present, or that the pod may not use, and must not be pulled.
func neverPull(image string) error {
	return &Reason{Reason: podutil.ReasonErrImageNeverPull,
		Message: fmt.Sprintf("Container image %q is not present with pull policy of Never", image)}
}

func invalidName(image string, err error) error {
	return &Reason{Reason: podutil.ReasonInvalidImageName,
		Message: fmt.Sprintf("Failed to apply default image tag %q: couldn't parse image name %q: %v", image, image, err)}
}

func inspectFailed(image string, err error) error {
	return &Reason{Reason: podutil.ReasonImageInspect, Message: fmt.Sprintf("Failed to inspect image %q: %v", image, err),
		Err: err}
}

func recordFailed(image string, err error) error {
	return &Reason{
		Reason:  podutil.ReasonErrImagePull,
		Message: fmt.Sprintf("Failed to record image pull intent for container image %q: %v", image, err),
		Err:     err,
	}
}

// pullFailed turns the errors of a pull, one for each credential tried, into a Reason with the kubelet's message.
func pullFailed(image string, errs []error) error {
	last := errs[len(errs)-1]
	for _, err := range errs {
		if r := classify(image, err); r != nil {
			return r
		}
	}
	var texts []string
	for _, err := range errs {
		if text := pullText(err); len(texts) == 0 || texts[len(texts)-1] != text {
			texts = append(texts, text)
		}
	}
	message := texts[0]
	if len(texts) > 1 {
		message = "[" + strings.Join(texts, ", ") + "]"
	}
	return &Reason{Reason: podutil.ReasonErrImagePull, Message: message, Err: last}
}

// classify recognizes the failures for which the CRI has defined a prefix; it returns nil for others.
func classify(image string, err error) error {
	text := cri.Message(err)
	for reason, why := range map[string]string{
		podutil.ReasonRegistryUnavailable:       "the registry is unavailable",
		podutil.ReasonSignatureValidationFailed: "the signature validation failed",
	} {
		if detail, ok := strings.CutPrefix(text, reason); ok {
			message := fmt.Sprintf("image pull failed for %s because %s%s", image, why, detail)
			return &Reason{Reason: reason, Message: message, Event: pullText(err), Err: err}
		}
	}
	return nil
}

// pullText returns the text of an error as the kubelet shows it: with its code, unless the code is Unknown.
func pullText(err error) string {
	if s, ok := status.FromError(err); ok && s.Code() != codes.Unknown {
		return fmt.Sprintf("rpc error: code = %s desc = %s", s.Code(), cri.Message(err))
	}
	return cri.Message(err)
}
