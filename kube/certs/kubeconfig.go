package certs

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/nodelet/nodelet/host/atomicfile"
)

// writeKubeconfig writes what the kubelet writes after a bootstrap: the cluster of the bootstrap kubeconfig, also its
// proxy and the name of the server, and the certificate in cert-dir.
func writeKubeconfig(path string, from *rest.Config, pem string) error {
	cluster := &clientcmdapi.Cluster{
		Server:                from.Host,
		TLSServerName:         from.ServerName,
		InsecureSkipTLSVerify: from.Insecure,
		CertificateAuthority:  from.CAFile,
	}
	if from.CAFile == "" {
		cluster.CertificateAuthorityData = from.CAData
	}
	if from.Proxy != nil {
		proxy, err := from.Proxy(nil) // that of a kubeconfig is the same for each request
		if err != nil {
			return fmt.Errorf("write kubeconfig %s: %w", path, err)
		}
		cluster.ProxyURL = proxy.String()
	}
	inContext := &clientcmdapi.Context{Cluster: "default-cluster", AuthInfo: "default-auth", Namespace: "default"}
	text, err := clientcmd.Write(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"default-cluster": cluster},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"default-auth": {ClientCertificate: pem, ClientKey: pem}},
		Contexts:       map[string]*clientcmdapi.Context{"default-context": inContext},
		CurrentContext: "default-context",
	})
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o755)
	}
	if err == nil {
		err = atomicfile.WriteLinked(path, text, 0o600)
	}
	if err != nil {
		return fmt.Errorf("write kubeconfig %s: %w", path, err)
	}
	return nil
}

// certificateOf returns the client certificate that a configuration names; nil if it names none.
func certificateOf(rc *rest.Config) (*x509.Certificate, error) {
	var pair tls.Certificate
	var err error
	switch t := rc.TLSClientConfig; {
	case len(t.CertData) > 0 && len(t.KeyData) > 0:
		pair, err = tls.X509KeyPair(t.CertData, t.KeyData)
	case t.CertFile != "" && t.KeyFile != "":
		pair, err = tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
	default:
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("load client certificate: %w", err)
	}
	return pair.Leaf, nil
}

// checkValid returns why the client certificate is not valid at this time, nil if it is.
func checkValid(c *x509.Certificate, now time.Time) error {
	switch {
	case c == nil:
		return errors.New("it has no client certificate")
	case now.After(c.NotAfter):
		return fmt.Errorf("its client certificate expired at %s, and the clock of this machine says %s",
			stamp(c.NotAfter), stamp(now))
	}
	return nil
}

// outlives reports whether a is of the same authority as b and expires later. Of two certificates that have expired by
// the clock, which may be ahead, it may still be valid. The names of authorities do not tell clusters apart.
func outlives(a, b *x509.Certificate) bool {
	return b != nil && b.NotAfter.Before(a.NotAfter) && len(a.AuthorityKeyId) > 0 &&
		bytes.Equal(a.AuthorityKeyId, b.AuthorityKeyId)
}
