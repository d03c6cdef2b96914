package certs

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/nodelet/nodelet/config"
	"github.com/nodelet/nodelet/host/atomicfile"
	"github.com/nodelet/nodelet/internal/latest"
)

// ServingConfig is the configuration of a Serving.
type ServingConfig struct {
	CertFile, KeyFile string // given by the user; empty for none
	Bootstrap         bool   // request it from the API server (serverTLSBootstrap); the files serve until it is issued
	Dir               string // cert-dir
	Node              string // name of the Node object
	// API speaks to certificates.k8s.io. Nil: there is no API server, and Bootstrap has no effect.
	API rest.Interface
	// Addresses returns those of the Node object, for which the certificate is requested; none if they are not known yet.
	Addresses func() []corev1.NodeAddress
	// Rotated receives the age of a certificate that was replaced by one of the API server. It must not block.
	Rotated func(age time.Duration)
	Log     *slog.Logger
}

// ServingSettings returns what a Serving needs of the configuration. The caller adds the rest.
func ServingSettings(c *config.Config) ServingConfig {
	return ServingConfig{
		CertFile:  c.Kubelet.TLSCertFile,
		KeyFile:   c.Kubelet.TLSPrivateKeyFile,
		Bootstrap: c.Kubelet.ServerTLSBootstrap,
		Dir:       c.Paths.Certificates,
		Node:      c.Node.Name,
	}
}

// Serving is the certificate of the node's own server: configured by the user, signed by the cluster, or by the node
// itself. The goroutine of Run is its only writer.
type Serving struct {
	renewed
	cfg   ServingConfig
	pair  atomic.Pointer[tls.Certificate]
	moved latest.Signal // the addresses have changed
	// addresses are those of the last signal. Only NodeChanged uses it.
	addresses string
}

const servingFails = "cannot get a serving certificate, retrying"

// NewServing loads the certificate, or signs one.
func NewServing(cfg ServingConfig) (*Serving, error) {
	cfg.Bootstrap = cfg.Bootstrap && cfg.API != nil
	s := &Serving{renewed: renewed{store: store{cfg.Dir, "kubelet-server"}, log: cfg.Log, now: time.Now}, cfg: cfg,
		moved: latest.NewSignal()}
	switch {
	case cfg.Bootstrap:
		if pair, err := s.store.load(); err == nil { // if it has expired, the clock may be ahead: GetCertificate looks
			s.take(pair)
			return s, nil
		}
		if cfg.CertFile == "" {
			return s, nil
		}
		return s, s.loadFiles()
	case cfg.CertFile != "":
		return s, s.loadFiles()
	}
	err := s.signSelf(s.now())
	if err != nil && s.pair.Load() != nil {
		s.due = s.now() // for resign, which logs why
		return s, nil
	}
	return s, err
}

// GetCertificate is for tls.Config. As in the kubelet, one from the user's files is served even if it has expired: an
// API server without the CA of kubelets accepts it.
func (s *Serving) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	p := s.pair.Load()
	switch {
	case p == nil:
		return nil, errors.New("the node has no serving certificate yet: its request waits for approval (kubectl get csr)")
	case s.cfg.Bootstrap && s.now().After(p.Leaf.NotAfter):
		return nil, fmt.Errorf("the node's serving certificate expired at %s, and the clock of this machine says %s: "+
			"the request for another one waits for approval (kubectl get csr)", stamp(p.Leaf.NotAfter), stamp(s.now()))
	}
	return p, nil
}

// NodeChanged makes Run compare the certificate with the addresses of the node if they are no longer those of the last
// call. It never blocks. Only one goroutine may call it.
func (s *Serving) NodeChanged() {
	names, ips := sorted(s.cfg.Addresses())
	if now := fmt.Sprint(names, ips); now != s.addresses {
		s.addresses = now
		s.moved.Set()
	}
}

func (s *Serving) take(pair *tls.Certificate) {
	s.pair.Store(pair)
	s.leaf.Store(pair.Leaf)
	s.due = renewAt(pair.Leaf)
}

// Run keeps the certificate valid until ctx ends.
func (s *Serving) Run(ctx context.Context) {
	switch {
	case s.cfg.Bootstrap:
		s.rotate(ctx)
	case s.cfg.CertFile != "":
		s.followFiles(ctx, s.cfg.CertFile, s.cfg.KeyFile, func() { s.reload(s.cfg.CertFile, s.cfg.KeyFile) })
	default:
		crt, key := s.ownFiles()
		changed := latest.NewSignal()
		var following sync.WaitGroup
		following.Go(func() { s.followFiles(ctx, crt, key, changed.Set) })
		s.resign(ctx, changed)
		following.Wait()
	}
}

func (s *Serving) followFiles(ctx context.Context, crt, key string, changed func()) {
	var none [sha256.Size]byte // what NewServing has read may have changed since
	follow(ctx, []string{crt, key}, none, s.log, changed)
}

// loadFiles takes the pair of the settings.
func (s *Serving) loadFiles() error {
	if err := s.load(s.cfg.CertFile, s.cfg.KeyFile); err != nil {
		return fmt.Errorf("serving certificate (tlsCertFile, tlsPrivateKeyFile): %w", err)
	}
	return nil
}

// load takes the pair in files.
func (s *Serving) load(crt, key string) error {
	pair, err := loadPair(crt, key)
	if err != nil {
		return err
	}
	s.takeFile(pair, crt)
	return nil
}

// reload takes the pair in files that have changed. While they are no pair, the old one stays: only one of them may
// have been written yet.
func (s *Serving) reload(crt, key string) {
	if err := s.load(crt, key); err != nil {
		s.log.Warn("cannot use the changed serving certificate, keeping the old one", "key", key, "err", err)
	}
}

// takeFile is take for a certificate that the user has made.
func (s *Serving) takeFile(pair *tls.Certificate, file string) {
	before := s.leaf.Load()
	s.take(pair)
	switch expired := time.Now().After(pair.Leaf.NotAfter); {
	case before != nil && before.Equal(pair.Leaf):
	case expired:
		s.log.Warn("serving certificate has expired, clients that verify it will reject it: put a new one there",
			"file", file, "expired", stamp(pair.Leaf.NotAfter))
	default:
		s.log.Info("serving certificate loaded", "file", file, "expires", stamp(pair.Leaf.NotAfter))
	}
}

// rotate requests a certificate when there is none, when it is to be renewed, and when the addresses of the node have
// changed.
func (s *Serving) rotate(ctx context.Context) {
	failed := 0
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.moved:
			if failed > 0 || !s.wanting(s.now()) {
				continue
			}
		case <-timer.C:
		}
		var err error
		if s.wanting(s.now()) {
			err = interruptible(ctx, s.moved, s.obtain)
		}
		switch {
		case err == nil:
			failed = 0
		case !errors.Is(err, errChanged) && ctx.Err() == nil:
			failed++
			s.fail(servingFails, err, failed)
		}
		wait := clockCheck // also if it is due and the addresses are unknown: they end the wait
		if failed > 0 {
			wait = retry(failed)
		} else if now := s.now(); now.Before(s.due) {
			wait = untilRenewal(s.due, now)
		}
		timer.Reset(wait)
	}
}

// wanting reports whether to request a certificate, and the addresses for it are known.
func (s *Serving) wanting(now time.Time) bool {
	names, ips := sorted(s.cfg.Addresses())
	if len(ips) == 0 {
		return false
	}
	leaf := s.leaf.Load()
	return leaf == nil || !now.Before(s.due) || !covers(leaf, names, ips)
}

func covers(leaf *x509.Certificate, names []string, ips []net.IP) bool {
	for _, n := range names {
		if !slices.Contains(leaf.DNSNames, n) {
			return false
		}
	}
	for _, ip := range ips {
		if !slices.ContainsFunc(leaf.IPAddresses, ip.Equal) {
			return false
		}
	}
	return true
}

func (s *Serving) obtain(ctx context.Context) error {
	names, ips := sorted(s.cfg.Addresses())
	o := order{
		signer: certificatesv1.KubeletServingSignerName,
		usage:  certificatesv1.UsageServerAuth,
		request: x509.CertificateRequest{
			DNSNames:    names,
			IPAddresses: ips,
			Subject:     nodeSubject(s.cfg.Node),
		},
	}
	waiting := func(name string) { s.log.Info("serving certificate requested", "csr", name) }
	pair, err := s.store.obtain(ctx, s.cfg.API, o, waiting)
	if err != nil {
		return explain(err, "the node's kubeconfig", time.Now())
	}
	if old := s.leaf.Load(); old != nil {
		s.cfg.Rotated(s.now().Sub(old.NotBefore))
	}
	s.take(pair)
	s.log.Info("serving certificate issued", "expires", stamp(pair.Leaf.NotAfter))
	warnEarly(s.log, pair.Leaf, s.now())
	return nil
}

// sorted returns the names and IPs of addresses, each once, in a stable order.
func sorted(all []corev1.NodeAddress) (names []string, ips []net.IP) {
	for _, a := range all {
		ip := net.ParseIP(a.Address)
		switch {
		case ip != nil && a.Type != corev1.NodeInternalDNS && a.Type != corev1.NodeExternalDNS:
			ips = append(ips, ip)
		case a.Address != "" &&
			(a.Type == corev1.NodeHostName || a.Type == corev1.NodeInternalDNS || a.Type == corev1.NodeExternalDNS):
			names = append(names, a.Address)
		}
	}
	slices.Sort(names)
	slices.SortFunc(ips, func(a, b net.IP) int { return cmp.Compare(a.String(), b.String()) })
	return slices.Compact(names), slices.CompactFunc(ips, net.IP.Equal)
}

// selfValidity is how long a certificate that the node signs itself is valid, as in the kubelet.
const selfValidity = 365 * 24 * time.Hour

// ownFiles returns the files of the certificate that the node signs itself unless an administrator puts one there.
func (s *Serving) ownFiles() (crt, key string) {
	return filepath.Join(s.cfg.Dir, "kubelet.crt"), filepath.Join(s.cfg.Dir, "kubelet.key")
}

// signSelf loads kubelet.crt and kubelet.key of cert-dir, or creates them if they are missing or expire soon. It never
// replaces those of an administrator: as in the kubelet they are used until the administrator replaces them.
func (s *Serving) signSelf(now time.Time) error {
	crt, key := s.ownFiles()
	pair, err := loadPair(crt, key)
	foreign := s.foreign(crt)
	switch {
	case foreign && err != nil:
		return fmt.Errorf("serving certificate of cert-dir, which another program has made: %w", err)
	case foreign:
		s.takeFile(pair, crt)
		s.due = now.Add(lookAgain)
		return nil
	case err == nil:
		if s.take(pair); now.Before(s.due) {
			return nil
		} // it serves until the next can be written
	}
	certText, keyText, err := selfSigned(s.cfg.Node, now)
	if err != nil {
		return err
	}
	next, err := tls.X509KeyPair(certText, keyText)
	if err != nil {
		return err
	}
	if s.pair.Load() == nil { // better than none, if it cannot be written
		s.take(&next)
	}
	if err := s.write(certText, keyText); err != nil {
		return fmt.Errorf("create the node's own serving certificate: %w", err)
	}
	s.take(&next)
	s.log.Info("self-signed serving certificate created", "file", crt, "expires", stamp(next.Leaf.NotAfter))
	return nil
}

// write writes the node's own pair.
func (s *Serving) write(certText, keyText []byte) error {
	crt, key := s.ownFiles()
	err := os.MkdirAll(s.cfg.Dir, 0o755)
	if err == nil {
		err = atomicfile.WriteLinked(key, keyText, 0o600)
	}
	if err == nil {
		err = atomicfile.WriteLinked(crt, certText, 0o644)
	}
	return err
}

// foreign reports whether a certificate was not made by the node itself. The kubelet signs with a key of its own, which
// it forgets, and nodelet with that of the certificate; both write NODE@SECONDS as the subject.
func (s *Serving) foreign(crt string) bool {
	text, err := os.ReadFile(crt)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return false // damaged: it is of no use
	}
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return false
	}
	at := strings.LastIndexByte(leaf.Subject.CommonName, '@')
	if at < 0 {
		return true
	}
	_, err = strconv.ParseInt(leaf.Subject.CommonName[at+1:], 10, 64)
	return err != nil
}

// resign signs a new certificate before the old one expires. It loads the files when they have changed, and signs
// nothing then.
func (s *Serving) resign(ctx context.Context, changed latest.Signal) {
	failed := 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
			s.reload(s.ownFiles())
			continue
		case <-time.After(max(time.Second, untilRenewal(s.due, s.now()))):
		}
		if s.now().Before(s.due) {
			continue
		}
		if err := s.signSelf(s.now()); err != nil {
			failed++
			s.fail(servingFails, err, failed)
			s.due = s.now().Add(retry(failed))
		} else {
			failed = 0
		}
	}
}

func selfSigned(node string, now time.Time) (certText, keyText []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, nil, err
	}
	t := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: fmt.Sprintf("%s@%d", node, now.Unix())},
		NotBefore:             now.Add(-time.Hour),
		NotAfter:              now.Add(selfValidity),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
		DNSNames:              []string{node},
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return nil, nil, err
	}
	keyText, err = keyPEM(key)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), keyText, err
}
