package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/nodelet/nodelet/test/testbed"
)

// apiProxy stands between the agent and the API server. It speaks HTTP/2 over TLS to both.
type apiProxy struct {
	*apiFaults
	listener net.Listener
	server   *http.Server
}

// startAPIProxy listens in the node's network namespace and rewrites the agent's kubeconfig so that it connects
// there. The proxy authenticates to the API server as the agent does.
func startAPIProxy(n *testbed.Node) (*apiProxy, error) {
	kubeconfig := n.Kubeconfig
	file, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil {
		return nil, err
	}
	rc, err := clientcmd.NewDefaultClientConfig(*file, nil).ClientConfig()
	if err != nil {
		return nil, err
	}
	upstream, err := url.Parse(rc.Host)
	if err != nil {
		return nil, err
	}
	transport, err := rest.TransportFor(rc)
	if err != nil {
		return nil, err
	}
	certificate, ca, err := selfSigned()
	if err != nil {
		return nil, err
	}
	listener, err := testbed.Listen(n)
	if err != nil {
		return nil, err
	}
	faulty := &apiFaults{mode: apiNormal, changed: make(chan struct{}), conns: map[*faultyConn]bool{}}
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(upstream) },
		Transport:     &faultyTransport{faulty: faulty, next: transport},
		FlushInterval: -1, // watches are passed on at once
		ErrorLog:      log.New(io.Discard, "", 0),
	}
	p := &apiProxy{apiFaults: faulty, listener: listener}
	p.server = &http.Server{
		Handler:   proxy,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate}},
		ErrorLog:  log.New(io.Discard, "", 0),
	}
	go func() { _ = p.server.ServeTLS(&faultyListener{listener, faulty}, "", "") }()
	for _, c := range file.Clusters {
		*c = clientcmdapi.Cluster{Server: "https://" + listener.Addr().String(), CertificateAuthorityData: ca}
	}
	return p, clientcmd.WriteToFile(*file, kubeconfig)
}

func (p *apiProxy) close() error { return p.server.Close() }

// selfSigned makes a certificate for 127.0.0.1 that is its own authority; ca is it in PEM.
func selfSigned() (c tls.Certificate, ca []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return c, nil, err
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		NotBefore:             time.Now().Add(-48 * time.Hour),
		NotAfter:              time.Now().Add(30 * 24 * time.Hour),
		IPAddresses:           []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return c, nil, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key},
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}

// apiMode is what the proxy does to connections and requests.
type apiMode string

// The modes. The first four concern connections, the others requests.
const (
	apiNormal  apiMode = "normal"
	apiRefuse  apiMode = "refuse"  // connections are reset as they come
	apiDrop    apiMode = "drop"    // nothing is read or written, as if packets were dropped
	apiOneWay  apiMode = "one-way" // requests arrive, answers do not
	apiReset   apiMode = "reset"   // connections are reset after a short while
	apiSlow    apiMode = "slow"    // each request takes up to three seconds more
	apiHang    apiMode = "hang"    // requests are accepted and not answered
	apiErrors  apiMode = "errors"  // most requests fail with 500, 502, 503 or 504
	apiTooMany apiMode = "429"     // most requests are refused with 429 and Retry-After
	apiExpired apiMode = "expired" // half of the watches end with an event 410 Gone
	apiLags    apiMode = "lags"    // an API server without WatchList whose cache is old
)

// apiFaults is the mode in force, shared by listener, connections and transport.
type apiFaults struct {
	mu      sync.Mutex
	mode    apiMode
	changed chan struct{} // closed at the next change of mode
	conns   map[*faultyConn]bool
	stale   map[string]*recorded // of apiLags: old lists by URL
}

// set changes the mode. Connections of before are reset where the change asks for it: after dropped bytes a TLS
// stream is useless, and a proxy that refuses has none.
func (f *apiFaults) set(m apiMode) {
	f.mu.Lock()
	defer f.mu.Unlock()
	was := f.mode
	f.mode = m
	close(f.changed)
	f.changed = make(chan struct{})
	if m != was && (broken(was) || m == apiRefuse || m == apiExpired || m == apiLags) {
		for c := range f.conns {
			c.reset()
		}
	}
	if m == apiLags {
		f.stale = map[string]*recorded{}
	}
}

// broken reports whether the mode loses bytes of the connections that exist.
func broken(m apiMode) bool { return m == apiDrop || m == apiOneWay || m == apiReset || m == apiRefuse }

// now returns the mode in force and a channel that is closed when it changes.
func (f *apiFaults) now() (apiMode, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mode, f.changed
}
