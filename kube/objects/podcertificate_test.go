package objects

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"maps"
	"math/big"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const certLifetime = 24 * time.Hour

// certPod has a volume v with a certificate.
func certPod(keyType string) *corev1.Pod {
	pod := testPod()
	pod.Spec.Volumes = []corev1.Volume{{
		Name: "v",
		VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
			Sources: []corev1.VolumeProjection{{PodCertificate: &corev1.PodCertificateProjection{
				SignerName: "example.com/signer", KeyType: keyType, MaxExpirationSeconds: new(int32(86400)),
				UserAnnotations: map[string]string{"example.com/as": "web"}, CredentialBundlePath: "cred.pem"}}}}},
	}}
	return pod
}

// certBench is a bench with a pod that has a certificate.
type certBench struct {
	*bench
	pod *corev1.Pod
}

func runCert(t *testing.T, test func(*certBench)) {
	run(t, func(b *bench) {
		b.server.Put(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "sa", UID: "sa-uid"}})
		test(&certBench{b, certPod("ECDSAP256")})
	})
}

func (b *certBench) get(shown *tls.Certificate, renew time.Time) (*tls.Certificate, time.Time, error) {
	synctest.Wait()
	return b.o.PodCertificate(b.Context(), b.pod, "v", 0, shown, renew)
}

// wantError checks that there is no certificate, and why.
func (b *certBench) wantError(why string) {
	b.Helper()
	if _, _, err := b.get(nil, time.Time{}); err == nil || !strings.Contains(err.Error(), why) {
		b.Errorf("got %v, want %q", err, why)
	}
}

// request is the one request of the pod that has no answer.
func (b *certBench) request() *certificatesv1.PodCertificateRequest {
	b.Helper()
	var open []*certificatesv1.PodCertificateRequest
	for _, n := range b.o.certificates.pending() {
		if o := b.server.Get("podcertificaterequests", n.Namespace, n.Name); o != nil {
			open = append(open, o.(*certificatesv1.PodCertificateRequest))
		}
	}
	if len(open) != 1 {
		b.Fatalf("got %d requests waiting for an answer, want 1", len(open))
	}
	return open[0]
}

func (b *certBench) condition(pcr *certificatesv1.PodCertificateRequest, kind, reason string) {
	pcr.Status.Conditions = []metav1.Condition{{
		Type:    kind,
		Status:  metav1.ConditionTrue,
		Reason:  reason,
		Message: "as asked",
	}}
	b.server.Put(pcr)
}

// issue answers a request. The certificate is to be renewed after half of its validity.
func (b *certBench) issue(pcr *certificatesv1.PodCertificateRequest) {
	b.Helper()
	stub, err := x509.ParseCertificateRequest(pcr.Spec.StubPKCS10Request)
	if err == nil {
		err = stub.CheckSignature()
	}
	if err != nil {
		b.Fatal(err)
	}
	now := time.Now()
	pcr.Status.CertificateChain = "between\n" + string(pem.EncodeToMemory(&pem.Block{
		Type:    "CERTIFICATE",
		Headers: map[string]string{"a": "b"},
		Bytes:   certificateFor(b.T, stub.PublicKey, now),
	}))
	pcr.Status.BeginRefreshAt = new(metav1.NewTime(now.Add(certLifetime / 2)))
	b.condition(pcr, certificatesv1.PodCertificateRequestConditionTypeIssued, "Issued")
}

func certificateFor(t *testing.T, public any, now time.Time) []byte {
	authority, err := newKey("ECDSAP256")
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: "pod"},
		NotBefore:    now,
		NotAfter:     now.Add(certLifetime),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, authority)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

// wantState checks where the one certificate stands.
func (b *certBench) wantState(want string) {
	b.Helper()
	synctest.Wait()
	if got := b.o.CertificateStates(); !maps.Equal(got, map[CertificateState]int{{"example.com/signer", want}: 1}) {
		b.Errorf("certificates stand so: got %v, want one %s", got, want)
	}
}

func (b *certBench) wantEvents(want ...string) {
	b.Helper()
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	if !slices.EqualFunc(b.events, want, strings.HasPrefix) {
		b.Errorf("got events %q, want %q", b.events, want)
	}
	b.events = nil
}

func TestPodCertificateIssued(t *testing.T) {
	runCert(t, func(b *certBench) {
		b.server.Intercept(func(r *http.Request) *apierrors.StatusError {
			if r.Method == http.MethodPost {
				time.Sleep(time.Second) // the watch has its first state before the request exists, and need not read it
			}
			return nil
		})
		b.wantError("waits for signer example.com/signer")
		pcr := b.request()
		s := pcr.Spec
		if s.PodName != "p" || s.PodUID != "uid" || s.ServiceAccountName != "sa" ||
			s.ServiceAccountUID != b.server.Get("serviceaccounts", "ns", "sa").GetUID() ||
			s.NodeName != "node" || s.NodeUID != "node-uid" || s.SignerName != "example.com/signer" ||
			*s.MaxExpirationSeconds != 86400 ||
			!maps.Equal(s.UnverifiedUserAnnotations, map[string]string{"example.com/as": "web"}) ||
			pcr.OwnerReferences[0].UID != "uid" {
			b.Errorf("got request %+v, want the pod's identity, annotations and owner in it", pcr)
		}
		b.wantError("waits for signer")
		b.wantRequests("get serviceaccounts ns/sa", "watch podcertificaterequests /", "create podcertificaterequests ns/")
		b.wantChanges()
		b.wantState("not_yet_issued")
		b.issue(pcr)
		b.wantChanges("[uid]")
		b.wantState("fresh")
		c, renew, err := b.get(nil, time.Time{})
		if err != nil || len(c.Certificate) != 1 || checkPair(c) != nil {
			b.Fatalf("got %v, %v", c, err)
		}
		if d := renew.Sub(pcr.Status.BeginRefreshAt.Time); d < 0 || d >= renewJitter {
			b.Errorf("renewal after the signer's time: got %s, want between 0 and %s", d, renewJitter)
		}
		if n := b.server.Watches(); n != 0 {
			b.Errorf("got %d watches though no request is under way, want 0", n)
		}
		b.wantRequests()
		b.wantEvents()
	})
}

// TestPodCertificateOfQuickSigner checks that a signer that is quick is waited for: the volume does not fail first.
func TestPodCertificateOfQuickSigner(t *testing.T) {
	runCert(t, func(b *certBench) {
		got := make(chan error, 1)
		go func() { _, _, err := b.get(nil, time.Time{}); got <- err }()
		time.Sleep(signerTimeout / 2)
		b.issue(b.request())
		if err := <-got; err != nil {
			b.Error(err)
		}
		b.wantChanges()
	})
}

func TestPodCertificateRefused(t *testing.T) {
	for _, kind := range []string{"Denied", "Failed"} {
		runCert(t, func(b *certBench) {
			b.wantError("waits")
			b.server.Requests()
			b.condition(b.request(), kind, "UnsupportedKeyType")
			b.wantChanges("[uid]")
			b.wantError("PodCertificateRequest was permanently " + strings.ToLower(kind) +
				`: reason="UnsupportedKeyType" message="as asked"`)
			b.wantEvents("uid " + kind + ": PodCertificateRequest ns/req-")
			b.wantState(strings.ToLower(kind))
			b.wantRequests() // it is not asked again
		})
	}
}

// renewal brings a pod to where its certificate is being renewed.
func (b *certBench) renewal() (shown *tls.Certificate, renew time.Time) {
	b.Helper()
	b.wantError("waits")
	b.issue(b.request())
	shown, renew, err := b.get(nil, time.Time{})
	if err != nil {
		b.Fatal(err)
	}
	time.Sleep(time.Until(renew))
	if again, _, err := b.get(shown, renew); err != nil || again != shown {
		b.Fatalf("while it is renewed: got %v, %v, want %v", again, err, shown)
	}
	b.wantChanges("[uid]")
	return shown, renew
}

func TestPodCertificateRenewed(t *testing.T) {
	runCert(t, func(b *certBench) {
		shown, renew := b.renewal()
		b.issue(b.request())
		b.wantChanges("[uid]")
		next, again, err := b.get(shown, renew)
		if err != nil || next.Leaf.Equal(shown.Leaf) || !again.After(renew) || next.PrivateKey == shown.PrivateKey {
			b.Errorf("after the renewal: got %v, %v, %v, want another certificate and key, and a later renewal",
				next, again, err)
		}
		b.wantEvents()
	})
}

// TestPodCertificateOverdue checks that an old certificate is shown until it has expired and its signer has refused
// another.
func TestPodCertificateOverdue(t *testing.T) {
	runCert(t, func(b *certBench) {
		shown, renew := b.renewal()
		time.Sleep(renewOverdue + time.Second)
		for range 2 {
			if c, _, err := b.get(shown, renew); err != nil || c != shown {
				b.Errorf("overdue: got %v or another certificate, want the same one", err)
			}
		}
		b.wantEvents("uid CertificateOverdueForRefresh: PodCertificate refresh overdue")
		b.wantState("overdue_for_refresh")
		time.Sleep(certLifetime)
		for range 2 {
			if c, _, err := b.get(shown, renew); err != nil || c != shown {
				b.Errorf("expired, but not refused: got %v or another certificate, want the same one", err)
			}
		}
		b.wantEvents("uid CertificateExpired: PodCertificate expired")
		b.wantState("expired")
		b.condition(b.request(), "Denied", "No")
		b.wantError("permanently denied")
		b.wantEvents("uid Denied")
	})
}

// TestPodCertificateRenewalRefused checks that a certificate whose renewal was refused is shown until it expires. After
// a restart of the agent another one is requested, as the kubelet does: the time of renewal stays the same.
func TestPodCertificateRenewalRefused(t *testing.T) {
	for _, restart := range []bool{false, true} {
		runCert(t, func(b *certBench) {
			shown, renew := b.renewal()
			b.condition(b.request(), "Denied", "No")
			c, again, err := b.get(shown, renew)
			if err != nil || c != shown || !again.Equal(renew) {
				b.Errorf("got %v, to renew at %v, %v; want the old one, to renew at %v", c, again, err, renew)
			}
			if !restart {
				time.Sleep(certLifetime)
				b.wantError("permanently denied")
				return
			}
			b.o.Use("uid", nil)
			if c, _, err := b.get(shown, again); err != nil || c != shown {
				b.Errorf("after a restart: got %v, %v, want the old one", c, err)
			}
			b.request()
		})
	}
}

// TestPodCertificateTakenOver checks that after a restart the agent continues with what the volume shows.
func TestPodCertificateTakenOver(t *testing.T) {
	runCert(t, func(b *certBench) {
		key, err := newKey("ED25519")
		if err != nil {
			b.Fatal(err)
		}
		now := time.Now()
		mine := &tls.Certificate{PrivateKey: key, Certificate: [][]byte{certificateFor(b.T, key.Public(), now)}}
		noted := now.Add(time.Hour)
		if c, renew, err := b.get(mine, noted); err != nil || c != mine || !renew.Equal(noted) {
			b.Errorf("got %v, %v, %v", c, renew, err)
		}
		b.o.Use("uid", []Ref{})
		b.wantRequests()
		b.o.Use("uid", nil)
		// Nothing was noted, as by another agent.
		if c, renew, err := b.get(mine, time.Time{}); err != nil || c != mine || !renew.Equal(now.Add(certLifetime*4/5)) {
			b.Errorf("got %v, %v, %v", c, renew, err)
		}
		b.o.Use("uid", nil)
		other, _ := newKey("ED25519")
		if _, _, err := b.get(&tls.Certificate{PrivateKey: other, Certificate: mine.Certificate}, noted); err == nil {
			b.Error("a certificate for another key was taken over")
		}
	})
}

// TestPodCertificateRequestDeleted checks that a deleted request is created again, also if the watch missed the
// deletion.
func TestPodCertificateRequestDeleted(t *testing.T) {
	runCert(t, func(b *certBench) {
		b.wantError("waits")
		first := b.request().Name
		b.server.Delete("podcertificaterequests", "ns", first)
		b.wantChanges("[uid]")
		b.wantError("waits")
		second := b.request().Name
		b.server.Intercept(down)
		b.server.CutWatches()
		b.server.Delete("podcertificaterequests", "ns", second)
		time.Sleep(time.Minute)
		b.wantError("cannot be watched")
		b.server.Intercept(nil)
		time.Sleep(time.Minute)
		b.wantChanges("[uid]")
		b.wantError("waits")
		b.issue(b.request())
		if _, _, err := b.get(nil, time.Time{}); err != nil {
			b.Error(err)
		}
	})
}

// TestPodCertificateRequestFails checks that a request whose creation failed is made again with its key and name.
func TestPodCertificateRequestFails(t *testing.T) {
	runCert(t, func(b *certBench) {
		var said *apierrors.StatusError
		b.server.Intercept(func(r *http.Request) *apierrors.StatusError {
			if r.Method == http.MethodPost {
				return said
			}
			return nil
		})
		said = apierrors.NewInternalError(errors.New("while retrieving pod"))
		b.wantError("create PodCertificateRequest: Internal error")
		said = apierrors.NewForbidden(certificatesv1.Resource("podcertificaterequests"), "", nil)
		b.wantError("the API server does not serve podcertificaterequests of certificates.k8s.io/v1")
		said = nil
		b.wantError("waits")
		b.issue(b.request())
		if _, _, err := b.get(nil, time.Time{}); err != nil {
			b.Error(err)
		}
	})
}

// TestPodCertificateOfAnotherKey checks that an answer for another key is no certificate.
func TestPodCertificateOfAnotherKey(t *testing.T) {
	runCert(t, func(b *certBench) {
		b.wantError("waits")
		pcr := b.request()
		other, _ := newKey("ECDSAP256")
		pcr.Status.CertificateChain = string(pem.EncodeToMemory(&pem.Block{
			Type:  "CERTIFICATE",
			Bytes: certificateFor(b.T, other.Public(), time.Now()),
		}))
		b.condition(pcr, "Issued", "Issued")
		b.wantError("unusable certificate")
		b.wantState("failed")
	})
}

// TestPodCertificateForgotten checks that the request of a pod that is gone is ignored, and the watch ends.
func TestPodCertificateForgotten(t *testing.T) {
	runCert(t, func(b *certBench) {
		b.o.Use("uid", []Ref{})
		b.wantError("waits")
		pcr := b.request()
		b.o.Use("uid", nil)
		synctest.Wait()
		if n := b.server.Watches(); n != 0 || len(b.o.certificates.sources) != 0 {
			b.Errorf("got %d watches and %d certificates left, want none", n, len(b.o.certificates.sources))
		}
		b.issue(pcr)
		b.wantChanges()
	})
}

func TestKeyTypes(t *testing.T) {
	for keyType, want := range map[string]x509.PublicKeyAlgorithm{
		"RSA3072":   x509.RSA,
		"RSA4096":   x509.RSA,
		"ECDSAP256": x509.ECDSA,
		"ECDSAP384": x509.ECDSA,
		"ECDSAP521": x509.ECDSA,
		"ED25519":   x509.Ed25519,
	} {
		key, err := newKey(keyType)
		if err != nil {
			t.Errorf("%s: got %v, want no error", keyType, err)
			continue
		}
		der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
		if err != nil {
			t.Fatal(err)
		}
		stub, err := x509.ParseCertificateRequest(der)
		if err != nil || stub.CheckSignature() != nil || stub.PublicKeyAlgorithm != want || stub.Subject.String() != "" {
			t.Errorf("%s: got %v, %v, want a signed request without a subject", keyType, stub, err)
		}
	}
	if _, err := newKey("DSA"); err == nil || !strings.Contains(err.Error(), `"DSA"`) {
		t.Errorf("unknown type of key: got %v, want an error that names it", err)
	}
}
