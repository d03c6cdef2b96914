package certs

import (
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

// writeKubeconfig writes what the kubelet writes after a bootstrap: the cluster of the bootstrap kubeconfig and the
// certificate below cert-dir.
func writeKubeconfig(path string, from *rest.Config, pem string) error {
	cluster := &clientcmdapi.Cluster{Server: from.Host, InsecureSkipTLSVerify: from.Insecure, CertificateAuthority: from.CAFile}
	if from.CAFile == "" {
		cluster.CertificateAuthorityData = from.CAData
	}
	text, err := clientcmd.Write(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"default-cluster": cluster},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"default-auth": {ClientCertificate: pem, ClientKey: pem}},
		Contexts:       map[string]*clientcmdapi.Context{"default-context": {Cluster: "default-cluster", AuthInfo: "default-auth", Namespace: "default"}},
		CurrentContext: "default-context",
	})
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o755)
	}
	if err == nil {
		err = atomicfile.WriteSynced(path, text, 0o600)
	}
	if err != nil {
		return fmt.Errorf("write kubeconfig %s: %w", path, err)
	}
	return nil
}

// certificateOf is the client certificate that a configuration names; nil where it names none.
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

// counts tells whether the certificate is good at this time, and why not.
func counts(c *x509.Certificate, now time.Time) error {
	switch {
	case c == nil:
		return errors.New("there is no client certificate in it")
	case now.After(c.NotAfter):
		return fmt.Errorf("its client certificate has expired at %s and this machine's clock says %s", stamp(c.NotAfter), stamp(now))
	}
	return nil
}
