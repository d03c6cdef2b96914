package status

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodelet/nodelet/internal/backoff"
)

// noteServer delays all requests while none reaches a working API server, until one does. Only the first failure of a
// pod counts. A request that took too long does not count: it says nothing about other pods.
func (p *Publisher) noteServer(e *entry, err error) {
	switch {
	case !isOutage(err):
		p.serverWorks()
		return
	case isSlow(err):
		return
	case e.retry == 0:
		if p.failures++; p.failures == 1 {
			p.failing = time.Now()
		}
	case p.failures == 0:
		return
	}
	wait := backoff.Doubled(outageFirst, outageMax, p.failures)
	p.resume = time.Now().Add(max(backoff.Jitter(wait), suggestedDelay(err)))
}

// serverWorks ends an outage: what failed in it is sent now.
func (p *Publisher) serverWorks() {
	if p.failures == 0 {
		return
	}
	p.failures, p.resume = 0, time.Time{}
	for e := range p.delayed {
		if !e.held {
			e.notBefore = time.Time{}
		}
	}
}

func suggestedDelay(err error) time.Duration {
	seconds, _ := apierrors.SuggestsClientDelay(err)
	return min(askedMax, time.Duration(seconds)*time.Second)
}

// retryLater queues the entry for another attempt after its own back-off.
func (p *Publisher) retryLater(e *entry, j job, err error) {
	e.queued, e.since = min(e.queued, normal), j.since
	e.slow = isSlow(err)
	e.fails = e.fails || e.slow || !isOutage(err)
	if j.gone {
		e.queued = urgent
	}
	first, most := podRetryFirst, podRetryMax
	if isOutage(err) || apierrors.IsInternalError(err) { // what is the matter may be over at any time
		first, most = outageFirst, outageMax
	}
	e.retry = min(most, max(first, 2*e.retry))
	e.notBefore, e.held = time.Now().Add(max(backoff.Jitter(e.retry), suggestedDelay(err))), false
	p.delayed[e] = struct{}{}
}

// isOutage reports whether err says that the API server does not work, or does not accept the node's identity.
// Otherwise it refused just this request, or failed at it with an internal error, for example because it cannot call an
// admission webhook for the namespace. If etcd is the cause, its answer has no such reason.
func isOutage(err error) bool {
	if err == nil {
		return false
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return true
	}
	if apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse) {
		return true // something answered, but not the API server
	}
	code := status.Status().Code
	return code >= 500 && !apierrors.IsInternalError(err) || code == http.StatusTooManyRequests ||
		code == http.StatusUnauthorized
}

// isSlow reports whether err says that a request took too long after it had reached the API server. That may wait for
// webhooks of the namespace. Such requests make no storm: they take a minute, and each has a place for half of it.
func isSlow(err error) bool {
	if apierrors.IsTimeout(err) {
		return !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
	}
	failed, network := errors.AsType[*net.OpError](err)
	return errors.Is(err, context.DeadlineExceeded) && !(network && failed.Op == "dial")
}
