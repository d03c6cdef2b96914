package probes

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nodelet/nodelet/internal/release"
)

// try runs one attempt of a handler against 127.0.0.1.
func try(t *testing.T, h corev1.ProbeHandler, ports ...corev1.ContainerPort) (Outcome, string) {
	t.Helper()
	return tryWithin(t, 600, h, ports...) // no limit: also a busy machine answers before
}

// tryWithin tries a probe with a timeout in seconds.
func tryWithin(t *testing.T, timeout int32, h corev1.ProbeHandler, ports ...corev1.ContainerPort) (Outcome, string) {
	t.Helper()
	return New(Config{}).try(t.Context(), &Target{Kind: Readiness, PodIP: "127.0.0.1",
		Container: &corev1.Container{Name: "app", Ports: ports},
		Probe:     &corev1.Probe{TimeoutSeconds: timeout, ProbeHandler: h}})
}

// listen returns a listener on the loopback address, which is closed when the test ends.
func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func portOf(t *testing.T, addr string) intstr.IntOrString {
	t.Helper()
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	return intstr.FromInt(n)
}

// refusing returns an address that refuses connections until the test ends: its port is taken, and nothing listens.
func refusing(t *testing.T) string {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	own, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(own.(*unix.SockaddrInet4).Port))
}

func httpGet(t *testing.T, s *httptest.Server, path string, headers ...corev1.HTTPHeader) corev1.ProbeHandler {
	get := &corev1.HTTPGetAction{Path: path, Port: portOf(t, s.Listener.Addr().String()), HTTPHeaders: headers}
	if s.TLS != nil {
		get.Scheme = corev1.URISchemeHTTPS
	}
	return corev1.ProbeHandler{HTTPGet: get}
}

func TestHTTPOutcomes(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/huge":
			for range 100 {
				fmt.Fprint(w, strings.Repeat("x", 1000))
			}
		case "/here":
			http.Redirect(w, r, "/200", http.StatusFound)
		case "/there":
			http.Redirect(w, r, "http://other.test:1/200", http.StatusFound)
		case "/loop":
			http.Redirect(w, r, "/loop", http.StatusFound)
		default:
			code, _ := strconv.Atoi(strings.TrimPrefix(r.URL.Path, "/"))
			w.WriteHeader(code)
			fmt.Fprint(w, "secret")
		}
	}))
	defer s.Close()
	for _, c := range []struct {
		path string
		want Outcome
		text string
	}{
		{"/200", Succeeded, "secret"},
		{"204", Succeeded, ""},
		{"/399", Warned, "Probe terminated redirects, Response body: secret"},
		{"/400", Failed, "HTTP probe failed with statuscode: 400"},
		{"/500", Failed, "HTTP probe failed with statuscode: 500"},
		{"/here", Succeeded, "secret"},
		{"/there", Warned, "Probe terminated redirects, Response body: <a href=\"http://other.test:1/200\">Found</a>.\n\n"},
		{"/loop", Failed, `Get "/loop": stopped after 10 redirects`},
		{"/huge", Succeeded, strings.Repeat("x", maxOutput)},
	} {
		if got, text := try(t, httpGet(t, s, c.path)); got != c.want || text != c.text {
			t.Errorf("%s: got %s %.200q, want %s %.200q", c.path, got, text, c.want, c.text)
		}
	}
}

// TestHTTP2 checks that protocol HTTP2 speaks HTTP/2 without TLS, and the default HTTP/1.1.
func TestHTTP2(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.Proto)
	}))
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetHTTP1(true)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	defer s.Close()
	h := httpGet(t, s, "/")
	if got, text := try(t, h); got != Succeeded || text != "HTTP/1.1" {
		t.Errorf("without protocol: got %s %q, want HTTP/1.1", got, text)
	}
	h.HTTPGet.Protocol = new(corev1.HTTPProtocolHTTP2)
	if got, text := try(t, h); got != Succeeded || text != "HTTP/2.0" {
		t.Errorf("protocol HTTP2: got %s %q, want HTTP/2.0", got, text)
	}
}

// TestLargeHeadersAreNotRead checks that an answer with large headers fails the probe, with each version of HTTP.
func TestLargeHeadersAreNotRead(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Large", strings.Repeat("x", 2*maxHeaders))
	}))
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetHTTP1(true)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	defer s.Close()
	for _, protocol := range []corev1.HTTPProtocol{"", corev1.HTTPProtocolHTTP2} {
		h := httpGet(t, s, "/")
		h.HTTPGet.Protocol = &protocol
		if got, text := try(t, h); got != Failed {
			t.Errorf("protocol %q: got %s %q, want %s", protocol, got, text, Failed)
		}
	}
}

// TestLongErrorIsCut checks that an error which repeats what a server has sent is no longer than an answer.
func TestLongErrorIsCut(t *testing.T) {
	l := listen(t)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			fmt.Fprintf(conn, "%s\r\n\r\n", strings.Repeat("x", maxHeaders/2))
			conn.Close()
		}
	}()
	get := &corev1.HTTPGetAction{Path: "/", Port: portOf(t, l.Addr().String())}
	outcome, text := try(t, corev1.ProbeHandler{HTTPGet: get})
	_, message := describe(Readiness, outcome, text)
	if !strings.Contains(message, "malformed HTTP") || len(message) > maxOutput+100 {
		t.Errorf("got an event of %d bytes, want at most about %d: %.100q", len(message), maxOutput, message)
	}
}

// TestHTTPTimeout checks that a server that never answers fails the probe after its timeout. One that stops after the
// headers neither fails it nor lets it succeed, as with the kubelet.
func TestHTTPTimeout(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/stall" {
			w.(http.Flusher).Flush()
		}
		<-r.Context().Done()
	}))
	defer s.Close()
	for _, c := range []struct {
		path    string
		outcome Outcome
		while   string
	}{
		{"/slow", Failed, "(Client.Timeout exceeded while awaiting headers)"},
		{"/stall", Errored, "(Client.Timeout or context cancellation while reading body)"},
	} {
		want := fmt.Sprintf("Get %q: context deadline exceeded %s", s.URL+c.path, c.while)
		got, text := tryWithin(t, 1, httpGet(t, s, c.path))
		// A machine may be too busy to connect, or to send the headers, within the timeout.
		for try := 0; try < 60 && text != want && strings.Contains(text, "awaiting headers"); try++ {
			got, text = tryWithin(t, 1, httpGet(t, s, c.path))
		}
		if got != c.outcome || text != want {
			t.Errorf("%s: got %s %q, want %s %q", c.path, got, text, c.outcome, want)
		}
	}
}

func TestHTTPRequest(t *testing.T) {
	var got *http.Request
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r }))
	defer s.Close()
	if outcome, text := try(t, httpGet(t, s, "/a%2Fb?x=1&y")); outcome != Succeeded {
		t.Fatal(outcome, text)
	}
	if got.Header.Get("User-Agent") != "kube-probe/"+release.Minor() || got.Header.Get("Accept") != "*/*" || !got.Close ||
		got.Header.Get("Accept-Encoding") != "" || got.RequestURI != "/a%2Fb?x=1&y" {
		t.Errorf("got request %s with %v, close %v, want the path as it is, and the headers of the kubelet",
			got.RequestURI, got.Header, got.Close)
	}
	headers := []corev1.HTTPHeader{{Name: "host", Value: "my.host"}, {Name: "X-A", Value: "1"}, {Name: "X-A", Value: "2"},
		{Name: "user-agent", Value: "mine"}, {Name: "Accept", Value: ""}}
	if outcome, text := try(t, httpGet(t, s, "/", headers...)); outcome != Succeeded {
		t.Fatal(outcome, text)
	}
	if got.Host != "my.host" || len(got.Header["X-A"]) != 2 || got.Header.Get("User-Agent") != "mine" ||
		got.Header["Accept"] != nil {
		t.Errorf("got host %s, headers %v, want those of the probe", got.Host, got.Header)
	}
}

func TestHTTPSTakesAnyCertificate(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		protocol := 0
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter,
			r *http.Request) {
			protocol = r.ProtoMajor
		}))
		s.EnableHTTP2 = http2
		s.StartTLS()
		outcome, text := try(t, httpGet(t, s, "/"))
		s.Close()
		if want := map[bool]int{false: 1, true: 2}[http2]; outcome != Succeeded || protocol != want {
			t.Errorf("got %s %s over HTTP/%d, want HTTP/%d", outcome, text, protocol, want)
		}
	}
}

func TestTCP(t *testing.T) {
	l := listen(t)
	addr := l.Addr().String()
	port := portOf(t, addr)
	named := corev1.ContainerPort{Name: "db", ContainerPort: port.IntVal}
	for _, p := range []intstr.IntOrString{port, intstr.FromString("db"), intstr.FromString(port.String())} {
		if got, text := try(t, corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: p}}, named); got != Succeeded ||
			text != "" {
			t.Errorf("port %s: got %s, %s, want Succeeded", p.String(), got, text)
		}
	}
	addr = refusing(t)
	want := "dial tcp " + addr + ": connect: connection refused"
	port = portOf(t, addr)
	if got, text := try(t, corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: port}}); got != Failed ||
		text != want {
		t.Errorf("got %s %q, want %q", got, text, want)
	}
	for _, p := range []intstr.IntOrString{intstr.FromInt(0), intstr.FromInt(65536), intstr.FromString("none")} {
		got, text := try(t, corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: p}}, named)
		if got != Errored || !strings.Contains(text, p.String()) || !strings.Contains(text, `"app"`) {
			t.Errorf("port %s: got %s, %q, want Errored with the port and the container", p.String(), got, text)
		}
	}
}

func TestGRPC(t *testing.T) {
	l := listen(t)
	s, h := grpc.NewServer(), health.NewServer()
	h.SetServingStatus("up", grpc_health_v1.HealthCheckResponse_SERVING)
	h.SetServingStatus("down", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	grpc_health_v1.RegisterHealthServer(s, h)
	go func() { _ = s.Serve(l) }()
	defer s.Stop()
	bare := listen(t)
	other := grpc.NewServer()
	go func() { _ = other.Serve(bare) }()
	defer other.Stop()

	up, down := "up", "down"
	none := "none"
	for _, c := range []struct {
		addr    net.Addr
		service *string
		want    Outcome
		text    string
	}{
		{l.Addr(), nil, Succeeded, "service healthy"},
		{l.Addr(), &up, Succeeded, "service healthy"},
		{l.Addr(), &down, Failed, `service unhealthy (responded with "NOT_SERVING")`},
		{l.Addr(), &none, Failed, "error: health rpc probe failed: rpc error: code = NotFound desc = unknown service"},
		{bare.Addr(), nil, Failed,
			"error: this server does not implement the grpc health protocol (grpc.health.v1.Health): " +
				"unknown service grpc.health.v1.Health"},
	} {
		action := &corev1.GRPCAction{Port: portOf(t, c.addr.String()).IntVal, Service: c.service}
		if got, text := try(t, corev1.ProbeHandler{GRPC: action}); got != c.want || text != c.text {
			t.Errorf("got %s %q, want %s %q", got, text, c.want, c.text)
		}
	}
}

// bloated is a health server whose answers have headers and unknown fields of these sizes.
type bloated struct {
	grpc_health_v1.UnimplementedHealthServer
	header, field int
}

func (b *bloated) Check(ctx context.Context, _ *grpc_health_v1.HealthCheckRequest) (
	*grpc_health_v1.HealthCheckResponse, error) {
	resp := &grpc_health_v1.HealthCheckResponse{Status: grpc_health_v1.HealthCheckResponse_SERVING}
	unknown := protowire.AppendTag(nil, 100, protowire.BytesType)
	resp.ProtoReflect().SetUnknown(protowire.AppendBytes(unknown, make([]byte, b.field)))
	return resp, grpc.SetHeader(ctx, metadata.Pairs("large", strings.Repeat("x", b.header)))
}

// TestLargeGRPCAnswerIsNotRead checks that an answer with large headers or fields fails the probe.
func TestLargeGRPCAnswerIsNotRead(t *testing.T) {
	for _, c := range []struct {
		server bloated
		want   Outcome
	}{
		{bloated{}, Succeeded}, {bloated{header: 2 * maxHeaders}, Failed}, {bloated{field: 2 * maxOutput}, Failed},
	} {
		l := listen(t)
		s := grpc.NewServer()
		grpc_health_v1.RegisterHealthServer(s, &c.server)
		go func() { _ = s.Serve(l) }()
		action := &corev1.GRPCAction{Port: portOf(t, l.Addr().String()).IntVal}
		if got, text := try(t, corev1.ProbeHandler{GRPC: action}); got != c.want {
			t.Errorf("%d bytes of headers, %d of a field: got %s %q, want %s", c.server.header, c.server.field, got, text,
				c.want)
		}
		s.Stop()
	}
}

// TestGRPCOverTLS checks that mode TLS reaches a server with a certificate that nobody trusts, and that without it the
// probe of that server fails. The server also speaks HTTP/1.1, which it prefers.
func TestGRPCOverTLS(t *testing.T) {
	rpc := grpc.NewServer()
	defer rpc.Stop()
	grpc_health_v1.RegisterHealthServer(rpc, health.NewServer())
	s := httptest.NewUnstartedServer(rpc)
	s.EnableHTTP2 = true
	s.TLS = &tls.Config{NextProtos: []string{"http/1.1", "h2"}}
	s.StartTLS()
	defer s.Close()
	action := &corev1.GRPCAction{Port: portOf(t, s.Listener.Addr().String()).IntVal}
	if got, text := try(t, corev1.ProbeHandler{GRPC: action}); got != Failed {
		t.Errorf("without mode: got %s %q, want %s", got, text, Failed)
	}
	action.Mode = new(corev1.GRPCProbeModeTLS)
	if got, text := try(t, corev1.ProbeHandler{GRPC: action}); got != Succeeded {
		t.Errorf("mode TLS: got %s %q, want %s", got, text, Succeeded)
	}
}

// TestGRPCTimeout checks that a server that accepts and never speaks fails the probe after its timeout.
func TestGRPCTimeout(t *testing.T) {
	silent := listen(t)
	action := &corev1.GRPCAction{Port: portOf(t, silent.Addr().String()).IntVal}
	const want = "timeout: health rpc did not complete within 1s"
	if got, text := tryWithin(t, 1, corev1.ProbeHandler{GRPC: action}); got != Failed || text != want {
		t.Errorf("got %s %q, want %s %q", got, text, Failed, want)
	}
}

// TestGRPCRefused checks that a probe of a server that does not listen does not wait for its timeout, an hour here.
func TestGRPCRefused(t *testing.T) {
	action := &corev1.GRPCAction{Port: portOf(t, refusing(t)).IntVal}
	got, text := tryWithin(t, 3600, corev1.ProbeHandler{GRPC: action})
	if got != Failed || !strings.Contains(text, "connection refused") {
		t.Errorf("got %s %q, want %s with the cause", got, text, Failed)
	}
}

func TestNoHandler(t *testing.T) {
	if got, text := try(t, corev1.ProbeHandler{}); got != Errored || text == "" {
		t.Errorf("got %s, %q, want Errored with a text", got, text)
	}
}

// FuzzURL checks that whatever a manifest says, the request goes to the host and port of the action and nowhere else.
func FuzzURL(f *testing.F) {
	for _, seed := range []string{"", "/", "/healthz?x=1", "healthz", "//evil.test/x", "http://evil.test/x",
		"mailto:x@evil.test",
		"/%zz", "/a b", "/\x00", "?q", "#f", "//u:p@evil.test:99/", "\\\\evil", ":80/", "@evil.test/", "/%2f"} {
		f.Add(seed, "")
		f.Add(seed, "HTTPS")
	}
	c := &corev1.Container{Name: "app"}
	f.Fuzz(func(t *testing.T, path, scheme string) {
		if scheme != "" && scheme != "HTTP" && scheme != "HTTPS" {
			return // the API admits no others
		}
		get := &corev1.HTTPGetAction{Path: path, Scheme: corev1.URIScheme(scheme), Port: intstr.FromInt(8080)}
		req, err := newRequest(context.Background(), get, c, "fd00::1", "x")
		if err != nil {
			return
		}
		if req.URL.Host != "[fd00::1]:8080" || (req.URL.Scheme != "http" && req.URL.Scheme != "https") {
			t.Fatalf("path %q: got the URL %s, want the host of the pod", path, req.URL)
		}
		if again, err := url.Parse(req.URL.String()); err != nil || again.Host != req.URL.Host {
			t.Fatalf("path %q: got %s, which reads as %v, %v, want the same host", path, req.URL, again, err)
		}
	})
}
