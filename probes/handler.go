package probes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nodelet/nodelet/internal/release"
)

const (
	maxOutput  = 10 << 10 // bytes of an answer or of a command's output that are read
	maxHeaders = 64 << 10 // bytes of an answer's headers: in memory, short ones take many times their size
	maxErrored = 3        // tries of a handler that cannot be run at all
	// largeCommand is the size of a command in bytes, above which those of a pod take turns.
	largeCommand = 16 << 10
)

// try runs the handler of t. A handler that could not be run is tried again at once, as the kubelet does.
func (p *Prober) try(ctx context.Context, t *Target) (outcome Outcome, text string) {
	for range maxErrored {
		outcome, text = p.tryOnce(ctx, t)
		if outcome != Errored || ctx.Err() != nil {
			break
		}
	}
	return outcome, text
}

func (p *Prober) tryOnce(ctx context.Context, t *Target) (Outcome, string) {
	limit := timeout(t.Probe)
	switch h := t.Probe.ProbeHandler; {
	case h.Exec != nil:
		return p.tryExec(ctx, t, limit)
	case h.HTTPGet != nil:
		req, err := newRequest(ctx, h.HTTPGet, t.Container, t.PodIP, "kube-probe/"+release.Minor())
		if err != nil {
			return Errored, err.Error()
		}
		return tryHTTP(req, transportOf(h.HTTPGet), limit)
	case h.TCPSocket != nil:
		port, err := resolvePort(h.TCPSocket.Port, t.Container)
		if err != nil {
			return Errored, err.Error()
		}
		return tryTCP(ctx, address(h.TCPSocket.Host, t.PodIP, port), limit)
	case h.GRPC != nil:
		return tryGRPC(ctx, address("", t.PodIP, int(h.GRPC.Port)), h.GRPC, limit)
	}
	return Errored, "probe has no handler that is known: set exec, httpGet, tcpSocket or grpc"
}

// describe returns the event for an attempt, with the kubelet's message. Only of an HTTP answer whose body cannot be
// read the kubelet says "failure state", although it counts it for nothing, too. An error may repeat what a server has
// sent, so it is cut like an answer.
func describe(kind Kind, outcome Outcome, why string) (reason, message string) {
	why = text([]byte(why))
	switch outcome {
	case Warned:
		return "ProbeWarning", fmt.Sprintf("%s probe warning: %s", kind, why)
	case Failed:
		return "Unhealthy", fmt.Sprintf("%s probe failed: %s", kind, why)
	case Errored:
		return "Unhealthy", fmt.Sprintf("%s probe errored and resulted in unknown state: %s", kind, why)
	}
	return "", ""
}

func (p *Prober) tryExec(ctx context.Context, t *Target, limit time.Duration) (Outcome, string) {
	cmd, done, err := p.command(ctx, t)
	if err != nil {
		return Errored, err.Error()
	}
	defer done()
	output, code, err := p.cfg.Exec(ctx, t.ContainerID, cmd, limit)
	switch {
	case isTimeout(err):
		return Failed, fmt.Sprintf("command timed out: %q timed out after %s", strings.Join(cmd, " "), limit)
	case err != nil:
		return Errored, execError(err)
	case code != 0:
		return Failed, text(output)
	}
	return Succeeded, text(output)
}

// command returns the command of an exec probe. It is in memory until the attempt is done, which may take days. So the
// large ones of a pod take turns.
func (p *Prober) command(ctx context.Context, t *Target) (cmd []string, done func(), err error) {
	if t.Command == nil {
		return t.Probe.Exec.Command, func() {}, nil
	}
	if cmd = t.Command(); size(cmd) <= largeCommand {
		return cmd, func() {}, nil
	}
	cmd = nil // not while it waits
	if done, err = p.large.Lock(ctx, t.Namespace+"/"+t.Pod); err != nil {
		return nil, nil, err
	}
	return t.Command(), done, nil
}

func size(cmd []string) (n int) {
	for _, arg := range cmd {
		n += len(arg)
	}
	return n
}

// execError returns the text of an error for an event. Of an error of the runtime it is what the runtime has answered,
// without the name of the call.
func execError(err error) string {
	var answer interface{ GRPCStatus() *status.Status }
	if errors.As(err, &answer) {
		return answer.GRPCStatus().Err().Error()
	}
	return err.Error()
}

// text returns the beginning of an answer, in a form fit for an event.
func text(raw []byte) string {
	return string(bytes.ToValidUTF8(raw[:min(len(raw), maxOutput)], []byte("\uFFFD")))
}

func isTimeout(err error) bool {
	return err != nil && (errors.Is(err, context.DeadlineExceeded) || status.Code(err) == codes.DeadlineExceeded)
}

func tryTCP(ctx context.Context, addr string, limit time.Duration) (Outcome, string) {
	d := dialer()
	d.Timeout = limit
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return Failed, err.Error()
	}
	_ = conn.Close()
	return Succeeded, ""
}

// dialer makes connections that linger for a second only: otherwise each probe would keep a port in TIME_WAIT for a
// minute.
func dialer() *net.Dialer {
	return &net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) {
			_ = syscall.SetsockoptLinger(int(fd), syscall.SOL_SOCKET, syscall.SO_LINGER, &syscall.Linger{Onoff: 1, Linger: 1})
		})
	}}
}

// resolvePort returns the number of a port that is given by number, by the name of one of the container's, or by a
// number in a string.
func resolvePort(port intstr.IntOrString, c *corev1.Container) (int, error) {
	n := port.IntValue() // of a string: the number in it, else 0
	if port.Type == intstr.String {
		for _, p := range c.Ports {
			if p.Name == port.StrVal {
				n = int(p.ContainerPort)
				break
			}
		}
	}
	if n < 1 || n > 65535 {
		return 0, fmt.Errorf("port %s is neither a number from 1 to 65535 nor the name of a port of container %q",
			port.String(), c.Name)
	}
	return n, nil
}

// address joins host, or the pod's address if there is none, and port.
func address(host, podIP string, port int) string {
	if host == "" {
		host = podIP
	}
	return net.JoinHostPort(host, strconv.Itoa(port))
}
