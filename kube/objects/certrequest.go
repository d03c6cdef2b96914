package objects

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/kube/client"
	"github.com/nodelet/nodelet/kube/watch"
)

// ensureRequest creates a request for c unless one is pending. If the source shows no certificate yet, it waits a
// little for the answer.
func (p *podCertificates) ensureRequest(
	ctx context.Context, c *podCertificate, s *corev1.PodCertificateProjection,
) error {
	r, err := p.newRequest(c, s)
	if err != nil || r.created {
		return err
	}
	p.followRequests()
	if err := p.create(ctx, c, r, s); err != nil {
		return err
	}
	if !p.markCreated(c, r) {
		return nil
	}
	select {
	case <-r.answered:
	case <-time.After(signerTimeout):
	case <-ctx.Done():
	}
	p.stopWaiting(r)
	return nil
}

// newRequest returns the pending request of c, or a new one with a key and a name. The name is chosen here because the
// watch may bring the request before the answer to its creation arrives, and that answer may be lost.
func (p *podCertificates) newRequest(c *podCertificate, s *corev1.PodCertificateProjection) (*certRequest, error) {
	p.mu.Lock()
	r := c.request
	p.mu.Unlock()
	if r != nil {
		return r, nil
	}
	key, err := newKey(s.KeyType)
	if err != nil {
		return nil, err
	}
	r = &certRequest{
		namespace: c.pod.Namespace,
		name:      "req-" + strings.ToLower(rand.Text()[:12]),
		key:       key,
		answered:  make(chan struct{}),
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sources[c.source] != c {
		return nil, errors.New("the pod is gone")
	}
	c.request = r
	return r, nil
}

// markCreated notes that the request exists, and reports whether to wait for its answer.
func (p *podCertificates) markCreated(c *podCertificate, r *certRequest) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	r.created, r.waiting = true, c.shown == nil
	return r.waiting
}

func (p *podCertificates) stopWaiting(r *certRequest) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r.waiting = false
}

// create creates the request on the API server. One of this name is from an earlier attempt whose answer was lost.
func (p *podCertificates) create(
	ctx context.Context, c *podCertificate, r *certRequest, s *corev1.PodCertificateProjection,
) error {
	body, err := p.requestBody(ctx, c.pod, r, s)
	if err != nil {
		return err
	}
	err = p.limiter.read(ctx, p.limiter.tokens, client.WriteTimeout, func(ctx context.Context) error {
		return p.cfg.Certificates.Post().Throttle(nil).Namespace(r.namespace).Resource("podcertificaterequests").
			Body(body).Do(ctx).Error()
	})
	switch {
	case err == nil, apierrors.IsAlreadyExists(err):
		return nil
	case p.lacks(ctx, "podcertificaterequests", err):
		return fmt.Errorf("the API server does not serve podcertificaterequests of %s: Kubernetes 1.37 is needed, "+
			"with its feature gate PodCertificateRequest", certificatesv1.SchemeGroupVersion)
	}
	return fmt.Errorf("create PodCertificateRequest: %w", err)
}

// requestBody returns the request, with the pod, service account and node and their UIDs, which the API server checks.
// The stub of a PKCS #10 request proves the possession of the key.
func (p *podCertificates) requestBody(
	ctx context.Context, pod *corev1.Pod, r *certRequest, s *corev1.PodCertificateProjection,
) (*certificatesv1.PodCertificateRequest, error) {
	stub, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, r.key)
	if err != nil {
		return nil, fmt.Errorf("make the stub of a certificate request: %w", err)
	}
	account, err := p.serviceAccount(ctx, pod, client.RequestTimeout)
	if err != nil {
		return nil, err
	}
	node, err := p.cfg.NodeUID(ctx)
	if err != nil {
		return nil, err
	}
	return &certificatesv1.PodCertificateRequest{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:       pod.Namespace,
			Name:            r.name,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}},
		},
		Spec: certificatesv1.PodCertificateRequestSpec{
			SignerName:                s.SignerName,
			MaxExpirationSeconds:      s.MaxExpirationSeconds,
			UnverifiedUserAnnotations: s.UserAnnotations,
			PodName:                   pod.Name,
			PodUID:                    pod.UID,
			ServiceAccountName:        account.Name,
			ServiceAccountUID:         account.UID,
			NodeName:                  types.NodeName(p.cfg.NodeName),
			NodeUID:                   node,
			StubPKCS10Request:         stub,
		},
	}, nil
}

// followRequests starts the watch of the node's requests, unless it runs. A node may watch no narrower set.
func (p *podCertificates) followRequests() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stop != nil {
		return
	}
	target := watch.Target{Client: p.cfg.Certificates, Resource: "podcertificaterequests",
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", p.cfg.NodeName).String()}
	p.stop = p.run(func(ctx context.Context) { target.Follow(ctx, &requestSink{ctx, p}) })
}

// requestSink handles the changes of the node's requests.
type requestSink struct {
	ctx context.Context
	p   *podCertificates
}

// Replace also reads the pending requests that are missing: the state may be older than they are.
func (s *requestSink) Replace(objs []metav1.Object) {
	found := map[types.NamespacedName]bool{}
	for _, obj := range objs {
		found[types.NamespacedName{Namespace: obj.GetNamespace(), Name: obj.GetName()}] = true
		s.Set(obj)
	}
	for _, n := range s.p.pending() {
		if !found[n] {
			s.read(n)
		}
	}
}

// read reads a pending request. If that fails, the watch will bring its state.
func (s *requestSink) read(n types.NamespacedName) {
	pcr := &certificatesv1.PodCertificateRequest{}
	err := client.Bounded(s.ctx, func(ctx context.Context) error {
		return s.p.cfg.Certificates.Get().Namespace(n.Namespace).Resource("podcertificaterequests").Name(n.Name).
			Do(ctx).Into(pcr)
	})
	switch {
	case err == nil:
		s.p.handle(pcr)
	case apierrors.IsNotFound(err):
		s.Delete(&metav1.ObjectMeta{Namespace: n.Namespace, Name: n.Name})
	}
}

// pending returns the requests that exist and have no answer.
func (p *podCertificates) pending() (all []types.NamespacedName) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.sources {
		if r := c.request; r != nil && r.created {
			all = append(all, types.NamespacedName{Namespace: r.namespace, Name: r.name})
		}
	}
	return all
}

func (s *requestSink) Set(obj metav1.Object) {
	if pcr, ok := obj.(*certificatesv1.PodCertificateRequest); ok {
		s.p.handle(pcr)
	}
}

// Delete ends a request without an answer: its pod creates a new one.
func (s *requestSink) Delete(obj metav1.Object) {
	s.p.finish(obj, func(*podCertificate) {})
}

func (s *requestSink) Trouble(err error) {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	if s.ctx.Err() == nil {
		s.p.trouble = err
	}
}
