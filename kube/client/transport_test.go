package client

import (
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/nodelet/nodelet/test/waittest"
)

const credential = `{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
	"status": {"token": "plugin"}}`

// TestCredentialPlugin checks that transports with the same credential plugin have connections of their own, and that
// Renew replaces them: heartbeats must not wait for a connection that is dead.
func TestCredentialPlugin(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if got := r.Header.Get("Authorization"); got != "Bearer plugin" {
			t.Errorf("got the credentials %q, want those of the plugin", got)
		}
		_, _ = io.WriteString(w, r.RemoteAddr)
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	plugin := &clientcmdapi.ExecConfig{
		APIVersion:      "client.authentication.k8s.io/v1",
		Command:         "sh",
		Args:            []string{"-c", "echo '" + credential + "'"},
		InteractiveMode: clientcmdapi.NeverExecInteractiveMode,
	}
	file := filepath.Join(t.TempDir(), "kubelet.conf")
	err := clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"c": {Server: server.URL, CertificateAuthorityData: ca}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"u": {Exec: plugin}},
		Contexts:       map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "u"}},
		CurrentContext: "x",
	}, file)
	if err != nil {
		t.Fatal(err)
	}
	rc, err := LoadConfig(file)
	if err != nil {
		t.Fatal(err)
	}
	main, beats := NewTransport(time.Minute), NewTransport(time.Minute)
	for _, transport := range []*Transport{main, beats} {
		if err := transport.Use(rc); err != nil {
			t.Fatal(err)
		}
	}
	connection := func(of *Transport) string {
		t.Helper()
		resp, err := (&http.Client{Transport: of}).Get(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	first := connection(beats)
	if other := connection(main); other == first {
		t.Errorf("another transport: got the connection %s as well, want one of its own", other)
	}
	if again := connection(beats); again != first {
		t.Errorf("second request: got connection %s, want %s", again, first)
	}
	if err := beats.Renew(); err != nil {
		t.Fatal(err)
	}
	if renewed := connection(beats); renewed == first {
		t.Errorf("after Renew: got connection %s, want another one", renewed)
	}
}

// TestRenewDoesNotUndoUse checks that Renew, which replaces connections at the same time, does not bring back the
// configuration that Use has replaced: heartbeats would go to an address that the API server has left.
func TestRenewDoesNotUndoUse(t *testing.T) {
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	file := filepath.Join(t.TempDir(), "ca.crt") // a pipe: each reading of it lasts until the test writes
	if err := unix.Mkfifo(file, 0o600); err != nil {
		t.Fatal(err)
	}
	old := &rest.Config{Host: "https://old", TLSClientConfig: rest.TLSClientConfig{CAFile: file}}
	transport := NewTransport(time.Minute)
	var all sync.WaitGroup
	run := func(change func() error) {
		all.Go(func() {
			if err := change(); err != nil {
				t.Error(err)
			}
		})
	}
	opened := func() (f *os.File) {
		t.Helper()
		waittest.Until(t, "the file is read", func() bool {
			var err error
			f, err = os.OpenFile(file, os.O_WRONLY|unix.O_NONBLOCK, 0) // there is a reader, or else it fails
			return err == nil
		})
		return f
	}
	finish := func(f *os.File) {
		_, _ = f.Write(ca)
		_ = f.Close()
	}
	run(func() error { return transport.Use(old) })
	finish(opened())
	all.Wait()

	run(transport.Renew)
	reading := opened()
	var used atomic.Bool
	run(func() error { defer used.Store(true); return transport.Use(&rest.Config{Host: "https://new"}) })
	stacks := make([]byte, 1<<20)
	waittest.Until(t, "Use waits for Renew, or ends", func() bool {
		text := string(stacks[:runtime.Stack(stacks, true)])
		return used.Load() || strings.Contains(text, "(*Transport).Use(") && strings.Contains(text, "[sync.Mutex.Lock")
	})
	finish(reading)
	all.Wait()
	if got, want := transport.Config("").Host, "https://new"; got != want {
		t.Errorf("address of the API server: got %q, want %q", got, want)
	}
}
