package probes

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/internal/release"
)

func TestHTTPHook(t *testing.T) {
	var agent, auth string
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		agent, auth = r.Header.Get("User-Agent"), r.Header.Get("Authorization")
		w.WriteHeader(http.StatusInternalServerError)
	})
	s := httptest.NewServer(handler)
	defer s.Close()
	var warned string
	target := HookTarget{Container: &corev1.Container{Name: "app"}, PodIP: "127.0.0.1",
		Warn: func(reason, message string) { warned = reason + ": " + message }}
	get := httpGet(t, s, "/stop", corev1.HTTPHeader{Name: "Authorization", Value: "secret"}).HTTPGet
	hook := &corev1.LifecycleHandler{HTTPGet: get}
	if err := RunHook(t.Context(), hook, target); err != nil || agent != "kube-lifecycle/"+release.Minor() ||
		auth != "secret" || warned != "" {
		t.Errorf("got %v, agent %q, auth %q, warning %q, want the kubelet's agent, the secret, no warning",
			err, agent, auth, warned)
	}
	get.Scheme = corev1.URISchemeHTTPS
	if err := RunHook(t.Context(), hook, target); err != nil || auth != "" ||
		!strings.HasPrefix(warned, "LifecycleHTTPFallback: ") {
		t.Errorf("HTTPS to a plain server: got %v, auth %q, warning %q, want no auth and the fallback", err, auth, warned)
	}
	s.Close()
	if err := RunHook(t.Context(), hook, target); err == nil ||
		!strings.Contains(err.Error(), `HTTP lifecycle hook (/stop) for Container "app"`) {
		t.Errorf("server that is gone: got %v, want an error that names path and container", err)
	}
	target.PodIP = ""
	if err := RunHook(t.Context(), hook, target); err == nil {
		t.Error("a pod without an address: got no error, want one")
	}
}

// TestHTTPHookProtocol checks that hooks speak HTTP/1.1, with and without TLS, whatever protocol their action has.
func TestHTTPHookProtocol(t *testing.T) {
	for scheme, protocol := range map[corev1.URIScheme]*corev1.HTTPProtocol{
		corev1.URISchemeHTTP:  new(corev1.HTTPProtocolHTTP2),
		corev1.URISchemeHTTPS: nil,
	} {
		got := ""
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r.Proto }))
		s.EnableHTTP2 = true
		s.Config.Protocols = new(http.Protocols)
		s.Config.Protocols.SetHTTP1(true)
		s.Config.Protocols.SetHTTP2(true)
		s.Config.Protocols.SetUnencryptedHTTP2(true)
		if scheme == corev1.URISchemeHTTPS {
			s.StartTLS()
		} else {
			s.Start()
		}
		get := httpGet(t, s, "/").HTTPGet
		get.Scheme, get.Protocol = scheme, protocol
		err := RunHook(t.Context(), &corev1.LifecycleHandler{HTTPGet: get},
			HookTarget{Container: &corev1.Container{Name: "app"}, PodIP: "127.0.0.1"})
		s.Close()
		if err != nil || got != "HTTP/1.1" {
			t.Errorf("%s: got %q, %v, want HTTP/1.1", scheme, got, err)
		}
	}
}

func TestHTTPHookEndsWithItsContext(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	defer s.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err := RunHook(ctx, &corev1.LifecycleHandler{HTTPGet: httpGet(t, s, "/").HTTPGet},
		HookTarget{Container: &corev1.Container{Name: "app"}, PodIP: "127.0.0.1"})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want context.DeadlineExceeded", err)
	}
}

func TestExecHook(t *testing.T) {
	hook := &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"stop", "now"}}}
	broken := errors.New("no such container")
	for _, c := range []struct {
		code int32
		err  error
		want string
	}{
		{0, nil, ""},
		{7, nil, `Exec lifecycle hook ([stop now]) for Container "app" in Pod "web_default(uid)" failed - ` +
			`error: command 'stop now' exited with 7, message: "out"`},
		{0, broken, `Exec lifecycle hook ([stop now]) for Container "app" in Pod "web_default(uid)" failed - ` +
			`error: no such container`},
	} {
		target := HookTarget{Pod: "web_default(uid)", ContainerID: "c1", Container: &corev1.Container{Name: "app"},
			Exec: func(_ context.Context, id string, cmd []string, limit time.Duration) ([]byte, int32, error) {
				if id != "c1" || len(cmd) != 2 || limit != 0 {
					t.Errorf("got exec %v in %s with limit %v, want two words in c1 without limit", cmd, id, limit)
				}
				return []byte("out"), c.code, c.err
			}}
		err := RunHook(t.Context(), hook, target)
		if got := errText(err); got != c.want || (c.err != nil && !errors.Is(err, c.err)) {
			t.Errorf("error %q, want %q", got, c.want)
		}
	}
}

func TestSleepHook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hook := &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 5}}
		start := time.Now()
		if err := RunHook(t.Context(), hook, HookTarget{}); err != nil || time.Since(start) != 5*time.Second {
			t.Errorf("got %v after %v, want no error after 5s", err, time.Since(start))
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		if err := RunHook(ctx, hook, HookTarget{Container: &corev1.Container{}}); err == nil {
			t.Error("a hook that was cut short: got no error, want one")
		}
	})
}

// TestLongSleepHook checks that a sleep of more than 292 years, more than a time.Duration holds, does not end at once.
func TestLongSleepHook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hook := &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 1e10}}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := RunHook(ctx, hook, HookTarget{Container: &corev1.Container{}}); !errors.Is(err, ErrSleepEnded) {
			t.Errorf("got error %v, want %v", err, ErrSleepEnded)
		}
	})
}

func TestHooksThatCannotRun(t *testing.T) {
	for _, hook := range []*corev1.LifecycleHandler{{}, {TCPSocket: &corev1.TCPSocketAction{}}} {
		if err := RunHook(t.Context(), hook, HookTarget{}); err == nil ||
			!strings.Contains(err.Error(), "exec, httpGet or sleep") {
			t.Errorf("got %v, want an error that names the kinds of hooks", err)
		}
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
