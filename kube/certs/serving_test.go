package certs

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

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
		t.Error("not the one that was given")
	}
	// The change may come before the watch: written again until it is seen.
	waittest.Until(t, "the changed file", func() bool { write("two"); time.Sleep(2 * settle); return is("two") })
}

// TestServingBySigner checks that the certificate is requested once the node has addresses, and again when they
// change.
func TestServingBySigner(t *testing.T) {
	c := newCluster(t)
	c.kubeconfig("kubelet.conf", c.embedded(nodeUser, time.Now().Add(-time.Hour), time.Now().Add(time.Hour)), c.caPEM())
	rc, err := client.LoadConfig(filepath.Join(c.dir, "kubelet.conf"))
	if err != nil {
		t.Fatal(err)
	}
	api, err := client.New(rc, 100, 100, "test")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var now []corev1.NodeAddress
	cfg := ServingConfig{
		Bootstrap: true,
		Dir:       filepath.Join(c.dir, "pki"),
		Node:      "n1",
		API:       api.Certificates,
		Log:       slog.New(slog.DiscardHandler),
		Addresses: func() []corev1.NodeAddress { mu.Lock(); defer mu.Unlock(); return now },
	}
	s, err := NewServing(cfg)
	if err != nil {
		t.Fatal(err)
	}
	run(t, s)
	if _, err := s.GetCertificate(nil); err == nil || !strings.Contains(err.Error(), "kubectl get csr") {
		t.Errorf("without addresses: got %v, want the advice to look at the requests", err)
	}
	for _, ip := range []string{"192.0.2.1", "192.0.2.2"} {
		mu.Lock()
		now = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: ip}, {Type: corev1.NodeHostName, Address: "n1"}}
		mu.Unlock()
		s.AddressesChanged()
		waittest.Until(t, "a certificate for "+ip, func() bool {
			p, err := s.GetCertificate(nil)
			return err == nil && p.Leaf.VerifyHostname(ip) == nil && p.Leaf.VerifyHostname("n1") == nil
		})
	}
	if n := len(c.requests()); n != 2 {
		t.Errorf("got %d requests, want 2", n)
	}
	if _, err := os.Readlink(filepath.Join(cfg.Dir, "kubelet-server-current.pem")); err != nil {
		t.Error(err)
	}
}
