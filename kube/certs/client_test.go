package certs

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/nodelet/nodelet/kube/client"
	"github.com/nodelet/nodelet/test/waittest"
)

func token(t string) clientcmdapi.AuthInfo { return clientcmdapi.AuthInfo{Token: t} }

// TestBootstrap checks that a node with nothing but a token gets its certificate; requests made before wait for it;
// the files are the kubelet's.
func TestBootstrap(t *testing.T) {
	c := newCluster(t)
	cfg := c.config()
	cfg.Bootstrap = c.kubeconfig("bootstrap.conf", token(goodToken), c.caPEM())
	id, err := NewClient(cfg)
	if err != nil {
		t.Fatal(err)
	}
	early := make(chan error, 1)
	go func() { early <- get(t, id.Config()) }()
	run(t, id)
	if err := <-early; err != nil {
		t.Fatalf("a request that waited for the identity: got %v, want no error", err)
	}
	heartbeats, _ := id.Heartbeats()
	if err := get(t, heartbeats); err != nil {
		t.Error(err)
	}
	if c.users[nodeUser] == 0 {
		t.Errorf("got requests of users %v, want one of %s", c.users, nodeUser)
	}
	text, err := os.ReadFile(cfg.Kubeconfig)
	current := filepath.Join(cfg.Dir, "kubelet-client-current.pem")
	if err != nil || !strings.Contains(string(text), "client-certificate: "+current) ||
		!strings.Contains(string(text), "default-auth") {
		t.Errorf("kubeconfig: got %v, want the path of the certificate and the context in\n%s", err, text)
	}
	target, err := os.Readlink(current)
	if ok, _ := filepath.Match(filepath.Join(cfg.Dir, "kubelet-client-20??-??-??-??-??-??.pem"), target); err != nil ||
		!ok {
		t.Errorf("kubelet-client-current.pem: got a link to %q, %v, want a dated file", target, err)
	}
	if info, err := os.Stat(current); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("certificate: got %v, %v, want mode 0600", info, err)
	}
	if exists(filepath.Join(cfg.Dir, "kubelet-client.key.tmp")) {
		t.Error("the key of the answered request: got it still there, want it removed")
	}
	// A restart needs no token.
	cfg.Bootstrap = c.kubeconfig("bootstrap.conf", token("gone"), c.caPEM())
	again, err := NewClient(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := get(t, again.Config()); err != nil {
		t.Error(err)
	}
}

// TestWayToTheServer checks that a node reaches the API server with its certificate as it did to request it.
func TestWayToTheServer(t *testing.T) {
	c := newCluster(t)
	path := c.kubeconfig("bootstrap.conf", token(goodToken), c.caPEM())
	text, err := clientcmd.LoadFromFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const proxy, name = "http://proxy.example.com:3128", "api.example.com"
	text.Clusters["c"].ProxyURL, text.Clusters["c"].TLSServerName = proxy, name
	if err := clientcmd.WriteToFile(*text, path); err != nil {
		t.Fatal(err)
	}
	rc, err := client.LoadConfig(path)
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(c.dir, "kubelet.conf")
	if err := writeKubeconfig(path, rc, "/pki/current.pem"); err != nil {
		t.Fatal(err)
	}
	if text, err = clientcmd.LoadFromFile(path); err != nil {
		t.Fatal(err)
	}
	if got := text.Clusters["default-cluster"]; got.ProxyURL != proxy || got.TLSServerName != name {
		t.Errorf("got proxy %q and server name %q, want %q and %q", got.ProxyURL, got.TLSServerName, proxy, name)
	}
}

// TestBootstrapTrouble checks that each trouble is named with its cure, and goes away when its cause does.
func TestBootstrapTrouble(t *testing.T) {
	c, other := newCluster(t), newCluster(t)
	now := time.Now()
	for name, bad := range map[string]struct {
		user     clientcmdapi.AuthInfo
		ca       []byte
		from, to time.Time // validity of the API server's certificate
		want     string
	}{
		"expired token": {user: token("old"), ca: c.caPEM(), want: "kubeadm token create"},
		"wrong CA":      {user: token(goodToken), ca: other.caPEM(), want: "put the cluster's CA there"},
		"clock two hours behind": {
			user: token(goodToken),
			ca:   c.caPEM(),
			from: now.Add(2 * time.Hour),
			to:   now.Add(3 * time.Hour),
			want: "the clock of this machine says",
		},
		"clock two hours ahead": {
			user: token(goodToken),
			ca:   c.caPEM(),
			from: now.Add(-3 * time.Hour),
			to:   now.Add(-2 * time.Hour),
			want: "the clock of this machine says",
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := c.config()
			cfg.Dir, cfg.Kubeconfig = t.TempDir(), filepath.Join(t.TempDir(), "kubelet.conf")
			cfg.Bootstrap = c.kubeconfig(strings.ReplaceAll(name, " ", ""), bad.user, bad.ca)
			var mu sync.Mutex
			var said []string
			cfg.Say = func(s string) { mu.Lock(); said = append(said, s); mu.Unlock() }
			c.present(bad.from, bad.to)
			id, err := NewClient(cfg)
			if err != nil {
				t.Fatal(err)
			}
			run(t, id)
			waittest.Until(t, bad.want, func() bool {
				mu.Lock()
				defer mu.Unlock()
				return slices.ContainsFunc(said, func(s string) bool { return strings.Contains(s, bad.want) })
			})
			c.present(time.Time{}, time.Time{})
			c.kubeconfig(filepath.Base(cfg.Bootstrap), token(goodToken), c.caPEM())
			if err := get(t, id.Config()); err != nil {
				t.Error(err)
			}
			if id.Failures() == 0 {
				t.Error("failures: got none, want one")
			}
		})
	}
}

// TestClockWasAhead checks that a node whose clock was ahead at the start uses its certificate, which seemed to have
// expired, as soon as the clock is set, although its bootstrap token has expired long ago.
func TestClockWasAhead(t *testing.T) {
	c := newCluster(t)
	now := time.Now()
	rightTime := func() time.Time { return now.Add(-30 * time.Minute) }
	c.with(func() { c.clock = rightTime })
	cfg := c.config()
	cfg.Rotate = false
	cfg.Kubeconfig = c.kubeconfig("kubelet.conf",
		c.embedded(nodeUser, now.Add(-2*time.Hour), now.Add(-10*time.Minute)), c.caPEM())
	cfg.Bootstrap = c.kubeconfig("bootstrap.conf", token("old"), c.caPEM())
	id, err := NewClient(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if !id.pending {
		t.Fatal("got an identity at the start, want none: its certificate has expired by the clock")
	}
	id.now = rightTime
	run(t, id)
	if err := get(t, id.Config()); err != nil {
		t.Error(err)
	}
	if n := len(c.requests()); n != 0 {
		t.Errorf("got %d requests for a certificate, want none", n)
	}
}

// TestDeniedRequest checks that the error has the reason of a denied request, and the next request is another one.
func TestDeniedRequest(t *testing.T) {
	c := newCluster(t)
	denied := 0
	c.judge = func(*certificatesv1.CertificateSigningRequest) string {
		if denied++; denied == 1 {
			return "not this one"
		}
		return ""
	}
	cfg := c.config()
	cfg.Bootstrap = c.kubeconfig("bootstrap.conf", token(goodToken), c.caPEM())
	id, err := NewClient(cfg)
	if err != nil {
		t.Fatal(err)
	}
	run(t, id)
	if err := get(t, id.Config()); err != nil {
		t.Fatal(err)
	}
	if seen := c.requests(); len(seen) != 2 || seen[0] == seen[1] {
		t.Errorf("requests: got %v, want two different ones", seen)
	}
	if !strings.Contains(id.lastErr, "denied (No: not this one)") {
		t.Errorf("got error %q, want the reason", id.lastErr)
	}
}

// TestRotate checks that a certificate that expires soon is replaced, also for existing clients; no request fails.
func TestRotate(t *testing.T) {
	c := newCluster(t)
	cfg := c.config()
	// What the cluster signs is at once due for renewal, three times.
	c.born = func() time.Time {
		if len(c.seen) < 3 {
			return time.Now().Add(-95 * time.Hour)
		}
		return time.Now()
	}
	c.validity = 100 * time.Hour
	c.kubeconfig("kubelet.conf", c.embedded(nodeUser, time.Now().Add(-time.Hour), time.Now().Add(time.Hour)), c.caPEM())
	id, err := NewClient(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := get(t, id.Config()); err != nil {
		t.Fatal(err)
	}
	var looks atomic.Int64
	id.now = func() time.Time { return time.Now().Add(time.Duration(looks.Add(1)) * clockCheck) }
	run(t, id)
	waittest.Until(t, "three certificates", func() bool {
		if err := get(t, id.Config()); err != nil {
			t.Fatalf("a request during the renewal: got %v, want no error", err)
		}
		return len(c.requests()) == 3
	})
	waittest.Until(t, "the last certificate on a connection", func() bool {
		if err := get(t, id.Config()); err != nil {
			t.Fatal(err)
		}
		leaf := id.leaf.Load()
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.conns[leaf.SerialNumber.String()] && time.Until(leaf.NotAfter) > 90*time.Hour
	})
	// The kubeconfig still has the first one; after a restart the stored one is used.
	again, err := NewClient(cfg)
	if err != nil || !again.leaf.Load().Equal(id.leaf.Load()) {
		t.Errorf("after a restart: got a certificate that expires at %v, %v, want the same as before", again.Expires(), err)
	}
	if !again.due.After(time.Now()) {
		t.Error("after a restart: got a renewal at once, want none")
	}
}

// TestIssuedCertificateIsDue checks that a pause follows each issued certificate, also if it is due at once, as by a
// clock that is ahead.
func TestIssuedCertificateIsDue(t *testing.T) {
	c := newCluster(t)
	cfg := c.config()
	c.born, c.validity = func() time.Time { return time.Now().Add(-95 * time.Hour) }, 100*time.Hour
	now := time.Now()
	c.kubeconfig("kubelet.conf", c.embedded(nodeUser, now.Add(-time.Hour), now.Add(time.Hour)), c.caPEM())
	id, err := NewClient(cfg)
	if err != nil {
		t.Fatal(err)
	}
	id.now = func() time.Time { return now }
	if err := id.obtain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if id.wanting(now) || !id.wanting(now.Add(clockCheck)) {
		t.Errorf("got the next request due at %s, want %s", id.due, now.Add(clockCheck))
	}
}

// TestCertificateOfKubeconfigIsStored checks that kubeadm writes the first certificate into the kubeconfig, and looks
// for it in cert-dir before the cluster can sign another. One of another user is not stored, nor one beside a valid
// certificate.
func TestCertificateOfKubeconfigIsStored(t *testing.T) {
	c := newCluster(t)
	cfg := c.config()
	current := filepath.Join(cfg.Dir, "kubelet-client-current.pem")
	from, to := time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	c.kubeconfig("kubelet.conf", c.embedded("admin", from, to), c.caPEM())
	if _, err := NewClient(cfg); err != nil || exists(current) {
		t.Errorf("certificate of another user: got stored %v, %v, want it left alone", exists(current), err)
	}
	c.kubeconfig("kubelet.conf", c.embedded(nodeUser, from, to), c.caPEM())
	id, err := NewClient(cfg)
	if err != nil {
		t.Fatal(err)
	}
	kept, err := id.store.load()
	if err != nil || !kept.Leaf.Equal(id.leaf.Load()) {
		t.Fatalf("kept certificate: got %v, %v, want that of the agent", kept, err)
	}
	if id.due.After(time.Now()) {
		t.Error("got no request for a certificate of the node's own, want one")
	}
	if target, err := os.Readlink(current); err != nil || filepath.Dir(target) != cfg.Dir {
		t.Errorf("current certificate: got it at %q, %v, want it in the certificate directory", target, err)
	}
	c.kubeconfig("kubelet.conf", c.embedded(nodeUser, from, to), c.caPEM())
	if _, err := NewClient(cfg); err != nil {
		t.Fatal(err)
	}
	if again, err := id.store.load(); err != nil || !again.Leaf.Equal(kept.Leaf) {
		t.Errorf("stored certificate that is valid: got another one, %v, want it kept", err)
	}
}

// TestCertificateOfKubeconfigCannotBeStored checks that the agent starts with the certificate of the kubeconfig if it
// cannot replace one that has expired.
func TestCertificateOfKubeconfigCannotBeStored(t *testing.T) {
	c := newCluster(t)
	cfg := c.config()
	now := time.Now()
	old := c.embedded(nodeUser, now.Add(-2*time.Hour), now.Add(-time.Hour))
	text := slices.Concat(old.ClientCertificateData, old.ClientKeyData)
	current := filepath.Join(cfg.Dir, "kubelet-client-current.pem")
	if err := errors.Join(os.Mkdir(cfg.Dir, 0o755), os.WriteFile(current, text, 0o600)); err != nil {
		t.Fatal(err)
	}
	c.kubeconfig("kubelet.conf", c.embedded(nodeUser, now.Add(-time.Hour), now.Add(time.Hour)), c.caPEM())
	id, err := NewClient(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := get(t, id.Config()); err != nil {
		t.Error(err)
	}
}

// TestExpiredInNewerKubeconfig checks that a kubeconfig which was written after the stored certificate, but whose own
// has expired, does not replace it.
func TestExpiredInNewerKubeconfig(t *testing.T) {
	c := newCluster(t)
	cfg := c.config()
	now := time.Now()
	c.kubeconfig("kubelet.conf", c.embedded(nodeUser, now.Add(-time.Hour), now.Add(time.Hour)), c.caPEM())
	id, err := NewClient(cfg) // stores the certificate
	if err != nil {
		t.Fatal(err)
	}
	c.kubeconfig("kubelet.conf", c.embedded(nodeUser, now.Add(-2*time.Hour), now.Add(-time.Hour)), c.caPEM())
	later := now.Add(time.Minute)
	if err := os.Chtimes(cfg.Kubeconfig, later, later); err != nil {
		t.Fatal(err)
	}
	again, err := NewClient(cfg)
	if err != nil || !again.leaf.Load().Equal(id.leaf.Load()) {
		t.Errorf("got a certificate that expires at %v, %v, want the stored one", again.Expires(), err)
	}
}

// TestStoredCertificateOutlivesKubeconfig checks that a node whose kubeconfig is lost or damaged uses the certificate
// that it has, needs no token for that, and renews it. The kubeconfig is written again if that is possible.
func TestStoredCertificateOutlivesKubeconfig(t *testing.T) {
	for name, damage := range map[string]func(path string) error{
		"missing": os.Remove,
		"empty":   func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"junk":    func(path string) error { return os.WriteFile(path, []byte("\x00junk"), 0o600) },
		"in the way": func(path string) error {
			return errors.Join(os.Remove(path), os.MkdirAll(filepath.Join(path, "x"), 0o755))
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			cfg := c.config()
			now := time.Now()
			c.kubeconfig("kubelet.conf", c.embedded(nodeUser, now.Add(-time.Hour), now.Add(time.Hour)), c.caPEM())
			if _, err := NewClient(cfg); err != nil { // stores the certificate
				t.Fatal(err)
			}
			if err := damage(cfg.Kubeconfig); err != nil {
				t.Fatal(err)
			}
			cfg.Bootstrap = c.kubeconfig("bootstrap.conf", token("expired"), c.caPEM())
			id, err := NewClient(cfg)
			if err != nil || id.pending {
				t.Fatalf("got an identity that is pending, %v, want the stored one", err)
			}
			if err := get(t, id.Config()); err != nil {
				t.Error(err)
			}
			if _, err := client.LoadConfig(cfg.Kubeconfig); err != nil && name != "in the way" {
				t.Errorf("kubeconfig: got %v, want it written again", err)
			}
			before := id.leaf.Load()
			if err := id.obtain(t.Context()); err != nil || id.leaf.Load() == before {
				t.Errorf("renewal: got %v, want the new certificate in use", err)
			}
		})
	}
}

// TestKubeconfigCannotBeWritten checks that a node uses the certificate that it has got, once, also if it cannot write
// the kubeconfig.
func TestKubeconfigCannotBeWritten(t *testing.T) {
	c := newCluster(t)
	cfg := c.config()
	cfg.Bootstrap = c.kubeconfig("bootstrap.conf", token(goodToken), c.caPEM())
	if err := os.MkdirAll(filepath.Join(cfg.Kubeconfig, "x"), 0o755); err != nil {
		t.Fatal(err)
	}
	id, err := NewClient(cfg)
	if err != nil {
		t.Fatal(err)
	}
	run(t, id)
	if err := get(t, id.Config()); err != nil || len(c.requests()) != 1 {
		t.Errorf("got %v after requests %v, want the certificate of one request", err, c.requests())
	}
}

// TestLinkedKubeconfig checks that a kubeconfig which an administrator keeps elsewhere, by a link, is written there.
func TestLinkedKubeconfig(t *testing.T) {
	c := newCluster(t)
	cfg := c.config()
	cfg.Bootstrap = c.kubeconfig("bootstrap.conf", token(goodToken), c.caPEM())
	elsewhere := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.Symlink(elsewhere, cfg.Kubeconfig); err != nil {
		t.Fatal(err)
	}
	id, err := NewClient(cfg)
	if err != nil {
		t.Fatal(err)
	}
	run(t, id)
	if err := get(t, id.Config()); err != nil {
		t.Fatal(err)
	}
	if at, err := os.Readlink(cfg.Kubeconfig); err != nil || at != elsewhere {
		t.Errorf("the link: got %q, %v, want that it stays", at, err)
	}
	if _, err := os.Stat(elsewhere); err != nil {
		t.Errorf("the kubeconfig: %v", err)
	}
}

// TestReload checks that existing clients use a kubeconfig that another program writes.
func TestReload(t *testing.T) {
	c := newCluster(t)
	cfg := c.config()
	cfg.Rotate = false
	c.kubeconfig("kubelet.conf", c.embedded(nodeUser, time.Now().Add(-time.Hour), time.Now().Add(time.Hour)), c.caPEM())
	id, err := NewClient(cfg)
	if err != nil {
		t.Fatal(err)
	}
	run(t, id)
	rc := id.Config()
	if err := get(t, rc); err != nil {
		t.Fatal(err)
	}
	moved := newCluster(t) // another address, another authority
	moved.dir = c.dir
	moved.kubeconfig("kubelet.conf",
		moved.embedded("system:node:n1", time.Now().Add(-time.Hour), time.Now().Add(time.Hour)), moved.caPEM())
	waittest.Until(t, "a request at the new place", func() bool {
		if err := get(t, rc); err != nil {
			t.Fatalf("a request during the move: got %v, want no error", err)
		}
		moved.mu.Lock()
		defer moved.mu.Unlock()
		return moved.users[nodeUser] > 0
	})
}

// TestChangedAtRequest checks that a kubeconfig which names another cluster is read before the first request for a
// certificate, and ends a request that nobody approves: the next one is made there.
func TestChangedAtRequest(t *testing.T) {
	for name, before := range map[string]bool{"before": true, "during": false} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			var made atomic.Int64
			c.api.Intercept(func(r *http.Request) *apierrors.StatusError { // it lets all in, and nobody approves
				if r.Method == http.MethodPost {
					made.Add(1)
				}
				return nil
			})
			from, to := time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
			c.kubeconfig("kubelet.conf", c.embedded(nodeUser, from, to), c.caPEM())
			id, err := NewClient(c.config())
			if err != nil {
				t.Fatal(err)
			}
			moved := newCluster(t)
			moved.dir = c.dir
			next := moved.kubeconfig("next.conf", moved.embedded(nodeUser, from, to), moved.caPEM())
			move := sync.OnceFunc(func() {
				time.Sleep(50 * time.Millisecond) // what follows the files has seen the first ones
				if err := os.Rename(next, id.cfg.Kubeconfig); err != nil {
					t.Error(err)
				}
			})
			want := int64(0)
			if before {
				id.now = func() time.Time { move(); return time.Now() }
				run(t, id)
			} else {
				run(t, id)
				want = 1
				waittest.Until(t, "a request", func() bool { return made.Load() == want })
				move()
			}
			waittest.Until(t, "a request at the new place", func() bool { return len(moved.requests()) > 0 })
			if n := made.Load(); n != want {
				t.Errorf("got %d requests at the old place, want %d", n, want)
			}
		})
	}
}

// TestChangedWhileClockIsAhead checks that a kubeconfig which changes while every certificate has expired by the clock
// is used, and with the certificate that expires last, unless another authority signed that. One without a certificate
// is not used.
func TestChangedWhileClockIsAhead(t *testing.T) {
	now := time.Now()
	from, to := now.Add(-time.Hour), now.Add(time.Hour)
	for name, test := range map[string]struct {
		rotate  bool
		user    func(c, moved *cluster) clientcmdapi.AuthInfo
		expires time.Time
		stays   bool
	}{
		"certificate of the kubeconfig": {false, func(_, moved *cluster) clientcmdapi.AuthInfo {
			return moved.embedded(nodeUser, from, to.Add(time.Hour))
		}, to.Add(time.Hour), false},
		"certificate of cert-dir": {true, func(c, _ *cluster) clientcmdapi.AuthInfo {
			return c.embedded(nodeUser, from.Add(-time.Hour), from)
		}, to, false},
		"certificate of another authority": {true, func(_, moved *cluster) clientcmdapi.AuthInfo {
			return moved.embedded(nodeUser, from, now)
		}, now, false},
		"no certificate": {false, func(_, _ *cluster) clientcmdapi.AuthInfo { return token(goodToken) }, to, true},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			cfg := c.config()
			cfg.Rotate = test.rotate
			cfg.Bootstrap = c.kubeconfig("bootstrap.conf", token("expired"), c.caPEM())
			c.kubeconfig("kubelet.conf", c.embedded(nodeUser, from, to), c.caPEM())
			id, err := NewClient(cfg) // stores the certificate with rotate
			if err != nil {
				t.Fatal(err)
			}
			moved := newCluster(t)
			moved.dir = c.dir
			want := moved.http.URL
			if test.stays {
				want = c.http.URL
			}
			moved.kubeconfig("kubelet.conf", test.user(c, moved), moved.caPEM())
			id.now = func() time.Time { return now.AddDate(1, 0, 0) }
			id.reload()
			if at := id.current.Host; at != want {
				t.Errorf("got the API server %s, want %s", at, want)
			}
			if at := id.Expires(); !at.Equal(test.expires.Truncate(time.Second)) {
				t.Errorf("got a certificate that expires at %s, want %s", at, test.expires)
			}
		})
	}
}

// TestChangedWhileRead checks that a kubeconfig that changes while the agent reads it is read again.
func TestChangedWhileRead(t *testing.T) {
	c := newCluster(t)
	cfg := c.config()
	cfg.Rotate = false
	write := func(c *cluster) {
		user := c.embedded(nodeUser, time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
		c.kubeconfig("kubelet.conf", user, c.caPEM())
	}
	write(c)
	id, err := NewClient(cfg)
	if err != nil {
		t.Fatal(err)
	}
	write(c)
	moved := newCluster(t)
	moved.dir = c.dir
	asked := 0
	id.now = func() time.Time {
		if asked++; asked == 2 { // the files have been read, and are not in use yet
			write(moved)
		}
		return time.Now()
	}
	id.reload()
	id.now = time.Now
	run(t, id)
	waittest.Until(t, "a request at the new place", func() bool {
		_ = get(t, id.Config())
		moved.mu.Lock()
		defer moved.mu.Unlock()
		return moved.users[nodeUser] > 0
	})
}

func TestNewClientErrors(t *testing.T) {
	c := newCluster(t)
	cfg := c.config()
	if _, err := NewClient(cfg); err == nil || !strings.Contains(err.Error(), cfg.Kubeconfig) {
		t.Errorf("no kubeconfig: got %v, want an error that names it", err)
	}
	cfg.Bootstrap = filepath.Join(c.dir, "nowhere")
	_, err := NewClient(cfg)
	wantParts(t, "no bootstrap kubeconfig", err, cfg.Bootstrap, cfg.Kubeconfig, "join the cluster first")
	if err != nil && strings.Contains(err.Error(), "control plane") {
		t.Errorf("no bootstrap kubeconfig: got %v, want no advice to make a certificate for a node that never joined", err)
	}
	for _, user := range []string{nodeUser, "system:node:by-its-old-host-name"} {
		c.kubeconfig("kubelet.conf", c.embedded(user, time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour)), c.caPEM())
		_, err := NewClient(cfg)
		wantParts(t, "expired certificate", err, "expired at", "--client-name "+user)
	}
}

func wantParts(t *testing.T, what string, err error, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%s: got %v, want an error with %q", what, err, part)
		}
	}
}

// TestPendingRequestSurvivesRestart checks that after a restart a pending request is found by its name.
func TestPendingRequestSurvivesRestart(t *testing.T) {
	s := store{t.TempDir(), "kubelet-client"}
	key, err := s.requestKey()
	if err != nil {
		t.Fatal(err)
	}
	again, err := s.requestKey()
	if err != nil {
		t.Fatal(err)
	}
	o := order{signer: certificatesv1.KubeAPIServerClientKubeletSignerName, usage: certificatesv1.UsageClientAuth}
	a, err := o.csr(key)
	if err != nil {
		t.Fatal(err)
	}
	b, err := o.csr(again)
	if err != nil || a.Name != b.Name || !strings.HasPrefix(a.Name, "node-csr-") {
		t.Errorf("names of requests: got %s, %s, %v, want the same, with the kubelet's prefix", a.Name, b.Name, err)
	}
	if err := os.WriteFile(s.keyFile(), []byte("broke off"), 0o600); err != nil {
		t.Fatal(err)
	}
	if third, err := s.requestKey(); err != nil || third == nil {
		t.Errorf("after a broken file: got %v, want another key", err)
	}
}

// TestUsable checks that a certificate of the future is used, as with the kubelet: the API server goes by its own
// clock.
func TestUsable(t *testing.T) {
	c := newCluster(t)
	now := time.Now()
	cert := c.sign(&x509.Certificate{
		NotBefore: now.Add(2 * time.Hour),
		NotAfter:  now.Add(4 * time.Hour),
	}, newKey(t).Public())
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})
	err := usable(text, now.Add(5*time.Hour))
	if _, ok := errors.AsType[*refusedError](err); !ok || !strings.Contains(err.Error(), "set the clock") {
		t.Errorf("expired certificate: got %v, want the advice to set the clock", err)
	}
	for _, at := range []time.Time{now, now.Add(3 * time.Hour)} { // the first is before its time
		if err := usable(text, at); err != nil {
			t.Error(err)
		}
	}
	var logged strings.Builder
	for _, at := range []time.Time{now, now.Add(3 * time.Hour)} {
		warnEarly(slog.New(slog.NewTextHandler(&logged, nil)), cert, at)
	}
	if n := strings.Count(logged.String(), "not valid yet"); n != 1 {
		t.Errorf("got %d warnings, want one, of the certificate before its time:\n%s", n, &logged)
	}
	for _, bad := range []string{"", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"} {
		if err := usable([]byte(bad), now); err == nil {
			t.Errorf("%q: got no error, want one", bad)
		}
	}
}

func TestExplainClock(t *testing.T) {
	now := time.Now()
	err := explain(x509.CertificateInvalidError{
		Cert:   &x509.Certificate{NotBefore: now.Add(time.Hour), NotAfter: now.Add(2 * time.Hour)},
		Reason: x509.Expired,
	}, "kubelet.conf", now)
	if !strings.Contains(err.Error(), "the clock of this machine says "+stamp(now)) {
		t.Error(err)
	}
}

func TestRetry(t *testing.T) {
	for failed, want := range map[int]time.Duration{1: 2 * time.Second, 2: 4 * time.Second, 100: 5 * time.Minute} {
		if got := retry(failed); got != want {
			t.Errorf("after %d failures: got %s, want %s", failed, got, want)
		}
	}
}
