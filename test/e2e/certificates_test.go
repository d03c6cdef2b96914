//go:build e2e

package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodelet/nodelet/test/testbed"
)

const (
	certSigner = "example.com/testers"
	certFile   = "/certs/cred.pem"
)

// TestLongCertificates gives pods the trust bundles of a signer, and certificates that the test issues as that
// signer. It covers every type of key, renewal, denial, an agent that is killed between request and answer, and a
// restarted agent, which must not request another certificate.
func TestLongCertificates(t *testing.T) {
	onTestbed(t, testbed.Options{Name: "crt"})
	s := newSigner(t)
	apply(t, certPod("web", "ECDSAP256"))
	t.Run("pending", s.pending)
	t.Run("updated", s.updated)
	t.Run("kept", s.kept)
	t.Run("renewed", s.renewed)
	t.Run("keys", s.keys)
	t.Run("denied", s.denied)
	t.Run("quick", s.quick)
}

// certPod is a pod with one certificate for each key type, the trust bundles of the signer, and a token.
func certPod(name string, keyTypes ...string) string {
	var sources strings.Builder
	for i, keyType := range keyTypes {
		path := filepath.Base(certFile)
		if i > 0 {
			path = keyType + ".pem"
		}
		fmt.Fprintf(&sources, "      - podCertificate: {signerName: %s, keyType: %s, credentialBundlePath: %s}\n", certSigner,
			keyType, path)
	}
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: app, image: %s, command: [sleep, "3600"], volumeMounts: [{name: certs, mountPath: /certs}]}
  volumes:
  - name: certs
    projected:
      sources:
      - clusterTrustBundle: {signerName: %s, labelSelector: {matchLabels: {live: "yes"}}, path: ca.pem}
      - serviceAccountToken: {path: token, audience: testers}
%s`, name, testbed.BusyboxImage, certSigner, sources.String())
}

// signer acts as the signer of the cluster.
type signer struct {
	key       *ecdsa.PrivateKey
	authority *x509.Certificate
}

func newSigner(t *testing.T) *signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(time.Now().UnixNano()),
		Subject:               pkix.Name{CommonName: "testers"},
		IsCA:                  true,
		BasicConstraintsValid: true,
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	authority, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &signer{key, authority}
}

func (s *signer) pem() string { return pemOf(s.authority.Raw) }

func pemOf(der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// publish creates a trust bundle of the signer.
func (s *signer) publish(t *testing.T, name, live, bundle string) {
	t.Helper()
	b := &certificatesv1.ClusterTrustBundle{
		ObjectMeta: metav1.ObjectMeta{Name: strings.ReplaceAll(certSigner, "/", ":") + ":" + name,
			Labels: map[string]string{"live": live}},
		Spec: certificatesv1.ClusterTrustBundleSpec{SignerName: certSigner, TrustBundle: bundle},
	}
	if err := api.Certificates.Post().Resource("clustertrustbundles").Body(b).Do(t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
}

// open lists the requests for a pod that the signer has not answered.
func open(t *testing.T, pod string) (all []*certificatesv1.PodCertificateRequest) {
	t.Helper()
	for _, r := range requests(t, pod) {
		if len(r.Status.Conditions) == 0 {
			all = append(all, r)
		}
	}
	return all
}

func requests(t *testing.T, pod string) (all []*certificatesv1.PodCertificateRequest) {
	t.Helper()
	list := &certificatesv1.PodCertificateRequestList{}
	err := api.Certificates.Get().Namespace(space).Resource("podcertificaterequests").
		Do(context.Background()).Into(list)
	if err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		if list.Items[i].Spec.PodName == pod {
			all = append(all, &list.Items[i])
		}
	}
	return all
}

// waitOpen waits until a pod has n requests without an answer, and returns the youngest.
func waitOpen(t *testing.T, pod string, n int) *certificatesv1.PodCertificateRequest {
	t.Helper()
	var found []*certificatesv1.PodCertificateRequest
	eventually(t, fmt.Sprintf("pod %[2]s has %[1]d requests without an answer", n, pod),
		func() (string, bool) {
			found = open(t, pod)
			return fmt.Sprint(len(found)), len(found) == n
		})
	return slices.MaxFunc(found, func(a, b *certificatesv1.PodCertificateRequest) int {
		return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
	})
}

// issue answers a request with a new certificate and the certificate of the authority.
func (s *signer) issue(t *testing.T, r *certificatesv1.PodCertificateRequest) {
	t.Helper()
	stub, err := x509.ParseCertificateRequest(r.Spec.StubPKCS10Request)
	if err != nil {
		t.Fatal(err)
	}
	from := time.Now().Add(-time.Minute).Truncate(time.Second)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: r.Spec.PodName},
		NotBefore:    from,
		NotAfter:     from.Add(2 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, s.authority, stub.PublicKey, s.key)
	if err != nil {
		t.Fatal(err)
	}
	r.Status = certificatesv1.PodCertificateRequestStatus{
		CertificateChain: pemOf(der) + s.pem(),
		NotBefore:        new(metav1.NewTime(from)),
		NotAfter:         new(metav1.NewTime(template.NotAfter)),
		BeginRefreshAt:   new(metav1.NewTime(from.Add(time.Hour))),
	}
	answer(t, r, "Issued", "Issued")
}

func answer(t *testing.T, r *certificatesv1.PodCertificateRequest, kind, reason string) {
	t.Helper()
	r.Status.Conditions = []metav1.Condition{{
		Type:               kind,
		Status:             metav1.ConditionTrue,
		Reason:             reason,
		Message:            "the test says so",
		LastTransitionTime: metav1.Now(),
	}}
	err := api.Certificates.Put().Namespace(space).Resource("podcertificaterequests").Name(r.Name).
		SubResource("status").Body(r).Do(t.Context()).Error()
	if err != nil {
		t.Fatal(err)
	}
}

// pair checks a file with key and certificate chain in a pod, and returns the leaf certificate.
func (s *signer) pair(t *testing.T, pod, file string) *x509.Certificate {
	t.Helper()
	text := []byte(shell(t, pod, "app", "cat "+file))
	pair, err := tls.X509KeyPair(text, text)
	if err != nil || len(pair.Certificate) != 2 {
		t.Fatalf("%s: got %d certificates, %v; want two, those of the leaf and the authority, and the key",
			file, len(pair.Certificate), err)
	}
	if err := pair.Leaf.CheckSignatureFrom(s.authority); err != nil {
		t.Error(err)
	}
	return pair.Leaf
}

// pending checks that the pod waits for a bundle, then for its certificate, and reports it. The agent is killed
// meanwhile.
func (s *signer) pending(t *testing.T) {
	waitEvent(t, "web", "FailedMount",
		"sources[0].clusterTrustBundle: combination of signerName and labelSelector matched zero")
	if n := len(requests(t, "web")); n != 0 {
		t.Errorf("certificate requests before all other sources exist: got %d, want none", n)
	}
	s.publish(t, "old", "no", s.pem())
	s.publish(t, "one", "yes", s.pem())
	first := waitOpen(t, "web", 1)
	waitEvent(t, "web", "FailedMount", "sources[2].podCertificate: credential bundle is not issued yet")
	eventually(t, "explain names the request", func() (string, bool) {
		text, _ := explain(t)
		return text, strings.Contains(text, first.Name+" waits for signer "+certSigner)
	})
	killAgent(t)
	second := waitOpen(t, "web", 2)
	before := time.Now()
	s.issue(t, second)
	waitReady(t, "web")
	t.Logf("ready %s after the certificate was issued", time.Since(before).Round(time.Millisecond))
	s.pair(t, "web", certFile)
	if got := shell(t, "web", "app", "cat /certs/ca.pem"); got != strings.TrimSpace(s.pem()) {
		t.Errorf("ca.pem: got %q, want %q", got, strings.TrimSpace(s.pem()))
	}
	if name := second.Spec.NodeName; string(name) != node().Name {
		t.Errorf("node name in the request: got %q, want %q", name, node().Name)
	}
}

// updated checks that a running pod sees when bundles are created, changed and deleted.
func (s *signer) updated(t *testing.T) {
	other := newSigner(t)
	sees := func(what string, want int) {
		t.Helper()
		before := time.Now()
		within(t, soon, what, func() (string, bool) {
			got := shell(t, "web", "app", "cat /certs/ca.pem")
			return got, strings.Count(got, "BEGIN CERTIFICATE") == want &&
				(want == 1) != strings.Contains(got, strings.TrimSpace(other.pem()))
		})
		t.Logf("%s: seen after %s", what, time.Since(before).Round(time.Millisecond))
	}
	s.publish(t, "two", "yes", s.pem()+other.pem())
	sees("a bundle with one more certificate", 2)
	kubectl(t, "label", "--overwrite", "clustertrustbundle", "example.com:testers:two", "live=no")
	sees("a bundle that is not selected any more", 1)
	kubectl(t, "label", "--overwrite", "clustertrustbundle", "example.com:testers:two", "live=yes")
	sees("a bundle that is selected again", 2)
	kubectl(t, "delete", "clustertrustbundle", "example.com:testers:two")
	sees("a deleted bundle", 1)
}

// kept checks that a restarted agent requests no certificate while the files on disk are valid.
func (s *signer) kept(t *testing.T) {
	leaf, n := s.pair(t, "web", certFile), len(requests(t, "web"))
	s.restartAgent(t, func() {})
	if now := len(requests(t, "web")); now != n {
		t.Errorf("requests after a restart of the agent: got %d, want %d", now, n)
	}
	if !s.pair(t, "web", certFile).Equal(leaf) {
		t.Error("certificate after a restart of the agent: got another one, want the same")
	}
}

// restartAgent kills the agent, calls away, and starts the agent again. It returns when the pod sees a bundle that
// was created in the meantime: then the restarted agent has updated the volume.
func (s *signer) restartAgent(t *testing.T, away func()) {
	t.Helper()
	stopAgent(t, unix.SIGKILL)
	away()
	kubectl(t, "delete", "clustertrustbundle", "example.com:testers:old")
	other := newSigner(t).pem()
	s.publish(t, "old", "yes", other)
	startAgent(t)
	eventually(t, "the restarted agent follows the bundles", func() (string, bool) {
		got := shell(t, "web", "app", "cat /certs/ca.pem")
		return got, strings.Contains(got, strings.TrimSpace(other))
	})
}

// renewed checks that a certificate whose recorded refresh time has passed is renewed, and stays in place until then.
func (s *signer) renewed(t *testing.T) {
	leaf := s.pair(t, "web", certFile)
	n := len(open(t, "web"))
	s.restartAgent(t, func() {
		file := filepath.Join(node().RootDir, "pods", string(getPod(t, "web").UID), "volumes/kubernetes.io~projected/certs",
			filepath.Base(certFile))
		past := time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)
		if err := unix.Setxattr(file, "trusted.nodelet.note", []byte(past), 0); err != nil {
			t.Fatal(err)
		}
	})
	next := waitOpen(t, "web", n+1)
	if !s.pair(t, "web", certFile).Equal(leaf) {
		t.Error("certificate before the renewal: got another one, want the same")
	}
	waitEvent(t, "web", "CertificateOverdueForRefresh", "PodCertificate refresh overdue")
	s.issue(t, next)
	before := time.Now()
	within(t, soon, "the renewed certificate is seen", func() (string, bool) {
		return "", !s.pair(t, "web", certFile).Equal(leaf)
	})
	t.Logf("the renewed certificate: seen after %s", time.Since(before).Round(time.Millisecond))
}

// keys checks certificates with all types of keys.
func (s *signer) keys(t *testing.T) {
	types := []string{"ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519", "RSA3072", "RSA4096"}
	apply(t, certPod("keys", types...))
	for range types {
		s.issue(t, s.anyOpen(t, "keys"))
	}
	waitReady(t, "keys")
	for _, keyType := range types[1:] {
		s.pair(t, "keys", "/certs/"+keyType+".pem")
	}
	s.pair(t, "keys", certFile)
}

func (s *signer) anyOpen(t *testing.T, pod string) (found *certificatesv1.PodCertificateRequest) {
	t.Helper()
	eventually(t, "a request has no answer", func() (string, bool) {
		for _, r := range open(t, pod) {
			found = r
		}
		return "", found != nil
	})
	return found
}

// denied checks that the agent reports a denied certificate on its pod, and does not request it again.
func (s *signer) denied(t *testing.T) {
	apply(t, certPod("denied", "ED25519"))
	answer(t, waitOpen(t, "denied", 1), "Denied", "UnsupportedKeyType")
	waitEvent(t, "denied", "Denied",
		"was denied, reason=\"UnsupportedKeyType\", message=\"the test says so\"")
	waitEvent(t, "denied", "FailedMount", "PodCertificateRequest was permanently denied")
	const state = `kubelet_podcertificate_states{signer_name="` + certSigner + `",state="denied"} 1`
	if got := scrape(t, "metrics"); !strings.Contains(got, state) {
		t.Errorf("metrics: got no line %s, want one", state)
	}
	if p := getPod(t, "denied"); p.Status.Phase != corev1.PodPending || len(requests(t, "denied")) != 1 {
		t.Errorf("denied pod: got phase %s and %d requests, want phase Pending and 1 request",
			p.Status.Phase, len(requests(t, "denied")))
	}
}

// quick checks that many pods start at the same time without a warning when the signer answers at once.
func (s *signer) quick(t *testing.T) {
	var yaml strings.Builder
	var pods []string
	for i := range 10 {
		pods = append(pods, fmt.Sprintf("quick-%d", i))
		yaml.WriteString(certPod(pods[i], "ECDSAP256") + "---\n")
	}
	before := time.Now()
	apply(t, yaml.String())
	for range pods {
		eventually(t, "the next request", func() (string, bool) {
			for _, pod := range pods {
				for _, r := range open(t, pod) {
					s.issue(t, r)
					return "", true
				}
			}
			return "", false
		})
	}
	for _, pod := range pods {
		waitReady(t, pod)
		for _, e := range events(getPod(t, pod).UID) {
			if strings.HasPrefix(e, "Warning") {
				t.Errorf("pod %s: got event %s, want no warning", pod, e)
			}
		}
	}
	t.Logf("%d pods: ready %s after they were created", len(pods), time.Since(before).Round(time.Millisecond))
}

// TestLongCertificatesMissing uses an API server that accepts pods with trust bundles but does not serve the bundles,
// and a node with the feature gate for pod certificates off. Pods report both. An optional source is empty.
func TestLongCertificatesMissing(t *testing.T) {
	onTestbed(t, testbed.Options{
		Name:          "crn",
		AgentConfig:   map[string]any{"featureGates": map[string]bool{"PodCertificateRequest": false}},
		APIServerArgs: []string{"--runtime-config=certificates.k8s.io/v1/clustertrustbundles=false"},
	})
	optional := func(pod string) string { return strings.Replace(pod, "{signerName", "{optional: true, signerName", 1) }
	apply(t, certPod("none"))
	apply(t, optional(certPod("gated", "ED25519")))
	apply(t, optional(certPod("empty")))
	waitReady(t, "empty")
	if got := shell(t, "empty", "app", "cat /certs/ca.pem"); got != "" {
		t.Errorf("ca.pem: got %q, want an empty file", got)
	}
	waitEvent(t, "none", "FailedMount",
		"the API server does not serve clustertrustbundles of certificates.k8s.io/v1")
	waitEvent(t, "gated", "FailedMount", "sources[2].podCertificate",
		"PodCertificateRequest to true in featureGates")
}
