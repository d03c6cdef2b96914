package probes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/internal/backoff"
	"github.com/nodelet/nodelet/internal/release"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// HookTarget is the container that a lifecycle hook is for.
type HookTarget struct {
	// Pod names the pod in errors.
	Pod         string
	ContainerID string
	Container   *corev1.Container // for its name and the names of its ports
	// PodIP is called if the hook has no host.
	PodIP string
	// Exec runs the command of an exec hook.
	Exec Exec
	// Warn, if set, receives Warning events about a hook that succeeded.
	Warn func(reason, message string)
}

// ErrSleepEnded is the error of a sleep hook whose container ended before it.
var ErrSleepEnded = errors.New("container terminated before sleep hook finished")

// FallbackReason is the reason of the event about a hook that speaks HTTP, because its server does not speak HTTPS.
const FallbackReason = "LifecycleHTTPFallback"

// RunHook runs a postStart or preStop handler and returns when it is done; ctx bounds it (a preStop hook by the pod's
// grace period). HTTP hooks speak HTTP/1.1, whatever protocol they name, succeed with any answer, whatever its status,
// and fall back to plain HTTP where the server does not speak HTTPS, all as with the kubelet. tcpSocket is in the API
// for old objects only and always fails. The errors are worded like the kubelet's, which name what a command printed on
// standard error twice.
func RunHook(ctx context.Context, h *corev1.LifecycleHandler, t HookTarget) error {
	switch {
	case h.Exec != nil:
		return t.failed("Exec", h.Exec.Command, t.runExec(ctx, h.Exec.Command))
	case h.HTTPGet != nil:
		return t.failed("HTTP", h.HTTPGet.Path, t.runHTTP(ctx, h.HTTPGet))
	case h.Sleep != nil:
		if !backoff.Sleep(ctx, podutil.Grace(h.Sleep.Seconds)) {
			return t.failed("Sleep", h.Sleep.Seconds, ErrSleepEnded)
		}
		return nil
	case h.TCPSocket != nil:
		return errors.New("lifecycle hook: tcpSocket is not supported; use exec, httpGet or sleep")
	}
	return errors.New("lifecycle hook has no known handler: set exec, httpGet or sleep")
}

// failed returns the error of a hook, with what the hook does; nil without err.
func (t *HookTarget) failed(kind string, what any, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s lifecycle hook (%v) for Container %q in Pod %q failed - error: %w", kind, what, t.Container.Name,
		t.Pod, err)
}

func (t *HookTarget) runExec(ctx context.Context, cmd []string) error {
	output, code, err := t.Exec(ctx, t.ContainerID, cmd, 0)
	if err == nil && code != 0 {
		return fmt.Errorf("command '%s' exited with %d, message: %q", strings.Join(cmd, " "), code, text(output))
	}
	return err
}

func (t *HookTarget) runHTTP(ctx context.Context, get *corev1.HTTPGetAction) error {
	if get.Host == "" && t.PodIP == "" {
		return errors.New("the pod has no address yet")
	}
	req, err := newRequest(ctx, get, t.Container, t.PodIP, "kube-lifecycle/"+release.Minor())
	if err != nil {
		return err
	}
	err = do(req)
	if !errors.Is(err, http.ErrSchemeMismatch) { // else the server speaks plain HTTP
		return err
	}
	plain := req.Clone(ctx)
	plain.URL.Scheme = "http"
	plain.Header.Del("Authorization") // was meant for an encrypted connection
	if do(plain) != nil {
		return err
	}
	if t.Warn != nil {
		t.Warn(FallbackReason,
			fmt.Sprintf("request to HTTPS lifecycle hook %s got HTTP response, retry with HTTP succeeded", req.URL.Host))
	}
	return nil
}

// do sends req and reads the beginning of the answer, so that the server can finish.
func do(req *http.Request) error {
	resp, err := newClient(hookTransport, 0).Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, _ = io.CopyN(io.Discard, resp.Body, maxOutput)
	return nil
}
