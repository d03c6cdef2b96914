package server_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	mrand "math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/nodelet/nodelet/kube/client"
	"github.com/nodelet/nodelet/kube/server"
)

// cluster answers TokenReviews and SubjectAccessReviews in the real protocol.
type cluster struct {
	mu sync.Mutex
	// tokens are the users of good tokens; rights are "user verb subresource".
	tokens map[string]string
	rights []string
	down   bool
	// faults are what happens to the next requests instead of an answer; nil: nothing.
	faults []http.HandlerFunc
	// unsure, if set, is why tokens cannot be checked.
	unsure string
	asked  []string
	// reviewed is what was asked for last of an authorizer.
	reviewed authorizationv1.SubjectAccessReviewSpec
}

func (c *cluster) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	body, _ := io.ReadAll(r.Body)
	if c.down {
		http.Error(w, "gone fishing", http.StatusServiceUnavailable)
		return
	}
	if len(c.faults) > 0 {
		fault := c.faults[0]
		c.faults = c.faults[1:]
		if fault != nil {
			fault(w, r)
			return
		}
	}
	o, _, err := client.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	switch review := o.(type) {
	case *authenticationv1.TokenReview:
		c.asked = append(c.asked, "token "+review.Spec.Token)
		user, ok := c.tokens[review.Spec.Token]
		review.Status = authenticationv1.TokenReviewStatus{Authenticated: ok, User: authenticationv1.UserInfo{Username: user}}
		if c.unsure != "" {
			review.Status = authenticationv1.TokenReviewStatus{Error: c.unsure}
		}
	case *authorizationv1.SubjectAccessReview:
		a := review.Spec.ResourceAttributes
		c.reviewed = review.Spec
		if a.Name != "node-1" || a.Resource != "nodes" || a.Version != "v1" || a.Group != "" || a.Namespace != "" {
			http.Error(w, fmt.Sprintf("asked about %+v", a), http.StatusTeapot)
			return
		}
		key := review.Spec.User + " " + a.Verb + " " + a.Subresource
		c.asked = append(c.asked, key)
		review.Status.Allowed = slices.Contains(c.rights, key) || slices.Contains(review.Spec.Groups, "system:masters")
	}
	o.GetObjectKind().SetGroupVersionKind(kindOf(o))
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(o)
}

func kindOf(o runtime.Object) (k struct{ Group, Version, Kind string }) {
	kinds, _, _ := client.Scheme.ObjectKinds(o)
	return kinds[0]
}

// wasAsked gives the questions since the last call.
func (c *cluster) wasAsked() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := c.asked
	c.asked = nil
	return all
}

func (c *cluster) set(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
}

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: name},
		NotBefore:             time.Now().Add(-24 * time.Hour),
		NotAfter:              time.Now().Add(time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{cert, key}
}

func (a *authority) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

// issue makes a certificate; change may spoil it.
func (a *authority) issue(t *testing.T, user string, groups []string, change func(*x509.Certificate)) *tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: user, Organization: groups},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	if change != nil {
		change(template)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// stand is a server with a cluster behind it and an agent that answers with what it was asked.
type stand struct {
	t       *testing.T
	cluster *cluster
	ca      *authority
	caFile  string
	addr    netip.AddrPort
	agent   *fakeAgent
	log     *syncBuffer
	// end ends the server, as does the end of the test.
	end func()
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// noMetrics is a server.Metrics that counts nothing.
type noMetrics struct{}

func (noMetrics) Serving(string, string, string) (served func()) { return func() {} }

func (noMetrics) WebSocket(string) {}

// newStand starts a server on loopback.
func newStand(t *testing.T, change func(*server.Config)) *stand {
	t.Helper()
	s := &stand{
		t:       t,
		cluster: &cluster{tokens: map[string]string{}},
		ca:      newAuthority(t, "client-ca"),
		agent:   &fakeAgent{},
		log:     &syncBuffer{},
	}
	s.caFile = filepath.Join(t.TempDir(), "ca.crt")
	s.write(s.caFile, s.ca.pem())
	backend := httptest.NewServer(s.cluster)
	t.Cleanup(backend.Close)
	api, err := client.New(&rest.Config{Host: backend.URL}, -1, 0, "test")
	if err != nil {
		t.Fatal(err)
	}
	serving := s.ca.issue(t, "node-1", nil, nil)
	cfg := server.Config{
		Listen: freeAddr(t), Node: "node-1",
		TLS:          &tls.Config{Certificates: []tls.Certificate{*serving}, MinVersion: tls.VersionTLS12},
		ClientCAFile: s.caFile, Tokens: api.Authentication, TokenTTL: time.Minute, Access: api.Authorization,
		AllowedTTL: time.Minute, DeniedTTL: time.Minute, Agent: s.agent, Debug: true,
		Metrics: noMetrics{},
		Mounts: []server.Mount{
			{Path: "/metrics", Access: []string{"metrics"}, ReadOnly: true, Handler: echo},
			{Path: "/metrics/", Access: []string{"metrics"}, Handler: echo},
			{Path: "/stats/", Access: []string{"stats"}, Handler: echo},
			{Path: "/logs", Access: []string{"log"}, Debug: true, Handler: echo},
			{Path: "/logs/", Access: []string{"log"}, Debug: true, Handler: echo},
			{Path: "/healthz", Access: []string{"healthz", "proxy"}, Handler: echo},
			{Path: "/configz", Access: []string{"configz", "proxy"}, Handler: echo},
		},
		Log: slog.New(slog.NewTextHandler(s.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	if change != nil {
		change(&cfg)
	}
	srv, err := server.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	s.addr = cfg.Listen
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		srv.Run(ctx)
	}()
	s.end = func() { cancel(); <-done }
	t.Cleanup(s.end)
	waitFor(t, s.addr)
	return s
}

// freeAddr returns an address at which nothing listens. Its IP address is one of the loopback network that connections
// of other processes do not use, so none of them gets its port meanwhile.
func freeAddr(t *testing.T) netip.AddrPort {
	t.Helper()
	ip := net.IPv4(127, byte(1+mrand.N(254)), byte(mrand.N(256)), byte(1+mrand.N(254)))
	l, err := net.Listen("tcp", net.JoinHostPort(ip.String(), "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).AddrPort()
}

var echo = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	fmt.Fprintf(w, "mounted %s %q", r.URL.Path, r.Header.Get("Authorization"))
})

func (s *stand) write(file string, text []byte) {
	s.t.Helper()
	if err := os.WriteFile(file, text, 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// client shows a certificate, if there is one.
func (s *stand) client(cert *tls.Certificate) *http.Client {
	cfg := &tls.Config{InsecureSkipVerify: true}
	if cert != nil {
		cfg.Certificates = []tls.Certificate{*cert}
	}
	tr := &http.Transport{TLSClientConfig: cfg}
	s.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{
		Transport:     tr,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// ask makes one request and gives status and body. Any goroutine may call it.
func (s *stand) ask(c *http.Client, method, path string, header map[string]string) (int, string) {
	s.t.Helper()
	req, err := http.NewRequest(method, "https://"+s.addr.String(), nil)
	if err != nil {
		s.t.Fatal(err)
	}
	p, query, _ := strings.Cut(path, "?")
	req.URL.Opaque = "//" + s.addr.String() + p // as it is, tricks and all
	req.URL.RawQuery = query
	for k, v := range header {
		req.Header.Set(k, v)
	}
	resp, err := c.Do(req)
	if err != nil {
		s.t.Errorf("%s %s: got %v, want an answer", method, path, err)
		return 0, ""
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	if resp.StatusCode >= 300 && resp.StatusCode < 400 {
		s.t.Errorf("%s %s: got a redirect to %q, want none", method, path, resp.Header.Get("Location"))
	}
	return resp.StatusCode, string(body)
}

// fakeAgent answers with what it was asked.
type fakeAgent struct {
	// stream is where the runtime serves streams.
	stream string
	pods   []*corev1.Pod
	logs   func(ctx context.Context, stdout, stderr io.Writer) error
	err    error

	mu    sync.Mutex
	asked []string
}

func (f *fakeAgent) note(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, fmt.Sprintf(format, args...))
}

func (f *fakeAgent) wasAsked() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := f.asked
	f.asked = nil
	return all
}

func (f *fakeAgent) Pods(context.Context) ([]*corev1.Pod, error)    { return f.pods, f.err }
func (f *fakeAgent) Running(context.Context) ([]*corev1.Pod, error) { return f.pods, f.err }
func (f *fakeAgent) Allocated(context.Context) ([]*corev1.Pod, error) {
	return slices.Clone(f.pods), f.err
}

func (f *fakeAgent) Logs(ctx context.Context, c server.Container, o *corev1.PodLogOptions,
	stdout, stderr io.Writer) error {
	text, _ := json.Marshal(o)
	f.note("logs %s/%s/%s %s", c.Namespace, c.Pod, c.Name, text)
	if f.logs != nil {
		return f.logs(ctx, stdout, stderr)
	}
	if f.err == nil && stdout != nil {
		_, _ = io.WriteString(stdout, "out\n")
	}
	if f.err == nil && stderr != nil {
		_, _ = io.WriteString(stderr, "err\n")
	}
	return f.err
}

func (f *fakeAgent) Exec(_ context.Context, c server.Container, cmd []string, o server.StreamOptions) (string, error) {
	f.note("exec %s/%s/%s/%s %q %+v", c.Namespace, c.Pod, c.UID, c.Name, cmd, o)
	return f.stream, f.err
}

func (f *fakeAgent) Attach(_ context.Context, c server.Container, o server.StreamOptions) (string, error) {
	f.note("attach %s/%s/%s/%s %+v", c.Namespace, c.Pod, c.UID, c.Name, o)
	return f.stream, f.err
}

func (f *fakeAgent) PortForward(_ context.Context, c server.Container, ports []int32) (string, error) {
	f.note("forward %s/%s/%s %v", c.Namespace, c.Pod, c.UID, ports)
	return f.stream, f.err
}

func (f *fakeAgent) Run(_ context.Context, c server.Container, cmd []string) ([]byte, error) {
	f.note("run %s/%s/%s %q", c.Namespace, c.Pod, c.Name, cmd)
	return []byte("ran"), f.err
}

func (f *fakeAgent) Checkpoint(_ context.Context, c server.Container, timeout time.Duration) (string, error) {
	f.note("checkpoint %s/%s/%s %s", c.Namespace, c.Pod, c.Name, timeout)
	return "/checkpoints/x.tar", f.err
}
