package testbed

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

const certValidity = 30 * 24 * time.Hour

// identity is a certificate with its key, parsed and as PEM.
type identity struct {
	cert            *x509.Certificate
	key             *ecdsa.PrivateKey
	certPEM, keyPEM []byte
}

// subject describes the holder of a certificate. Servers have names and addresses, clients have neither.
type subject struct {
	user   string // common name
	groups []string
	names  []string
	ips    []net.IP
}

func newCA(name string) (identity, error) {
	return sign(&x509.Certificate{
		Subject:               pkix.Name{CommonName: name},
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		IsCA:                  true,
		BasicConstraintsValid: true,
	}, identity{})
}

// issue signs a client certificate, or one for client and server if the subject has names or addresses.
func (ca identity) issue(s subject) (identity, error) {
	usage := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if len(s.names)+len(s.ips) > 0 {
		usage = append(usage, x509.ExtKeyUsageServerAuth)
	}
	return sign(&x509.Certificate{
		Subject:     pkix.Name{CommonName: s.user, Organization: s.groups},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: usage,
		DNSNames:    s.names,
		IPAddresses: s.ips,
	}, ca)
}

// sign completes the template and signs it with ca, or with its own key if ca is empty.
func sign(template *x509.Certificate, ca identity) (identity, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return identity{}, err
	}
	template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return identity{}, err
	}
	template.NotBefore = time.Now().Add(-time.Hour)
	template.NotAfter = time.Now().Add(certValidity)
	parent, parentKey := ca.cert, ca.key
	if parent == nil {
		parent, parentKey = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), parentKey)
	if err != nil {
		return identity{}, fmt.Errorf("sign certificate of %q: %w", template.Subject.CommonName, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return identity{}, err
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return identity{}, err
	}
	return identity{
		cert: cert, key: key,
		certPEM: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		keyPEM:  pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER}),
	}, nil
}

// write stores NAME.crt and NAME.key below dir.
func (i identity) write(dir, name string) error {
	if err := os.WriteFile(filepath.Join(dir, name+".crt"), i.certPEM, 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, name+".key"), i.keyPEM, 0o600)
}

// kubeconfig returns a kubeconfig that contains its certificates and key.
func kubeconfig(server string, ca, user identity) []byte {
	b64 := base64.StdEncoding.EncodeToString
	return fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters:
- name: testbed
  cluster:
    server: %s
    certificate-authority-data: %s
users:
- name: user
  user:
    client-certificate-data: %s
    client-key-data: %s
contexts:
- name: testbed
  context:
    cluster: testbed
    user: user
current-context: testbed
`, server, b64(ca.certPEM), b64(user.certPEM), b64(user.keyPEM))
}

// writePKI writes the cluster's certificates, keys and kubeconfigs. After that only the controller-manager reads the
// CA's key, to sign certificates.
func (tb *Testbed) writePKI() error {
	if err := os.MkdirAll(tb.pkiDir(), 0o700); err != nil {
		return err
	}
	ca, err := newCA("testbed-ca")
	if err != nil {
		return err
	}
	proxyCA, err := newCA("testbed-front-proxy-ca")
	if err != nil {
		return err
	}
	api := subject{
		user: "kube-apiserver",
		names: []string{
			"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc." + ClusterDomain, "localhost",
		},
		ips: []net.IP{net.ParseIP(serviceAPI), net.ParseIP("127.0.0.1"), net.ParseIP(tb.apiIP())},
	}
	files := []struct {
		name string
		by   identity
		subject
	}{
		{"apiserver", ca, api},
		{"apiserver-kubelet-client", ca, subject{user: "kube-apiserver-kubelet-client", groups: []string{"system:masters"}}},
		{"front-proxy-client", proxyCA, subject{user: "front-proxy-client"}},
		{"service-accounts", ca, subject{user: "service-accounts"}}, // only its key is used
	}
	for _, f := range files {
		id, err := f.by.issue(f.subject)
		if err != nil {
			return err
		}
		if err := id.write(tb.pkiDir(), f.name); err != nil {
			return err
		}
	}
	if err := ca.write(tb.pkiDir(), "ca"); err != nil {
		return err
	}
	if err := proxyCA.write(tb.pkiDir(), "front-proxy-ca"); err != nil {
		return err
	}
	return tb.writeKubeconfigs(ca)
}

func (tb *Testbed) writeKubeconfigs(ca identity) error {
	users := map[string]subject{
		"admin":              {user: "testbed-admin", groups: []string{"system:masters"}},
		"controller-manager": {user: "system:kube-controller-manager"},
		"scheduler":          {user: "system:kube-scheduler"},
		"kube-proxy":         {user: "system:kube-proxy"},
	}
	for _, n := range tb.Nodes {
		users[n.Name] = subject{user: "system:node:" + n.Name, groups: []string{"system:nodes"}}
	}
	for name, s := range users {
		id, err := ca.issue(s)
		if err != nil {
			return err
		}
		if err := os.WriteFile(tb.kubeconfig(name), kubeconfig(tb.apiURL(), ca, id), 0o600); err != nil {
			return err
		}
	}
	return nil
}
