package podfs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	certificateRetry   = time.Minute // between two looks at a certificate that is due
	certificateMaxSize = 1 << 20
)

const (
	pemKey         = "PRIVATE KEY"
	pemCertificate = "CERTIFICATE"
)

// certificate makes the files of a podCertificate source, and returns when to look at them again.
func (c *content) certificate(ctx context.Context, i int, source *corev1.VolumeProjection) (payload, time.Time, error) {
	s := source.PodCertificate
	if s == nil {
		return nil, never, nil
	}
	shown, renew := currentCertificate(c.current, s)
	issued, renew, err := c.objects.PodCertificate(ctx, c.Pod, c.Volume.Name, i, shown, renew)
	if err != nil {
		return nil, never, inSource(i, "podCertificate", err)
	}
	files, err := c.certificateFiles(s, issued, renew)
	if soon := c.Now.Add(certificateRetry); renew.Before(soon) {
		renew = soon
	}
	return files, renew, inSource(i, "podCertificate", err)
}

// certificateFiles are a key and the chain that was issued to it, in one file or in two. The time to renew it is
// not in them, so it is stored beside them.
func (c *content) certificateFiles(
	s *corev1.PodCertificateProjection, issued *tls.Certificate, renew time.Time,
) (payload, error) {
	der, err := x509.MarshalPKCS8PrivateKey(issued.PrivateKey)
	if err != nil {
		return nil, fmt.Errorf("encode the key: %w", err)
	}
	key := pem.EncodeToMemory(&pem.Block{Type: pemKey, Bytes: der})
	chain := encodeCertificates(issued.Certificate)
	files := payload{}
	for _, f := range []struct {
		path string
		data []byte
	}{
		{s.CredentialBundlePath, append(key[:len(key):len(key)], chain...)},
		{s.KeyPath, key},
		{s.CertificateChainPath, chain},
	} {
		if f.path == "" {
			continue
		}
		own := c.ownFile(f.data, s.User)
		own.note = renew.UTC().Format(time.RFC3339)
		if err := files.set(f.path, own); err != nil {
			return nil, err
		}
	}
	return files, nil
}

// currentCertificate reads what the volume shows of a source; nil unless it is a whole pair. Without a note renew is
// zero.
func currentCertificate(dir *os.File, s *corev1.PodCertificateProjection) (shown *tls.Certificate, renew time.Time) {
	chainPath, keyPath := s.CertificateChainPath, s.KeyPath
	if s.CredentialBundlePath != "" {
		chainPath, keyPath = s.CredentialBundlePath, s.CredentialBundlePath
	}
	chain, note, err := readCurrent(dir, chainPath, certificateMaxSize)
	if err != nil {
		return nil, time.Time{}
	}
	key, _, err := readCurrent(dir, keyPath, certificateMaxSize)
	if err != nil {
		return nil, time.Time{}
	}
	pair, err := tls.X509KeyPair(chain, key)
	if err != nil {
		return nil, time.Time{}
	}
	if at, err := time.Parse(time.RFC3339, note); err == nil {
		renew = at
	}
	return &pair, renew
}
