package certs

import (
	"bytes"
	"context"
	"crypto"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/nodelet/nodelet/host/atomicfile"
	"github.com/nodelet/nodelet/internal/latest"
	"github.com/nodelet/nodelet/kube/client"
	"github.com/nodelet/nodelet/test/waittest"
)

func TestSelfSigned(t *testing.T) {
	// no API server: by itself
	cfg := ServingConfig{Dir: t.TempDir(), Node: "n1", Bootstrap: true, Log: slog.New(slog.DiscardHandler)}
	s, err := NewServing(cfg)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := s.GetCertificate(nil)
	if err != nil || pair.Leaf.VerifyHostname("n1") != nil {
		t.Fatalf("got %v, %v, want a certificate for n1", pair, err)
	}
	again, err := NewServing(cfg)
	if err != nil || !again.pair.Load().Leaf.Equal(pair.Leaf) {
		t.Errorf("after a restart: got another certificate, %v, want the same", err)
	}
	if info, err := os.Stat(filepath.Join(cfg.Dir, "kubelet.key")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("key: got %v, %v, want mode 0600", info, err)
	}
	if err := again.signSelf(time.Now().Add(selfValidity)); err != nil || again.pair.Load().Leaf.Equal(pair.Leaf) {
		t.Errorf("expired certificate: got it kept, %v, want another one", err)
	}
}

// TestForeignCertificate checks that a certificate which an administrator has put into cert-dir is served as it is, and
// is never replaced: not when it has nearly expired or has expired, and not while its key is another one.
func TestForeignCertificate(t *testing.T) {
	dir := t.TempDir()
	crt, key := filepath.Join(dir, "kubelet.crt"), filepath.Join(dir, "kubelet.key")
	c := newCluster(t)
	k := newKey(t)
	cfg := ServingConfig{Dir: dir, Node: "n1", Log: slog.New(slog.DiscardHandler)}
	put := func(to time.Time, signer crypto.Signer) []byte {
		t.Helper()
		leaf := c.sign(&x509.Certificate{Subject: pkix.Name{CommonName: "n1.example.org"}, DNSNames: []string{"n1"},
			NotBefore: to.Add(-1000 * time.Hour), NotAfter: to}, k.Public())
		text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Raw})
		private, err := keyPEM(signer)
		if err := errors.Join(err, os.WriteFile(crt, text, 0o644), os.WriteFile(key, private, 0o600)); err != nil {
			t.Fatal(err)
		}
		return append(text, private...)
	}
	kept := func() []byte {
		a, err := os.ReadFile(crt)
		b, keyErr := os.ReadFile(key)
		if err := errors.Join(err, keyErr); err != nil {
			t.Fatal(err)
		}
		return append(a, b...)
	}
	now := time.Now()
	for name, to := range map[string]time.Time{"expires soon": now.Add(time.Hour), "has expired": now.Add(-time.Hour)} {
		before := put(to, k)
		s, err := NewServing(cfg)
		if err != nil {
			t.Fatalf("%s: got %v, want the certificate", name, err)
		}
		if pair, err := s.GetCertificate(nil); err != nil || pair.Leaf.Subject.CommonName != "n1.example.org" {
			t.Errorf("%s: got %v, %v, want the administrator's certificate", name, pair, err)
		}
		if err := s.signSelf(s.due); err != nil || !bytes.Equal(kept(), before) {
			t.Errorf("%s, an hour later: got other files, %v, want those of the administrator", name, err)
		}
	}
	before := put(now.Add(time.Hour), newKey(t))
	if _, err := NewServing(cfg); err == nil || !bytes.Equal(kept(), before) {
		t.Errorf("with another key: got other files, %v, want an error and the same files", err)
	}
}

// TestOwnFilesAreReplaced checks that a pair which an administrator puts into cert-dir is served without a restart, and
// that a key which comes before its certificate is left alone.
func TestOwnFilesAreReplaced(t *testing.T) {
	dir := t.TempDir()
	crt, key := filepath.Join(dir, "kubelet.crt"), filepath.Join(dir, "kubelet.key")
	s, err := NewServing(ServingConfig{Dir: dir, Node: "one", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	run(t, s)
	newCrt, newKey, err := selfSigned("two", time.Now())
	if err := errors.Join(err, os.WriteFile(key, newKey, 0o600)); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * settle)
	if now, err := os.ReadFile(key); err != nil || !bytes.Equal(now, newKey) {
		t.Fatalf("a key without its certificate: got %q, %v, want it kept", now, err)
	}
	if err := os.WriteFile(crt, newCrt, 0o644); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "the administrator's certificate", func() bool {
		pair, err := s.GetCertificate(nil)
		return err == nil && pair.Leaf.VerifyHostname("two") == nil
	})
}

// TestLinkedOwnFiles checks that the node's own pair is written where an administrator keeps it, by links.
func TestLinkedOwnFiles(t *testing.T) {
	dir, elsewhere := t.TempDir(), t.TempDir()
	files := []string{"kubelet.crt", "kubelet.key"}
	for _, name := range files {
		if err := os.Symlink(filepath.Join(elsewhere, name), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := NewServing(ServingConfig{Dir: dir, Node: "one", Log: slog.New(slog.DiscardHandler)}); err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		at, err := os.Readlink(filepath.Join(dir, name))
		_, statErr := os.Stat(filepath.Join(elsewhere, name))
		if err != nil || statErr != nil || at != filepath.Join(elsewhere, name) {
			t.Errorf("%s: got a link to %q, %v, %v, want the link and the file", name, at, err, statErr)
		}
	}
}

// TestResignTriesAgain checks that a certificate which cannot be written is tried again when the log says so.
func TestResignTriesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir, logged := filepath.Join(t.TempDir(), "pki"), make(chan time.Duration, 1)
		log := slog.New(slog.NewTextHandler(io.Discard, &slog.HandlerOptions{
			ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
				if a.Key == "retryIn" {
					logged <- a.Value.Duration()
				}
				return a
			}}))
		s, err := NewServing(ServingConfig{Dir: dir, Node: "node-1", Log: log})
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.RemoveAll(dir), os.WriteFile(dir, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go s.resign(ctx, latest.NewSignal())
		retryIn := <-logged
		time.Sleep(retryIn - 1)
		synctest.Wait()
		before := s.Failures()
		time.Sleep(1)
		synctest.Wait()
		if after := s.Failures(); before != 1 || after != 2 {
			t.Errorf("got %d failures before %s and %d after it, want 1 and 2", before, retryIn, after)
		}
	})
}

// TestOwnCertificateOnFullDisk checks that the agent starts if it cannot write a certificate: with one that is due, or
// with one of its own that it cannot keep.
func TestOwnCertificateOnFullDisk(t *testing.T) {
	old := time.Now().Add(-2 * selfValidity)
	c, k, err := selfSigned("n1", old)
	_, newKey, keyErr := selfSigned("n1", old)
	if err := errors.Join(err, keyErr); err != nil {
		t.Fatal(err)
	}
	for name, stored := range map[string]map[string][]byte{
		"due":     {"kubelet.crt": c, "kubelet.key": k},
		"half":    {"kubelet.crt": c, "kubelet.key": newKey}, // the space was enough for the key alone
		"none":    {},
		"damaged": {"kubelet.crt": nil, "kubelet.key": nil},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			var err error
			for name, text := range stored {
				err = errors.Join(err, os.WriteFile(filepath.Join(dir, name), text, 0o600))
			}
			for _, name := range []string{"kubelet.crt", "kubelet.key"} { // no other content can be written
				err = errors.Join(err, os.MkdirAll(filepath.Join(atomicfile.Leftover(filepath.Join(dir, name)), "x"), 0o755))
			}
			if err != nil {
				t.Fatal(err)
			}
			s, err := NewServing(ServingConfig{Dir: dir, Node: "n1", Log: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			pair, err := s.GetCertificate(nil)
			if err != nil || pair.Leaf.VerifyHostname("n1") != nil || pair.Leaf.NotAfter.Before(time.Now()) != (name == "due") {
				t.Errorf("got %v, %v, want the old certificate only if it can be used", pair, err)
			}
			if s.due.After(time.Now()) {
				t.Errorf("the next attempt: got %s, want at once", s.due)
			}
		})
	}
}

// TestExpiredServingFile checks that an expired certificate of the user is served: most API servers do not verify it.
func TestExpiredServingFile(t *testing.T) {
	dir := t.TempDir()
	crt, key := filepath.Join(dir, "a.crt"), filepath.Join(dir, "a.key")
	c, k, err := selfSigned("n1", time.Now().Add(-2*selfValidity))
	if err := errors.Join(err, os.WriteFile(key, k, 0o600), os.WriteFile(crt, c, 0o600)); err != nil {
		t.Fatal(err)
	}
	s, err := NewServing(ServingConfig{CertFile: crt, KeyFile: key, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if pair, err := s.GetCertificate(nil); err != nil || pair.Leaf.VerifyHostname("n1") != nil {
		t.Errorf("got %v, %v, want the certificate", pair, err)
	}
}

func TestServingFiles(t *testing.T) {
	dir := t.TempDir()
	crt, key := filepath.Join(dir, "a.crt"), filepath.Join(dir, "a.key")
	write := func(node string) {
		c, k, err := selfSigned(node, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if os.WriteFile(key, k, 0o600) != nil || os.WriteFile(crt, c, 0o600) != nil {
			t.Fatal("cannot write")
		}
	}
	cfg := ServingConfig{CertFile: crt, KeyFile: key, Log: slog.New(slog.DiscardHandler)}
	if _, err := NewServing(cfg); err == nil || !strings.Contains(err.Error(), "tlsCertFile") {
		t.Errorf("no file: got %v, want an error that names tlsCertFile", err)
	}
	write("one")
	s, err := NewServing(cfg)
	if err != nil {
		t.Fatal(err)
	}
	run(t, s)
	is := func(node string) bool {
		p, err := s.GetCertificate(nil)
		return err == nil && p.Leaf.VerifyHostname(node) == nil
	}
	if !is("one") {
		t.Error("got another certificate, want the one that was given")
	}
	// The change may come before the watch: written again until it is seen.
	waittest.Until(t, "the changed file", func() bool { write("two"); time.Sleep(2 * settle); return is("two") })
}

// bySigner returns the configuration of a Serving whose certificate a cluster signs, and a function that sets the
// addresses of the node.
func bySigner(t *testing.T) (c *cluster, cfg ServingConfig, set func(ip string)) {
	t.Helper()
	c = newCluster(t)
	c.kubeconfig("kubelet.conf", c.embedded(nodeUser, time.Now().Add(-time.Hour), time.Now().Add(time.Hour)), c.caPEM())
	rc, err := client.LoadConfig(filepath.Join(c.dir, "kubelet.conf"))
	if err != nil {
		t.Fatal(err)
	}
	api, err := client.New(rc, 100, 100, "test")
	if err != nil {
		t.Fatal(err)
	}
	var now atomic.Pointer[[]corev1.NodeAddress]
	now.Store(&[]corev1.NodeAddress{})
	cfg = ServingConfig{
		Bootstrap: true,
		Dir:       filepath.Join(c.dir, "pki"),
		Node:      "n1",
		API:       api.Certificates,
		Log:       slog.New(slog.DiscardHandler),
		Addresses: func() []corev1.NodeAddress { return *now.Load() },
		Rotated:   func(time.Duration) {},
	}
	return c, cfg, func(ip string) {
		now.Store(&[]corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: ip}, {Type: corev1.NodeHostName, Address: "n1"},
		})
	}
}

// TestServingBySigner checks that the certificate is requested once the node has addresses, and again when they
// change, and that the age of the replaced one is reported, as with the kubelet.
func TestServingBySigner(t *testing.T) {
	c, cfg, set := bySigner(t)
	ages := make(chan time.Duration, 2)
	cfg.Rotated = func(age time.Duration) { ages <- age }
	s, err := NewServing(cfg)
	if err != nil {
		t.Fatal(err)
	}
	run(t, s)
	if _, err := s.GetCertificate(nil); err == nil || !strings.Contains(err.Error(), "kubectl get csr") {
		t.Errorf("without addresses: got %v, want the advice to look at the requests", err)
	}
	for _, ip := range []string{"192.0.2.1", "192.0.2.2"} {
		set(ip)
		s.NodeChanged()
		waittest.Until(t, "a certificate for "+ip, func() bool {
			p, err := s.GetCertificate(nil)
			return err == nil && p.Leaf.VerifyHostname(ip) == nil && p.Leaf.VerifyHostname("n1") == nil
		})
	}
	if n := len(c.requests()); n != 2 {
		t.Errorf("got %d requests, want 2", n)
	}
	if n := len(ages); n != 1 {
		t.Errorf("got %d ages, want the one of the first certificate", n)
	} else if age := <-ages; age < time.Minute || age > time.Hour {
		t.Errorf("got the age %s, want a little more than a minute", age)
	}
	if _, err := os.Readlink(filepath.Join(cfg.Dir, "kubelet-server-current.pem")); err != nil {
		t.Error(err)
	}
}

// TestServingWaitsForApproval checks that a request that waits for its approval goes on while the Node object changes
// but its addresses do not, and that another one follows when they do.
func TestServingWaitsForApproval(t *testing.T) {
	c, cfg, set := bySigner(t)
	var made atomic.Int64
	c.api.Intercept(func(r *http.Request) *apierrors.StatusError { // it lets all in, and nobody approves
		if r.Method == http.MethodPost {
			made.Add(1)
		}
		return nil
	})
	s, err := NewServing(cfg)
	if err != nil {
		t.Fatal(err)
	}
	set("192.0.2.1")
	s.NodeChanged()
	<-s.moved
	run(t, s)
	waittest.Until(t, "a request", func() bool { return made.Load() > 0 })
	for range 3 {
		s.NodeChanged()
		time.Sleep(20 * time.Millisecond) // for a request that must not be made
	}
	set("192.0.2.2")
	s.NodeChanged()
	waittest.Until(t, "a request for the other address", func() bool { return made.Load() > 1 })
	if n := made.Load(); n != 2 {
		t.Errorf("got %d requests, want one for each address", n)
	}
}

// TestServingFilesThenSigner checks that with files and serverTLSBootstrap the files serve until the API server has
// signed a certificate, and no longer after a restart, as with the kubelet.
func TestServingFilesThenSigner(t *testing.T) {
	_, cfg, set := bySigner(t)
	cfg.CertFile, cfg.KeyFile = filepath.Join(t.TempDir(), "a.crt"), filepath.Join(t.TempDir(), "a.key")
	crt, key, err := selfSigned("image", time.Now())
	if err := errors.Join(err, os.WriteFile(cfg.KeyFile, key, 0o600), os.WriteFile(cfg.CertFile, crt, 0o600)); err != nil {
		t.Fatal(err)
	}
	serves := func(s *Serving, name string) bool {
		p, err := s.GetCertificate(nil)
		return err == nil && p.Leaf.VerifyHostname(name) == nil
	}
	s, err := NewServing(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if !serves(s, "image") {
		t.Error("before the first request: want the certificate of the file")
	}
	set("192.0.2.1")
	run(t, s)
	waittest.Until(t, "a certificate of the cluster", func() bool { return serves(s, "192.0.2.1") })
	if s, err = NewServing(cfg); err != nil || !serves(s, "192.0.2.1") {
		t.Errorf("after a restart: got %v, want the certificate of the cluster", err)
	}
}

// expiredServing returns a Serving whose certificate has expired ten minutes ago. addresses are those of the node.
func expiredServing(t *testing.T, addresses func() []corev1.NodeAddress) *Serving {
	t.Helper()
	c := newCluster(t)
	now := time.Now()
	user := c.embedded(nodeUser, now.Add(-2*time.Hour), now.Add(-10*time.Minute))
	key, err := parseKey(user.ClientKeyData)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(c.dir, "pki")
	if _, err := (store{dir, "kubelet-server"}).save(user.ClientCertificateData, key, now); err != nil {
		t.Fatal(err)
	}
	api, err := client.New(&rest.Config{Host: c.http.URL}, 100, 100, "test")
	if err != nil {
		t.Fatal(err)
	}
	s, err := NewServing(ServingConfig{Bootstrap: true, Dir: dir, Node: "n1", API: api.Certificates,
		Addresses: addresses, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestServingClockWasAhead checks that a certificate which had expired by a clock that was ahead at the start is served
// when the clock is set: a request for another one may wait for an administrator.
func TestServingClockWasAhead(t *testing.T) {
	s := expiredServing(t, nil)
	if _, err := s.GetCertificate(nil); err == nil || !strings.Contains(err.Error(), "expired") {
		t.Errorf("by the clock that is ahead: got %v, want an error: the certificate has expired", err)
	}
	s.now = func() time.Time { return time.Now().Add(-30 * time.Minute) }
	if _, err := s.GetCertificate(nil); err != nil {
		t.Errorf("after the clock was set: got %v, want the certificate", err)
	}
}

// TestServingWaitsForAddresses checks that a certificate that is to be renewed costs nothing while the node has no
// addresses, as without the API server if a cloud controller sets them.
func TestServingWaitsForAddresses(t *testing.T) {
	var looks atomic.Int64
	run(t, expiredServing(t, func() []corev1.NodeAddress { looks.Add(1); return nil }))
	waittest.Until(t, "a look at the addresses", func() bool { return looks.Load() > 0 })
	time.Sleep(100 * time.Millisecond)
	if n := looks.Load(); n > 1 {
		t.Errorf("got %d looks at the addresses, want one", n)
	}
}
