package certs

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha512"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/nodelet/nodelet/internal/backoff"
	"github.com/nodelet/nodelet/kube/client"
	"github.com/nodelet/nodelet/kube/watch"
)

const (
	// watchTimeout is the shortest timeout of a watch for the answer to a request.
	watchTimeout = 5 * time.Minute
	// answerTimeout is how long to wait for an answer before the agent checks whether it still needs the same certificate.
	answerTimeout = 15 * time.Minute
)

// order is a certificate to request.
type order struct {
	signer  string // certificatesv1.KubeAPIServerClientKubeletSignerName or KubeletServingSignerName
	usage   certificatesv1.KeyUsage
	request x509.CertificateRequest
}

// userPrefix begins the name of the user that is a node.
const userPrefix = "system:node:"

// nodeSubject is the subject of the certificates of a node, by which the API server recognizes it.
func nodeSubject(node string) pkix.Name {
	return pkix.Name{CommonName: userPrefix + node, Organization: []string{"system:nodes"}}
}

// nodeOf returns the node of a client certificate; "" if there is none.
func nodeOf(leaf *x509.Certificate) string {
	if leaf == nil {
		return ""
	}
	node, is := strings.CutPrefix(leaf.Subject.CommonName, userPrefix)
	if !is {
		return ""
	}
	return node
}

// refusedError is the error of a request that will never be answered with a certificate: the next one needs another
// key, and so has another name.
type refusedError struct{ text string }

func (e *refusedError) Error() string { return e.text }

// obtain requests the certificate and waits for it. It calls waiting with the name of the created request.
func (s store) obtain(
	ctx context.Context, api rest.Interface, o order, waiting func(name string)) (*tls.Certificate, error) {
	key, err := s.requestKey()
	if err != nil {
		return nil, err
	}
	csr, err := o.csr(key)
	if err != nil {
		return nil, err
	}
	if err := submit(ctx, api, csr); err != nil {
		return nil, err
	}
	waiting(csr.Name)
	late := fmt.Errorf("certificate request %s is still not approved after %s: kubectl certificate approve %[1]s",
		csr.Name, answerTimeout)
	ctx, cancel := context.WithTimeoutCause(ctx, answerTimeout, late)
	defer cancel()
	answer, err := await(ctx, api, csr.Name)
	if err == nil {
		err = usable(answer, time.Now())
	}
	if _, ok := errors.AsType[*refusedError](err); ok {
		s.dropKey()
	}
	if err != nil {
		return nil, err
	}
	return s.save(answer, key, time.Now())
}

// csr returns the object to create. Its name is derived from its content, so that another attempt finds the first
// request.
func (o order) csr(key crypto.Signer) (*certificatesv1.CertificateSigningRequest, error) {
	der, err := x509.CreateCertificateRequest(rand.Reader, &o.request, key)
	if err != nil {
		return nil, fmt.Errorf("create certificate request: %w", err)
	}
	usages := []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, o.usage}
	if _, ok := key.(*rsa.PrivateKey); ok {
		usages = append(usages, certificatesv1.UsageKeyEncipherment)
	}
	name, err := o.name(key, usages)
	if err != nil {
		return nil, err
	}
	return &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
			SignerName: o.signer,
			Usages:     usages,
		},
	}, nil
}

// name returns node-csr- and a digest of key, subject, usages and, for servers, addresses. For clients it is the same
// as in the kubelet.
func (o order) name(key crypto.Signer, usages []certificatesv1.KeyUsage) (string, error) {
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return "", err
	}
	h, encode := sha512.New512_256(), base64.RawURLEncoding.EncodeToString
	write := func(text string) { h.Write([]byte(encode([]byte(text)) + "|")) }
	write(string(public))
	write(o.request.Subject.CommonName)
	for _, g := range o.request.Subject.Organization {
		write(g)
	}
	for _, u := range usages {
		write(string(u))
	}
	for _, n := range o.request.DNSNames {
		write(n)
	}
	for _, ip := range o.request.IPAddresses {
		write(ip.String())
	}
	return "node-csr-" + encode(h.Sum(nil)), nil
}

// submit creates the request. An existing one of this name was created by this node: the name is a digest of its key.
func submit(ctx context.Context, api rest.Interface, csr *certificatesv1.CertificateSigningRequest) error {
	err := client.BoundedWrite(ctx, func(ctx context.Context) error {
		return api.Post().Resource("certificatesigningrequests").Body(csr).Do(ctx).Error()
	})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create certificate request: %w", err)
	}
	return nil
}

// await watches the request until it is answered.
func await(ctx context.Context, api rest.Interface, name string) ([]byte, error) {
	target := watch.Target{Client: api, Resource: "certificatesigningrequests", FieldSelector: "metadata.name=" + name}
	var pause backoff.Backoff
	for {
		began := time.Now()
		answer, err := awaitOnce(ctx, api, target, name)
		if answer != nil || err != nil && !transient(err) {
			return answer, err
		}
		if !backoff.Sleep(ctx, pause.Next(time.Since(began))) {
			return nil, errors.Join(context.Cause(ctx), err)
		}
	}
}

func awaitOnce(ctx context.Context, api rest.Interface, target watch.Target, name string) ([]byte, error) {
	now := &certificatesv1.CertificateSigningRequest{}
	err := client.Bounded(ctx, func(ctx context.Context) error {
		return api.Get().Resource("certificatesigningrequests").Name(name).Do(ctx).Into(now)
	})
	if apierrors.IsNotFound(err) {
		return nil, &refusedError{fmt.Sprintf("certificate request %s was deleted before it was answered", name)}
	}
	if err != nil {
		return nil, fmt.Errorf("get certificate request: %w", err)
	}
	if answer, err := answerOf(now); answer != nil || err != nil {
		return answer, err
	}
	s, err := target.Open(ctx, metav1.ListOptions{ResourceVersion: now.ResourceVersion}, watchTimeout)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	for {
		e, err := s.Next()
		if err != nil {
			return nil, nil //nolint:nilerr // the stream has ended: read again
		}
		if csr, ok := e.Object.(*certificatesv1.CertificateSigningRequest); ok {
			if answer, err := answerOf(csr); answer != nil || err != nil {
				return answer, err
			}
		}
		if e.Type == "DELETED" {
			return nil, nil
		}
	}
}

// transient reports whether another attempt may succeed.
func transient(err error) bool {
	_, refused := errors.AsType[*refusedError](err)
	return !refused && !apierrors.IsUnauthorized(err) && !apierrors.IsForbidden(err)
}

// answerOf returns the certificate, nil while there is no answer, or why there will be none.
func answerOf(csr *certificatesv1.CertificateSigningRequest) ([]byte, error) {
	approved := false
	for _, c := range csr.Status.Conditions {
		reason := c.Reason
		if c.Message != "" {
			reason += ": " + c.Message
		}
		switch {
		case c.Type == certificatesv1.CertificateDenied:
			return nil, &refusedError{fmt.Sprintf("certificate request %s was denied (%s)", csr.Name, reason)}
		case c.Type == certificatesv1.CertificateFailed && c.Status != corev1.ConditionFalse:
			return nil, &refusedError{fmt.Sprintf("certificate request %s was approved but not signed (%s)", csr.Name, reason)}
		case c.Type == certificatesv1.CertificateApproved:
			approved = true
		}
	}
	if !approved || len(csr.Status.Certificate) == 0 {
		return nil, nil
	}
	return csr.Status.Certificate, nil
}

// usable checks a signed certificate. If it has expired, the clock of this machine or of the signer is wrong. One that
// is not valid yet may be used: the clock of the peer decides.
func usable(text []byte, now time.Time) error {
	block, _ := pem.Decode(text)
	if block == nil {
		return &refusedError{"the signed certificate is not PEM"}
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return &refusedError{"the signed certificate cannot be read: " + err.Error()}
	}
	if now.After(c.NotAfter) {
		return &refusedError{fmt.Sprintf(
			"the signed certificate is valid from %s to %s, but the clock of this machine says %s: set the clock",
			stamp(c.NotBefore), stamp(c.NotAfter), stamp(now))}
	}
	return nil
}

// warnEarly warns of a certificate that is not valid yet by the clock of this machine.
func warnEarly(log *slog.Logger, c *x509.Certificate, now time.Time) {
	if now.Before(c.NotBefore) {
		log.Warn("the issued certificate is not valid yet, the clock of this machine or of the signer is wrong",
			"from", stamp(c.NotBefore), "clock", stamp(now))
	}
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
