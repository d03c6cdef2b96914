package client

import (
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
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
