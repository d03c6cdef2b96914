package objects

import (
	"context"
	"crypto"
	"crypto/tls"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

const (
	// signerTimeout is how long to wait for the first certificate of a pod before the volume fails for now. Most
	// signers are quick.
	signerTimeout = 2 * time.Second
	// renewJitter spreads the renewals of certificates that were issued together.
	renewJitter = 5 * time.Minute
	// renewOverdue is how long after the time of renewal an event says that it has not succeeded.
	renewOverdue = 10 * time.Minute
)

// podCertificates are the certificates of the sources that volumes of this node show, and the requests for them.
type podCertificates struct {
	*apiServer
	run func(work func(ctx context.Context)) (stop context.CancelFunc)

	mu      sync.Mutex
	sources map[certSource]*podCertificate
	stop    context.CancelFunc // of the watch; nil without one
	trouble error              // why the requests cannot be watched now
}

// certSource is one source of a projected volume.
type certSource struct {
	pod    types.UID
	volume string
	index  int
}

// podCertificate is the certificate of one source. podCertificates.mu guards what can change.
type podCertificate struct {
	source certSource
	pod    *corev1.Pod

	shown   *tls.Certificate // nil before the first one
	renew   time.Time        // when to request the next one
	request *certRequest     // the pending one, or nil
	refused error            // the final answer of the signer, and
	how     string           // what it was: denied or failed

	reportedOverdue, reportedExpired bool
}

// certRequest is a PodCertificateRequest of this agent.
type certRequest struct {
	namespace, name string
	key             crypto.Signer
	created         bool
	waiting         bool          // a call waits for the answer
	answered        chan struct{} // closed when the request has ended
}

// PodCertificate returns the certificate that source index of a projected volume is to show, and when it is renewed.
// Before the first one is issued it returns an error, and OnChange says when to call again. shown is what the volume
// shows now, nil for nothing, and renew when that was to be renewed, zero if unknown: after a restart the agent
// continues with it. Pending requests and their keys are lost with the process.
func (o *Objects) PodCertificate(
	ctx context.Context, pod *corev1.Pod, volume string, index int, shown *tls.Certificate, renew time.Time) (
	*tls.Certificate, time.Time, error) {
	return o.certificates.current(ctx, pod, certSource{pod.UID, volume, index}, shown, renew)
}

// CertificateStates counts the certificates of pods.
func (o *Objects) CertificateStates() map[CertificateState]int { return o.certificates.states() }

func (p *podCertificates) current(
	ctx context.Context, pod *corev1.Pod, source certSource, shown *tls.Certificate, renew time.Time) (
	*tls.Certificate, time.Time, error) {
	if !p.cfg.PodCertificates {
		return nil, time.Time{}, gateOff("PodCertificateRequest")
	}
	s := projection(pod, source.volume, source.index)
	if s == nil {
		return nil, time.Time{}, fmt.Errorf("volume %q has no podCertificate source %d", source.volume, source.index)
	}
	c := p.get(pod, source, shown, renew)
	if !p.wantsRequest(c) {
		return p.state(c, nil)
	}
	err := p.ensureRequest(ctx, c, s)
	if err != nil && shown != nil {
		p.cfg.Log.WarnContext(ctx, "cannot renew the certificate of a pod, keeping the old one",
			"pod", podutil.Name(pod), "podUID", pod.UID, "volume", source.volume, "err", err)
	}
	p.reportLate(c)
	return p.state(c, err)
}

func projection(pod *corev1.Pod, volume string, index int) *corev1.PodCertificateProjection {
	v := podutil.Volume(&pod.Spec, volume)
	if v == nil || v.Projected == nil || index >= len(v.Projected.Sources) {
		return nil
	}
	return v.Projected.Sources[index].PodCertificate
}

// get returns the certificate of a source. If none is known, it is what the volume shows.
func (p *podCertificates) get(
	pod *corev1.Pod, source certSource, shown *tls.Certificate, renew time.Time,
) *podCertificate {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.sources[source]; c != nil {
		return c
	}
	c := &podCertificate{source: source, pod: pod}
	if shown != nil && checkPair(shown) == nil {
		c.shown, c.renew = shown, renew
		if renew.IsZero() {
			c.renew = shown.Leaf.NotAfter.Add(-shown.Leaf.NotAfter.Sub(shown.Leaf.NotBefore) / 5)
		}
	}
	p.sources[source] = c
	return c
}

// forget drops the certificates of a pod that is gone.
func (p *podCertificates) forget(pod types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.sources, func(s certSource, _ *podCertificate) bool { return s.pod == pod })
	p.stopIfIdle()
}

func (p *podCertificates) wantsRequest(c *podCertificate) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return c.refused == nil && (c.shown == nil || !time.Now().Before(c.renew))
}

// state returns what the volume is to show. An old certificate is better than none, unless the signer has refused to
// renew it and it has expired. err is why no request could be created.
func (p *podCertificates) state(c *podCertificate, err error) (*tls.Certificate, time.Time, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	expired := c.shown != nil && time.Now().After(c.shown.Leaf.NotAfter)
	switch {
	case c.refused != nil && (c.shown == nil || expired):
		return nil, time.Time{}, c.refused
	case c.shown != nil:
		return c.shown, c.renew, nil
	case err != nil:
		return nil, time.Time{}, err
	case c.request == nil:
		return nil, time.Time{}, errors.New(
			"credential bundle is not issued yet: the PodCertificateRequest was deleted, creating another one")
	}
	err = fmt.Errorf("credential bundle is not issued yet: PodCertificateRequest %s/%s waits for signer %s",
		c.request.namespace, c.request.name, c.signer())
	if p.trouble != nil {
		err = fmt.Errorf("%w (and cannot be watched: %w)", err, p.trouble)
	}
	return nil, time.Time{}, err
}

// reportLate writes an event, once each, that a renewal is overdue and that a certificate has expired.
func (p *podCertificates) reportLate(c *podCertificate) {
	p.mu.Lock()
	now := time.Now()
	overdue := c.shown != nil && !c.reportedOverdue && now.After(c.renew.Add(renewOverdue))
	expired := c.shown != nil && !c.reportedExpired && now.After(c.shown.Leaf.NotAfter)
	c.reportedOverdue, c.reportedExpired = c.reportedOverdue || overdue, c.reportedExpired || expired
	p.mu.Unlock()
	if overdue {
		p.warn(c, "CertificateOverdueForRefresh", "PodCertificate refresh overdue")
	}
	if expired {
		p.warn(c, "CertificateExpired", "PodCertificate expired")
	}
}

func (p *podCertificates) warn(c *podCertificate, reason, message string) {
	p.cfg.Event(c.pod, corev1.EventTypeWarning, reason, message)
}

// handle handles the answer to a request, if it has one.
func (p *podCertificates) handle(pcr *certificatesv1.PodCertificateRequest) {
	for i := range pcr.Status.Conditions {
		cond := &pcr.Status.Conditions[i]
		switch cond.Type {
		case certificatesv1.PodCertificateRequestConditionTypeIssued:
			p.finish(pcr, func(c *podCertificate) { c.issued(pcr) })
		case certificatesv1.PodCertificateRequestConditionTypeDenied:
			p.refused(pcr, cond, "denied", "was denied")
		case certificatesv1.PodCertificateRequestConditionTypeFailed:
			p.refused(pcr, cond, "failed", "failed")
		}
	}
}

func (p *podCertificates) refused(
	pcr *certificatesv1.PodCertificateRequest, cond *metav1.Condition, how, verb string) {
	if c := p.finish(pcr, func(c *podCertificate) { c.refuse(how, cond) }); c != nil {
		p.warn(c, cond.Type, fmt.Sprintf("PodCertificateRequest %s/%s %s, reason=%q, message=%q",
			pcr.Namespace, pcr.Name, verb, cond.Reason, cond.Message))
	}
}

// refuse records the final answer of the signer, with the message of the kubelet.
func (c *podCertificate) refuse(how string, cond *metav1.Condition) {
	c.how = how
	c.refused = fmt.Errorf("PodCertificateRequest was permanently %s: reason=%q message=%q",
		how, cond.Reason, cond.Message)
}

// issued stores the certificate of an answer.
func (c *podCertificate) issued(pcr *certificatesv1.PodCertificateRequest) {
	cert, err := pair(c.request.key, pcr.Status.CertificateChain)
	if err != nil {
		c.how = "failed"
		c.refused = fmt.Errorf("signer %s has issued an unusable certificate to PodCertificateRequest %s/%s: %w",
			pcr.Spec.SignerName, pcr.Namespace, pcr.Name, err)
		return
	}
	c.shown = cert
	c.reportedOverdue, c.reportedExpired = false, false
	c.renew = cert.Leaf.NotAfter
	if at := pcr.Status.BeginRefreshAt; at != nil {
		c.renew = at.Add(c.source.jitter())
	}
}

// jitter is the same at each renewal of a source.
func (s certSource) jitter() time.Duration {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s/%s/%d", s.pod, s.volume, s.index)
	return time.Duration(h.Sum64() % uint64(renewJitter))
}

// CertificateState is a signer and the state of a certificate, with the values of the kubelet's metric.
type CertificateState struct{ Signer, State string }

// states counts the certificates by their signer and state.
func (p *podCertificates) states() map[CertificateState]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	all, now := map[CertificateState]int{}, time.Now()
	for _, c := range p.sources {
		all[CertificateState{c.signer(), c.phase(now)}]++
	}
	return all
}

func (c *podCertificate) phase(now time.Time) string {
	switch {
	case c.refused != nil:
		return c.how
	case c.shown == nil:
		return "not_yet_issued"
	case now.After(c.shown.Leaf.NotAfter):
		return "expired"
	case now.After(c.renew.Add(renewOverdue)):
		return "overdue_for_refresh"
	}
	return "fresh"
}

func (c *podCertificate) signer() string {
	return projection(c.pod, c.source.volume, c.source.index).SignerName
}

// finish ends the pending request pcr and wakes its pod. It returns the certificate it was for, nil if this agent did
// not create pcr.
func (p *podCertificates) finish(pcr metav1.Object, note func(*podCertificate)) *podCertificate {
	p.mu.Lock()
	c := p.byRequest(pcr.GetNamespace(), pcr.GetName())
	if c == nil {
		p.mu.Unlock()
		return nil
	}
	note(c)
	waiting := c.request.waiting
	close(c.request.answered)
	c.request = nil
	p.stopIfIdle()
	p.mu.Unlock()
	if !waiting {
		p.cfg.notify([]types.UID{c.source.pod})
	}
	return c
}

func (p *podCertificates) byRequest(namespace, name string) *podCertificate {
	for _, c := range p.sources {
		if r := c.request; r != nil && r.name == name && r.namespace == namespace {
			return c
		}
	}
	return nil
}

// stopIfIdle ends the watch if no request is pending. The caller holds the lock.
func (p *podCertificates) stopIfIdle() {
	for _, c := range p.sources {
		if c.request != nil {
			return
		}
	}
	if p.stop != nil {
		p.stop()
		p.stop, p.trouble = nil, nil
	}
}
