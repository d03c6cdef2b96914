package certs

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/nodelet/nodelet/kube/client"
	"github.com/nodelet/nodelet/test/kube/apitest"
	"github.com/nodelet/nodelet/test/waittest"
)

const (
	goodToken = "abcdef.0123456789abcdef"
	nodeUser  = "system:node:n1"
)

// cluster is an API server over TLS with an authority of its own, which lets in its own certificates and one token,
// and a signer that the test controls.
type cluster struct {
	t    *testing.T
	ca   *x509.Certificate
	key  crypto.Signer
	api  *apitest.Server
	http *httptest.Server
	dir  string

	mu       sync.Mutex
	leaf     tls.Certificate                                               // the server's own
	clock    func() time.Time                                              // by which it checks certificates; nil: now
	validity time.Duration                                                 // of the certificates it signs
	born     func() time.Time                                              // their first moment
	judge    func(*certificatesv1.CertificateSigningRequest) (deny string) // nil: approve
	seen     []string                                                      // names of requests
	users    map[string]int                                                // requests by user
	conns    map[string]bool                                               // serial numbers that came
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{
		t:        t,
		dir:      t.TempDir(),
		validity: time.Hour,
		born:     func() time.Time { return time.Now().Add(-time.Minute) },
		users:    map[string]int{},
		conns:    map[string]bool{},
	}
	c.key = newKey(t)
	c.ca = c.sign(&x509.Certificate{Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign}, c.key.Public())
	c.api, _ = apitest.New(t)
	c.api.Intercept(c.intercept)
	c.present(time.Time{}, time.Time{})
	pool := x509.NewCertPool()
	pool.AddCert(c.ca)
	c.http = httptest.NewUnstartedServer(c.api)
	c.http.EnableHTTP2 = true
	c.http.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)
	c.http.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		return &tls.Config{ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: pool, NextProtos: []string{"h2"},
			Certificates: []tls.Certificate{c.leaf}, Time: c.clock}, nil
	}}
	c.http.StartTLS()
	t.Cleanup(func() { c.http.CloseClientConnections(); c.http.Close() })
	return c
}

// present gives the server a certificate of this validity, which new connections see; zero stands for one that is
// valid now.
func (c *cluster) present(from, to time.Time) {
	key := newKey(c.t)
	leaf := c.sign(&x509.Certificate{Subject: pkix.Name{CommonName: "api"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: from, NotAfter: to}, key.Public())
	if c.http != nil {
		defer c.http.CloseClientConnections()
	}
	c.with(func() { c.leaf = tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key} })
}

func newKey(t *testing.T) crypto.Signer {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func (c *cluster) sign(template *x509.Certificate, public crypto.PublicKey) *x509.Certificate {
	template.SerialNumber, _ = rand.Int(rand.Reader, big.NewInt(1<<62))
	if template.NotBefore.IsZero() {
		template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	}
	parent := c.ca
	if parent == nil {
		parent = template
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, c.key)
	if err != nil {
		c.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		c.t.Fatal(err)
	}
	return cert
}

// intercept is the API server's authentication. A request for a certificate is answered as soon as it is looked at.
func (c *cluster) intercept(r *http.Request) *apierrors.StatusError {
	user := ""
	if len(r.TLS.PeerCertificates) > 0 {
		user = r.TLS.PeerCertificates[0].Subject.CommonName
	} else if r.Header.Get("Authorization") == "Bearer "+goodToken {
		user = "token"
	}
	c.mu.Lock()
	c.users[user]++
	if len(r.TLS.PeerCertificates) > 0 {
		c.conns[r.TLS.PeerCertificates[0].SerialNumber.String()] = true
	}
	c.mu.Unlock()
	if user == "" {
		return apierrors.NewUnauthorized("Unauthorized")
	}
	k := filepath.Base(r.URL.Path)
	if r.Method == http.MethodGet && filepath.Base(filepath.Dir(r.URL.Path)) == "certificatesigningrequests" {
		if o, ok := c.api.Get("certificatesigningrequests", "", k).(*certificatesv1.CertificateSigningRequest); ok {
			c.answer(o.DeepCopy())
		}
	}
	return nil
}

// answer approves and signs, or denies.
func (c *cluster) answer(csr *certificatesv1.CertificateSigningRequest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(csr.Status.Conditions) > 0 {
		return
	}
	c.seen = append(c.seen, csr.Name)
	if c.judge != nil {
		if why := c.judge(csr); why != "" {
			csr.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{
				{Type: certificatesv1.CertificateDenied, Status: corev1.ConditionTrue, Reason: "No", Message: why}}
			c.api.Put(csr)
			return
		}
	}
	block, _ := pem.Decode(csr.Spec.Request)
	req, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		c.t.Error(err)
		return
	}
	born := c.born()
	cert := c.sign(&x509.Certificate{
		Subject:     req.Subject,
		DNSNames:    req.DNSNames,
		IPAddresses: req.IPAddresses,
		NotBefore:   born,
		NotAfter:    born.Add(c.validity),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}, req.PublicKey)
	csr.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{
		Type:   certificatesv1.CertificateApproved,
		Status: corev1.ConditionTrue,
	}}
	csr.Status.Certificate = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})
	c.api.Put(csr)
}

func (c *cluster) requests() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string{}, c.seen...)
}

func (c *cluster) with(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
}

func (c *cluster) caPEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.ca.Raw})
}

// kubeconfig writes one with the given user and authority.
func (c *cluster) kubeconfig(name string, user clientcmdapi.AuthInfo, ca []byte) string {
	c.t.Helper()
	path := filepath.Join(c.dir, name)
	err := clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:  map[string]*clientcmdapi.Cluster{"c": {Server: c.http.URL, CertificateAuthorityData: ca}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"u": &user},
		Contexts:  map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "u"}}, CurrentContext: "x",
	}, path)
	if err != nil {
		c.t.Fatal(err)
	}
	return path
}

// embedded returns a user with a certificate of this validity.
func (c *cluster) embedded(user string, from, to time.Time) clientcmdapi.AuthInfo {
	key := newKey(c.t)
	cert := c.sign(&x509.Certificate{
		Subject:     pkix.Name{CommonName: user, Organization: []string{"system:nodes"}},
		NotBefore:   from,
		NotAfter:    to,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, key.Public())
	text, err := keyPEM(key)
	if err != nil {
		c.t.Fatal(err)
	}
	return clientcmdapi.AuthInfo{
		ClientCertificateData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw}),
		ClientKeyData:         text,
	}
}

func (c *cluster) config() ClientConfig {
	return ClientConfig{
		Kubeconfig: filepath.Join(c.dir, "kubelet.conf"),
		Dir:        filepath.Join(c.dir, "pki"),
		Node:       "n1",
		Rotate:     true,
		UserAgent:  "test",
		Say:        func(string) {},
		Log:        slog.New(slog.NewTextHandler(c.t.Output(), nil)),
	}
}

// run runs the identity until the test ends.
func run(t *testing.T, runner interface{ Run(context.Context) }) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	go func() { defer close(done); runner.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
}

// get asks for a pod that is not there: 404 is the answer to one who was let in.
func get(t *testing.T, rc *rest.Config) error {
	t.Helper()
	api, err := client.New(rc, 1000, 1000, "test")
	if err != nil {
		return err
	}
	err = api.Core.Get().Namespace("x").Resource("pods").Name("y").Do(waittest.Context(t)).Error()
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func exists(path string) bool { _, err := os.Stat(path); return err == nil }
