package certs

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/rest"

	"github.com/nodelet/nodelet/config"
	"github.com/nodelet/nodelet/internal/latest"
	"github.com/nodelet/nodelet/kube/client"
)

// ClientConfig is the configuration of a Client.
type ClientConfig struct {
	Kubeconfig string // path of the kubeconfig
	Bootstrap  string // path of the bootstrap kubeconfig; empty: Kubeconfig must have credentials
	Dir        string // cert-dir
	Node       string // name of the Node object
	Rotate     bool   // renew the certificate before it expires
	UserAgent  string
	// Say receives a line that says what the node waits for, "" for nothing. It is called by one goroutine.
	Say func(string)
	Log *slog.Logger
}

// ClientSettings returns what a Client needs of the configuration. The caller adds Say and the log.
func ClientSettings(c *config.Config) ClientConfig {
	return ClientConfig{
		Kubeconfig: c.Paths.Kubeconfig,
		Bootstrap:  c.Paths.BootstrapKubeconfig,
		Dir:        c.Paths.Certificates,
		Node:       c.Node.Name,
		Rotate:     c.Kubelet.RotateCertificates,
		UserAgent:  config.UserAgent(),
	}
}

// clientStore is the name of the store for client certificates.
const clientStore = "kubelet-client"

// renewed is a certificate that is replaced in time.
type renewed struct {
	store store
	log   *slog.Logger
	now   func() time.Time
	leaf  atomic.Pointer[x509.Certificate] // the one in use; nil for none
	// due is when to replace it. Zero: a Client never does, and a Serving as soon as there are addresses.
	due      time.Time
	failures atomic.Uint64
	lastErr  string
}

// Expires returns when the certificate in use expires; zero if there is none.
func (r *renewed) Expires() time.Time {
	if l := r.leaf.Load(); l != nil {
		return l.NotAfter
	}
	return time.Time{}
}

// Failures returns the number of failed requests for a certificate.
func (r *renewed) Failures() uint64 { return r.failures.Load() }

// fail counts and logs a failure; the same one is logged once.
func (r *renewed) fail(message string, err error, failed int) {
	r.failures.Add(1)
	if text := err.Error(); text != r.lastErr {
		r.lastErr = text
		r.log.Error(message, "err", err, "retryIn", retry(failed))
	}
}

// Client is the identity of the node for the API server. The goroutine of Run is its only writer.
type Client struct {
	renewed
	cfg  ClientConfig
	host string // of the API server when the agent started

	main, beats *client.Transport

	pending bool // there is no identity yet, only the bootstrap credentials
	used    [32]byte
	current *rest.Config // in use; nil while pending
}

// NewClient reads the files and determines whether the node has an identity or must request one. It sends nothing:
// connections of Config and Heartbeats wait until Run has an identity. The error says which file is wrong, and
// why.
func NewClient(cfg ClientConfig) (*Client, error) {
	c := &Client{
		renewed: renewed{store: store{cfg.Dir, clientStore}, log: cfg.Log, now: time.Now},
		cfg:     cfg,
		main:    client.NewTransport(30 * time.Second),
		beats:   client.NewTransport(5 * time.Second),
	}
	if err := os.MkdirAll(cfg.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("create --cert-dir: %w", err)
	}
	now := c.now()
	rc, leaf, err := c.load(now)
	if err == nil {
		if err := c.importCert(rc, leaf, now); err != nil {
			c.log.Error("cannot store the certificate of the kubeconfig, going on with it where it is",
				"kubeconfig", cfg.Kubeconfig, "err", err)
		}
		if _, err := client.LoadConfig(cfg.Kubeconfig); err != nil {
			c.writeKubeconfig(rc)
		}
		c.host = rc.Host
		return c, c.use(rc, leaf, now)
	}
	if cfg.Bootstrap == "" {
		return nil, err
	}
	boot, bootErr := client.LoadConfig(cfg.Bootstrap)
	if bootErr != nil {
		return nil, fmt.Errorf("the node has no client certificate (%w) and cannot request one (%w): %s",
			err, bootErr, c.adviceWithoutBootstrap(now))
	}
	c.log.Info("node has no client certificate, requesting one", "bootstrapKubeconfig", cfg.Bootstrap, "err", err)
	c.host, c.pending = boot.Host, true
	c.await("waiting for the node's client certificate")
	return c, nil
}

// Config returns the configuration for the clients of the agent.
func (c *Client) Config() *rest.Config { return c.main.Config(c.host) }

// Heartbeats returns the configuration for heartbeats, which have a connection of their own, and what replaces it. That
// also closes other connections that may be dead as well.
func (c *Client) Heartbeats() (config *rest.Config, renew func() error) {
	return c.beats.Config(c.host), func() error { return errors.Join(c.beats.Renew(), c.main.Suspect()) }
}

func (c *Client) await(why string) {
	c.main.WaitFor(why)
	c.beats.WaitFor(why)
	c.cfg.Say(why)
}

// load returns the configuration to use and its certificate, nil if it has none. With Rotate the certificate in
// cert-dir is used if that of the kubeconfig is not valid, or if it was written after the kubeconfig: a kubeconfig that
// contains its certificate is not updated. While the agent can request a certificate, having none is an error. One that
// has expired by the clock is an error only while it has no identity: a clock that is ahead must not keep a changed
// kubeconfig from use.
func (c *Client) load(now time.Time) (*rest.Config, *x509.Certificate, error) {
	rc, lost := c.cluster()
	if rc == nil {
		return nil, nil, lost
	}
	leaf, err := certificateOf(rc)
	if pair, storeErr := c.store.load(); c.cfg.Rotate && storeErr == nil && c.prefers(pair.Leaf, leaf, now) {
		c.nameStored(rc)
		leaf, err = pair.Leaf, nil
	}
	if err == nil && c.cfg.Bootstrap != "" && (leaf == nil || c.current == nil) {
		err = checkValid(leaf, now)
	}
	if err != nil && lost != nil {
		return nil, nil, lost
	} else if err != nil {
		return nil, nil, fmt.Errorf("kubeconfig %s: %w", c.cfg.Kubeconfig, err)
	}
	return rc, leaf, nil
}

// nameStored makes rc name the certificate in cert-dir.
func (c *Client) nameStored(rc *rest.Config) {
	rc.TLSClientConfig.CertData, rc.TLSClientConfig.KeyData = nil, nil
	rc.TLSClientConfig.CertFile, rc.TLSClientConfig.KeyFile = c.store.current(), c.store.current()
}

// cluster returns the kubeconfig. If it cannot be read, it returns the cluster of the bootstrap kubeconfig as well, as
// long as the agent has no certificate: one in cert-dir may be valid there.
func (c *Client) cluster() (*rest.Config, error) {
	rc, err := client.LoadConfig(c.cfg.Kubeconfig)
	if err == nil || c.cfg.Bootstrap == "" || !c.cfg.Rotate || c.leaf.Load() != nil {
		return rc, err
	}
	boot, bootErr := client.LoadConfig(c.cfg.Bootstrap)
	if bootErr != nil {
		return nil, err
	}
	return rest.AnonymousClientConfig(boot), err
}

// writeKubeconfig writes a kubeconfig that names the certificate in cert-dir. The agent can go on without it.
func (c *Client) writeKubeconfig(cluster *rest.Config) {
	if err := writeKubeconfig(c.cfg.Kubeconfig, cluster, c.store.current()); err != nil {
		c.log.Error("cannot write the kubeconfig, without which the next start needs the bootstrap kubeconfig: "+
			"make its directory writable and restart nodelet", "err", err)
	}
}

// Present returns the client certificate with which an agent would start now; nil if the kubeconfig has other
// credentials. It may have expired, unless there is a bootstrap kubeconfig.
func Present(cfg ClientConfig, now time.Time) (*x509.Certificate, error) {
	_, leaf, err := (&Client{renewed: renewed{store: store{cfg.Dir, clientStore}}, cfg: cfg}).load(now)
	return leaf, err
}

// OtherNode returns the node of an agent's client certificate if the agent is another node by the machine's host name,
// which may have changed. --hostname-override counts more than the certificate: not every cluster compares them.
func OtherNode(c *config.Config, leaf *x509.Certificate) (node string) {
	if node = nodeOf(leaf); node == c.Node.Name || c.Flags["hostname-override"] != "" {
		return ""
	}
	return node
}

// importCert copies the certificate of the kubeconfig into cert-dir if there is no valid one. It does so before the
// first request: kubeadm looks for the file as soon as the control plane answers, and names it in the kubeconfig from
// then on. The node still requests its own certificate.
func (c *Client) importCert(rc *rest.Config, leaf *x509.Certificate, now time.Time) error {
	if !c.cfg.Rotate || leaf == nil || leaf.Subject.CommonName != c.user() || checkValid(leaf, now) != nil {
		return nil
	}
	if stored, err := c.store.load(); err == nil && !now.After(stored.Leaf.NotAfter) {
		return nil
	}
	t := rest.CopyConfig(rc)
	if err := rest.LoadTLSFiles(t); err != nil {
		return err
	}
	key, err := parseKey(t.TLSClientConfig.KeyData)
	if err != nil {
		return err
	}
	_, err = c.store.save(t.TLSClientConfig.CertData, key, now)
	return err
}

// prefers reports whether to use the stored certificate instead of the one that the kubeconfig names.
func (c *Client) prefers(stored, named *x509.Certificate, now time.Time) bool {
	if stored.Subject.CommonName != c.user() || now.After(stored.NotAfter) && !outlives(stored, named) {
		return false
	}
	at, err := os.Stat(c.cfg.Kubeconfig)
	pair, pairErr := os.Stat(c.store.current())
	return checkValid(named, now) != nil || err != nil || pairErr == nil && !at.ModTime().After(pair.ModTime())
}

func (c *Client) user() string { return nodeSubject(c.cfg.Node).CommonName }

// use makes rc the identity of the node.
func (c *Client) use(rc *rest.Config, leaf *x509.Certificate, now time.Time) error {
	if err := errors.Join(c.main.Use(rc), c.beats.Use(rc)); err != nil {
		return err
	}
	c.pending, c.used = false, digest(c.files())
	c.current = rc
	c.leaf.Store(leaf)
	c.due = time.Time{}
	switch {
	case !c.cfg.Rotate:
	case leaf == nil, leaf.Subject.CommonName != c.user(),
		filepath.Clean(rc.TLSClientConfig.CertFile) != filepath.Clean(c.store.current()):
		c.due = now // it cannot be renewed in its file: request the first one for cert-dir
	default:
		c.due = renewAt(leaf)
	}
	if err := checkValid(leaf, now); leaf != nil && err != nil {
		c.log.Error("client certificate is not valid, the API server will reject it: see nodelet check",
			"kubeconfig", c.cfg.Kubeconfig, "err", err)
	} else if leaf != nil {
		c.log.Info("using client certificate", "expires", stamp(leaf.NotAfter), "renewal", c.renewal())
	}
	return nil
}

func (c *Client) renewal() string {
	if c.due.IsZero() {
		return "never"
	}
	return stamp(c.due)
}

// files returns the files that the identity is read from.
func (c *Client) files() []string {
	all := []string{c.cfg.Kubeconfig, c.store.current()}
	if c.cfg.Bootstrap != "" {
		all = append(all, c.cfg.Bootstrap)
	}
	for _, path := range []string{c.cfg.Kubeconfig, c.cfg.Bootstrap} {
		if path == "" {
			continue
		}
		if rc, err := client.LoadConfig(path); err == nil {
			t := rc.TLSClientConfig
			all = append(all, t.CAFile, t.CertFile, t.KeyFile)
		}
	}
	all = slices.DeleteFunc(all, func(f string) bool { return f == "" })
	slices.Sort(all)
	return slices.Compact(all)
}

// Run requests a missing certificate, renews one that expires and reloads files that other programs change, until ctx
// ends.
func (c *Client) Run(ctx context.Context) {
	failed := 0
	for ctx.Err() == nil {
		changed, stopFollowing := c.follow(ctx)
		due := c.rest(ctx, changed, failed)
		c.reload() // also before a request: the last one may have ended because the files have changed
		var err error
		if due && c.wanting(c.now()) {
			err = interruptible(ctx, changed, c.obtain)
		}
		switch {
		case err == nil, errors.Is(err, errChanged):
			failed = 0
		case ctx.Err() == nil:
			failed++
			if c.pending {
				c.await("no client certificate yet: " + err.Error())
			}
			c.fail("cannot get a client certificate, retrying", err, failed)
		}
		stopFollowing()
	}
}

// rest waits until the files have changed or a request may be due, and reports whether one may be due.
func (c *Client) rest(ctx context.Context, changed latest.Signal, failed int) (due bool) {
	for !due {
		select {
		case <-ctx.Done():
			return false
		case <-changed:
			return false
		case <-time.After(c.pause(failed, c.now())):
			due = failed > 0 || c.wanting(c.now())
		}
	}
	return true
}

// follow watches the files until stop is called.
func (c *Client) follow(ctx context.Context) (changed latest.Signal, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	changed, done := latest.NewSignal(), make(chan struct{})
	files := c.files()
	last := digest(files)
	if !c.pending {
		last = c.used
	}
	go func() {
		defer close(done)
		follow(ctx, files, last, c.log, changed.Set)
	}()
	return changed, func() { cancel(); <-done }
}

// wanting reports whether to request a certificate now.
func (c *Client) wanting(now time.Time) bool {
	return c.pending || !c.due.IsZero() && !now.Before(c.due)
}

// pause returns how long to wait before the next request, or the next check whether it is due.
func (c *Client) pause(failed int, now time.Time) time.Duration {
	switch {
	case failed > 0:
		return retry(failed)
	case c.pending:
		return 0
	case c.due.IsZero():
		return lookAgain
	}
	return untilRenewal(c.due, now)
}

// reload reads the files if they have changed. If they cannot be used, the old identity stays. While there is none it
// reads them anyway: a certificate that has expired by a clock which was ahead is valid again when the clock is set.
func (c *Client) reload() {
	seen := digest(c.files())
	if !c.pending && seen == c.used {
		return
	}
	rc, leaf, err := c.load(c.now())
	if err == nil {
		err = c.use(rc, leaf, c.now())
	}
	switch {
	case err == nil:
		c.log.Info("kubeconfig and client certificate reloaded", "kubeconfig", c.cfg.Kubeconfig)
		c.cfg.Say("")
	case !c.pending:
		c.log.Warn("cannot use the changed kubeconfig or client certificate, keeping the old one", "err", err)
	}
	c.used = seen // what has changed since is read again
}

// obtain requests a certificate, with the present one if it is valid, or else with the bootstrap credentials.
func (c *Client) obtain(ctx context.Context) error {
	rc, with := c.Config(), c.cfg.Kubeconfig
	if leaf := c.leaf.Load(); c.cfg.Bootstrap != "" && (c.pending || leaf != nil && c.now().After(leaf.NotAfter)) {
		var err error
		if rc, err = client.LoadConfig(c.cfg.Bootstrap); err != nil {
			return err
		}
		with = c.cfg.Bootstrap
	}
	api, err := client.New(rc, 5, 10, c.cfg.UserAgent)
	if err != nil {
		return err
	}
	pair, err := c.store.obtain(ctx, api.Certificates, c.order(), func(name string) {
		c.log.Info("client certificate requested", "csr", name)
		if c.pending {
			c.await("waiting for the node's client certificate: kubectl certificate approve " + name)
		}
	})
	if err != nil {
		return explain(err, with, c.now())
	}
	if c.pending {
		c.writeKubeconfig(rc)
	}
	if err := c.adopt(pair.Leaf); err != nil {
		return err
	}
	if now := c.now(); c.wanting(now) {
		c.due = now.Add(clockCheck) // by a wrong clock each one can be due when it is issued
	}
	c.log.Info("client certificate issued", "expires", stamp(pair.Leaf.NotAfter))
	warnEarly(c.log, pair.Leaf, c.now())
	c.cfg.Say("")
	return nil
}

// adopt starts to use the certificate that was just stored, also if the kubeconfig names a newer one.
func (c *Client) adopt(stored *x509.Certificate) error {
	now := c.now()
	rc, _, err := c.load(now)
	if err != nil && c.current == nil {
		return err
	} else if err != nil {
		rc = rest.AnonymousClientConfig(c.current) // the kubeconfig has gone; the API server is the same
	}
	c.nameStored(rc)
	return c.use(rc, stored, now)
}

func (c *Client) order() order {
	return order{
		signer: certificatesv1.KubeAPIServerClientKubeletSignerName,
		usage:  certificatesv1.UsageClientAuth,
		request: x509.CertificateRequest{
			Subject: nodeSubject(c.cfg.Node),
		},
	}
}

// errChanged is the error of a request that ended because its files changed.
var errChanged = errors.New("the files have changed")

// interruptible runs do until changed says that it has to start again.
func interruptible(ctx context.Context, changed latest.Signal, do func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan error, 1)
	go func() { done <- do(ctx) }()
	select {
	case err := <-done:
		return err
	case <-changed:
		changed.Set() // the caller may wait for it as well
		cancel(errChanged)
	case <-ctx.Done():
	}
	if err := <-done; err == nil {
		return nil
	}
	return context.Cause(ctx)
}
