package server_test

import (
	"cmp"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/hex"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/asn1"

	"github.com/nodelet/nodelet/kube/server"
)

// TestAuthentication checks which credentials are accepted, and that all others get 401 and a reason in the log.
func TestAuthentication(t *testing.T) {
	s := newStand(t, nil)
	s.cluster.tokens = map[string]string{"good": "prom"}
	s.cluster.rights = []string{"prom get metrics", "alice get metrics"}
	other := newAuthority(t, "client-ca") // the same name, another key
	expired := s.ca.issue(t, "alice", nil, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) })
	serving := s.ca.issue(t, "alice", nil, func(c *x509.Certificate) {
		c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	})
	none := s.client(nil)
	protocol := "base64url.bearer.authorization.k8s.io." + base64.RawURLEncoding.EncodeToString([]byte("good"))
	for _, c := range []struct {
		name   string
		client *http.Client
		header map[string]string
		code   int
		why    string
	}{
		{"nothing", none, nil, 401, "no credentials"},
		{"certificate", s.client(s.ca.issue(t, "alice", nil, nil)), nil, 200, ""},
		{"certificate of another authority", s.client(other.issue(t, "alice", nil, nil)), nil, 401, "unknown authority"},
		{"expired certificate", s.client(expired), nil, 401, "expired"},
		{"certificate for servers", s.client(serving), nil, 401, "incompatible key usage"},
		{"certificate without a name", s.client(s.ca.issue(t, "", nil, nil)), nil, 401, "has no common name"},
		{"token", none, map[string]string{"Authorization": "Bearer good"}, 200, ""},
		{"token in lower case", none, map[string]string{"Authorization": "bearer good"}, 200, ""},
		{"bad token", none, map[string]string{"Authorization": "Bearer s3cr3t-bad"}, 401, "not valid"},
		{"empty token", none, map[string]string{"Authorization": "Bearer "}, 401, "no valid bearer token"},
		{
			"endless token",
			none,
			map[string]string{"Authorization": "Bearer " + strings.Repeat("x", 70000)},
			401,
			"no valid bearer token",
		},
		{"password", none, map[string]string{"Authorization": "Basic czNjcjN0OmJhZA=="}, 401, "no credentials"},
		{"bad certificate, good token", s.client(expired), map[string]string{"Authorization": "Bearer good"}, 200, ""},
		{
			"good certificate, bad token",
			s.client(s.ca.issue(t, "alice", nil, nil)),
			map[string]string{"Authorization": "Bearer s3cr3t-bad"},
			200,
			"",
		},
		{
			"token as sub-protocol",
			none,
			map[string]string{"Sec-WebSocket-Protocol": "v4.channel.k8s.io, " + protocol},
			200,
			"",
		},
		{
			"token as the only sub-protocol",
			none,
			map[string]string{"Sec-WebSocket-Protocol": protocol},
			401,
			"another subprotocol",
		},
	} {
		before := len(s.log.String())
		code, body := s.ask(c.client, "GET", "/metrics", c.header)
		said := s.log.String()[before:]
		if code != c.code || code == 401 && strings.TrimSpace(body) != "Unauthorized" {
			t.Errorf("%s: got %d %q, want %d", c.name, code, body, c.code)
		}
		if c.why != "" && (!strings.Contains(said, "request refused") || !strings.Contains(said, c.why)) {
			t.Errorf("%s: the log: got %q, want %q", c.name, said, c.why)
		}
		if code == 200 && body != `mounted /metrics ""` {
			t.Errorf("%s: the handler got %q", c.name, body)
		}
	}
	for _, secret := range []string{"s3cr3t", "good", "czNj", "Z29v"} { // also as base64
		if strings.Contains(s.log.String(), secret) {
			t.Errorf("log: want no secret, got %q in\n%s", secret, s.log)
		}
	}
}

// TestTokenWithoutWebhook checks that a token which nothing can check is no credential: the caller is anonymous if that
// is allowed, and refused otherwise.
func TestTokenWithoutWebhook(t *testing.T) {
	for anonymous, want := range map[bool]int{true: 200, false: 401} {
		s := newStand(t, func(c *server.Config) { c.Anonymous, c.Tokens = anonymous, nil })
		s.cluster.rights = []string{"system:anonymous get healthz"}
		code, body := s.ask(s.client(nil), "GET", "/healthz", map[string]string{"Authorization": "Bearer any"})
		if code != want {
			t.Errorf("anonymous %t: got %d %q, want %d", anonymous, code, body, want)
		}
	}
}

// TestCertificateIdentity checks that the authorizer learns the UID in a client certificate, and which certificate it
// is.
func TestCertificateIdentity(t *testing.T) {
	s := newStand(t, nil)
	s.cluster.rights = []string{"alice get metrics"}
	uids := func(all ...any) *tls.Certificate {
		return s.ca.issue(t, "alice", nil, func(c *x509.Certificate) {
			for _, uid := range all {
				c.Subject.ExtraNames = append(c.Subject.ExtraNames, pkix.AttributeTypeAndValue{Type: asn1.X509UID(), Value: uid})
			}
		})
	}
	for _, c := range []struct {
		cert *tls.Certificate
		code int
		uid  string
	}{{uids(), 200, ""}, {uids("uid-1"), 200, "uid-1"}, {uids("uid-1", "uid-2"), 401, ""}, {uids(""), 401, ""}} {
		if got, _ := s.ask(s.client(c.cert), "GET", "/metrics", nil); got != c.code {
			t.Errorf("UID %q: got %d, want %d", c.uid, got, c.code)
		}
		s.cluster.mu.Lock()
		spec := s.cluster.reviewed
		s.cluster.mu.Unlock()
		sum := sha256.Sum256(c.cert.Certificate[0])
		want := "X509SHA256=" + hex.EncodeToString(sum[:])
		got := spec.Extra["authentication.kubernetes.io/credential-id"]
		if c.code == 200 && (spec.UID != c.uid || len(got) != 1 || got[0] != want) {
			t.Errorf("got UID %q and credential %q, want %q and %q", spec.UID, got, c.uid, want)
		}
	}
}

// TestCertificateWithoutCA checks the same for certificates: an API server always shows its own.
func TestCertificateWithoutCA(t *testing.T) {
	for anonymous, want := range map[bool]int{true: 200, false: 401} {
		s := newStand(t, func(c *server.Config) { c.Anonymous, c.ClientCAFile = anonymous, "" })
		s.cluster.rights = []string{"system:anonymous get healthz"}
		code, body := s.ask(s.client(s.ca.issue(t, "alice", nil, nil)), "GET", "/healthz", nil)
		if code != want {
			t.Errorf("anonymous %t: got %d %q, want %d", anonymous, code, body, want)
		}
	}
}

// TestAnonymous checks that callers without credentials are system:anonymous if that is allowed, and callers with
// invalid credentials are not.
func TestAnonymous(t *testing.T) {
	s := newStand(t, func(c *server.Config) { c.Anonymous = true })
	s.cluster.rights = []string{"system:anonymous get healthz"}
	bad := s.client(newAuthority(t, "x").issue(t, "alice", nil, nil))
	for _, c := range []struct {
		client *http.Client
		path   string
		code   int
	}{{s.client(nil), "/healthz", 200}, {s.client(nil), "/pods", 403}, {bad, "/healthz", 401}} {
		if code, body := s.ask(c.client, "GET", c.path, nil); code != c.code {
			t.Errorf("%s: got %d %q, want %d", c.path, code, body, c.code)
		}
	}
}

// TestAuthorization checks that each path needs permission for one of its subresources, and no other helps.
func TestAuthorization(t *testing.T) {
	s := newStand(t, func(c *server.Config) { c.AllowedTTL, c.DeniedTTL = 0, 0 })
	c := s.client(s.ca.issue(t, "alice", nil, nil))
	subs := []string{"metrics", "stats", "log", "pods", "healthz", "configz", "checkpoint", "proxy"}
	verbs := []string{"get", "create", "update", "patch", "delete", ""}
	for _, r := range []struct{ method, path, rights string }{
		{"GET", "/metrics", "get metrics"},
		{"GET", "/metrics/cadvisor", "get metrics"},
		{"POST", "/metrics", "create metrics"},
		{"GET", "/stats/summary", "get stats"},
		{"GET", "/logs/syslog", "get log"},
		{"GET", "/logs/", "get log"},
		{"GET", "/logs", "get log"},
		{"GET", "/pods", "get pods, get proxy"},
		{"HEAD", "/pods", " pods,  proxy"}, // the API has no verb for it
		{"GET", "/pods/", "get pods, get proxy"},
		{"GET", "/runningpods/", "get pods, get proxy"},
		{"GET", "/allocatedPods", "get pods, get proxy"},
		{"GET", "/allocatedPods/ns/pod", "get pods, get proxy"},
		{"GET", "/healthz", "get healthz, get proxy"},
		{"GET", "/configz", "get configz, get proxy"},
		{"POST", "/checkpoint/ns/pod/app", "create checkpoint"},
		{"GET", "/containerLogs/ns/pod/app", "get proxy"},
		{"GET", "/exec/ns/pod/app?output=1", "create proxy"},
		{"POST", "/exec/ns/pod/app?output=1", "create proxy"},
		{"GET", "/exec/ns/pod/uid/app?output=1", "create proxy"},
		{"GET", "/attach/ns/pod/app?output=1", "create proxy"},
		{"GET", "/portForward/ns/pod", "create proxy"},
		{"POST", "/run/ns/pod/app", "create proxy"},
		{"GET", "/run/ns/pod/app", "create proxy"},
		{"GET", "/nowhere", "get proxy"},
		{"GET", "/", "get proxy"},
		{"GET", "/metricsx", "get proxy"},
		{"GET", "/exec", "get proxy"},
		{"GET", "/exec/", "get proxy"},
		{"DELETE", "/pods", "delete pods, delete proxy"},
		{"PUT", "/metrics", "update metrics"},
		{"GET", "//exec/ns/pod/app?output=1", "get proxy"},
		{"GET", "/pods/../exec/ns/pod/app", "get proxy"},
		{"GET", "/metrics/../exec/ns/pod/app", "get proxy"},
		{"GET", "/metrics/%2e%2e/exec/ns/pod/app", "get proxy"},
		{"GET", "/metrics%2fcadvisor", "get proxy"},
		{"GET", "/exec%2fns/pod/app", "get proxy"},
		{"GET", "/metrics/./cadvisor", "get proxy"},
		{"GET", "/Metrics", "get proxy"},
		{"GET", "/metrics;/exec", "get proxy"},
		{"GET", "/pods\\..\\exec", "get proxy"},
	} {
		want := strings.Split(r.rights, ", ")
		try := func(rights []string, allowed bool) {
			s.cluster.set(func() {
				s.cluster.rights = nil
				for _, right := range rights {
					s.cluster.rights = append(s.cluster.rights, "alice "+right)
				}
			})
			code, body := s.ask(c, r.method, r.path, nil)
			if allowed == (code == 403 || code == 401) {
				t.Errorf("%s %s with %q: got %d %q, want it allowed: %v", r.method, r.path, rights, code, body, allowed)
			}
		}
		for _, right := range want {
			try([]string{right}, true)
		}
		var others []string
		for _, verb := range verbs {
			for _, sub := range subs {
				if right := verb + " " + sub; !slices.Contains(want, right) {
					others = append(others, right)
				}
			}
		}
		try(others, false)
	}
}

// TestUnescapedPaths checks that a path is found whether or not a client escapes what it need not (RFC 3986).
func TestUnescapedPaths(t *testing.T) {
	s, c := rooted(t, nil)
	for raw, want := range map[string]string{
		"/logs/%21%27%28%29%2A%5B%5D%20%25": "/logs/!'()*[] %",
		"/logs/!'()*[]%20%25":               "/logs/!'()*[] %",
		"/logs/%28)":                        "/logs/()",
		"/logs/(%61":                        "",
		"/logs/(%2e%2e":                     "",
		"/logs/(%2f":                        "",
		"/logs/../(":                        "",
		"/logs//(":                          "",
	} {
		code, body := s.ask(c, "GET", raw, nil)
		if found := strings.HasPrefix(body, "mounted "+want+" "); found != (want != "") || found != (code == 200) {
			t.Errorf("%s: got %d %q, want %q", raw, code, body, cmp.Or(want, "404"))
		}
	}
}

// TestCanonicalPaths checks that a path in another form is not found, even with all permissions.
func TestCanonicalPaths(t *testing.T) {
	s := newStand(t, nil)
	c := s.client(s.ca.issue(t, "root", []string{"system:masters"}, nil))
	for _, path := range []string{"/nowhere", "/", "//metrics", "/metrics/../pods", "/metrics/%2e%2e/pods", "/pods%2f",
		"/exec%2fns/pod/app",
		"/exec", "/exec/", "/exec/ns", "/exec/ns/pod", "/exec/ns/pod/uid/app/more", "/exec/ns//app",
		"/containerLogs/ns/pod/uid/app", "/portForward/ns",
		"/pods/x", "/metrics;x", "/./metrics", "/metrics/."} {
		if code, body := s.ask(c, "GET", path, nil); code != 404 && code != 400 {
			t.Errorf("%s: got %d %q, want 404 or 400", path, code, body)
		}
	}
	for _, r := range []struct{ method, path string }{
		{"DELETE", "/pods"},
		{"GET", "/run/ns/pod/app"},
		{"GET", "/checkpoint/ns/pod/app"},
		{"PUT", "/exec/ns/pod/app"},
	} {
		if code, body := s.ask(c, r.method, r.path, nil); code != 405 {
			t.Errorf("%s %s: got %d %q, want 405", r.method, r.path, code, body)
		}
	}
	if asked := s.agent.wasAsked(); asked != nil {
		t.Errorf("got the requests %q to the agent, want none", asked)
	}
}

// TestAnswersAreCached checks that the API server is asked once about each token and each permission, granted or not,
// and errors are not kept.
func TestAnswersAreCached(t *testing.T) {
	s := newStand(t, nil)
	s.cluster.tokens = map[string]string{"good": "prom"}
	s.cluster.rights = []string{"prom get metrics"}
	c := s.client(nil)
	ask := func(path, token string, want int) {
		t.Helper()
		if code, body := s.ask(c, "GET", path, map[string]string{"Authorization": "Bearer " + token}); code != want {
			t.Errorf("%s with %s: got %d %q, want %d", path, token, code, body, want)
		}
	}
	s.cluster.set(func() { s.cluster.down = true })
	ask("/metrics", "good", 401)
	s.cluster.set(func() { s.cluster.down = false })
	for range 3 {
		ask("/metrics", "good", 200)
		ask("/stats/summary", "good", 403)
		ask("/metrics", "bad", 401)
	}
	want := []string{"token good", "prom get metrics", "prom get stats", "token bad"}
	if got := s.cluster.wasAsked(); !slices.Equal(got, want) {
		t.Errorf("the API server was asked %q, want %q", got, want)
	}
	s.cluster.set(func() { s.cluster.down = true })
	ask("/metrics", "good", 200)
	ask("/pods", "good", 500)
	s.cluster.set(func() { s.cluster.down = false })
	ask("/pods", "good", 403)
}

// TestUncheckedTokenIsAskedAgain checks that an API server that could not check a token is asked again, and that the
// log says why it could not.
func TestUncheckedTokenIsAskedAgain(t *testing.T) {
	s := newStand(t, nil)
	s.cluster.tokens = map[string]string{"good": "prom"}
	s.cluster.rights = []string{"prom get metrics"}
	s.cluster.unsure = "etcdserver: leader changed"
	c, header := s.client(nil), map[string]string{"Authorization": "Bearer good"}
	if code, body := s.ask(c, "GET", "/metrics", header); code != 401 {
		t.Errorf("while the token cannot be checked: got %d %q, want 401", code, body)
	}
	if got, want := s.log.String(), "etcdserver: leader changed"; !strings.Contains(got, want) {
		t.Errorf("log: got %q, want %q", got, want)
	}
	s.cluster.set(func() { s.cluster.unsure = "" })
	if code, body := s.ask(c, "GET", "/metrics", header); code != 200 {
		t.Errorf("after that: got %d %q, want 200", code, body)
	}
}

// TestReviewsAreRepeated checks that the API server is asked again after a broken connection and after errors that
// pass, and not after others.
func TestReviewsAreRepeated(t *testing.T) {
	s := newStand(t, func(cfg *server.Config) { cfg.AllowedTTL = 0 })
	s.cluster.rights = []string{"prom get metrics"}
	cut := func(linger int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			c, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			_ = c.(*net.TCPConn).SetLinger(linger)
			_ = c.Close()
		}
	}
	answer := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "gone fishing", code) }
	}
	c := s.client(nil)
	for name, e := range map[string]struct {
		fault http.HandlerFunc
		code  int
		left  int
	}{
		"reset":             {cut(0), 200, 0},
		"end":               {cut(-1), 200, 0},
		"internal error":    {answer(500), 200, 0},
		"time-out":          {answer(504), 200, 0},
		"too many requests": {answer(429), 200, 0},
		"forbidden":         {answer(403), 401, 2},
		"unavailable":       {answer(503), 401, 2},
	} {
		s.cluster.set(func() {
			s.cluster.tokens = map[string]string{name: "prom"}
			s.cluster.faults = []http.HandlerFunc{e.fault, nil, e.fault} // the second is the TokenReview again
			s.cluster.asked = nil
		})
		code, body := s.ask(c, "GET", "/metrics", map[string]string{"Authorization": "Bearer " + name})
		s.cluster.set(func() {
			if left := len(s.cluster.faults); code != e.code || left != e.left {
				t.Errorf("%s: got %d %q and %d faults left, want %d and %d", name, code, body, left, e.code, e.left)
			}
		})
	}
}

// TestDebugOff checks that enableDebuggingHandlers turns off exec only, not metrics.
func TestDebugOff(t *testing.T) {
	s := newStand(t, func(c *server.Config) { c.Debug = false })
	c := s.client(s.ca.issue(t, "root", []string{"system:masters"}, nil))
	for path, want := range map[string]int{"/exec/ns/pod/app?output=1": 405, "/containerLogs/ns/pod/app": 405,
		"/logs/x": 405, "/runningpods/": 405,
		"/pods": 200, "/metrics": 200} {
		if code, body := s.ask(c, "GET", path, nil); code != want {
			t.Errorf("%s: got %d %q, want %d", path, code, body, want)
		}
	}
}

// TestClientCAsAreReread checks that a new CA file is used from the next request on, and a broken one is not.
func TestClientCAsAreReread(t *testing.T) {
	s := newStand(t, nil)
	next := newAuthority(t, "next-ca")
	old, other := s.client(s.ca.issue(t, "root", []string{"system:masters"}, nil)), s.client(next.issue(t, "root",
		[]string{"system:masters"}, nil))
	check := func(when string, c *http.Client, want int) {
		t.Helper()
		if code, _ := s.ask(c, "GET", "/metrics", nil); code != want {
			t.Errorf("%s: got %d, want %d", when, code, want)
		}
	}
	check("before, old", old, 200)
	check("before, new", other, 401)
	s.write(s.caFile, []byte("rubbish"))
	check("broken, old", old, 200)
	s.write(s.caFile, next.pem())
	check("after, new", other, 200)
	check("after, old", old, 401)
}

// TestAlwaysAllow checks that the API server is not asked, but callers must still be authenticated.
func TestAlwaysAllow(t *testing.T) {
	s := newStand(t, func(c *server.Config) {
		c.AlwaysAllow = true
		c.Access, c.Tokens = nil, nil
	})
	for _, c := range []struct {
		client *http.Client
		header map[string]string
		want   int
	}{
		{s.client(s.ca.issue(t, "alice", nil, nil)), nil, 200},
		{s.client(nil), nil, 401},
		{s.client(nil), map[string]string{"Authorization": "Bearer x"}, 401},
	} {
		if code, body := s.ask(c.client, "GET", "/pods", c.header); code != c.want {
			t.Errorf("got %d %q, want %d", code, body, c.want)
		}
	}
}
