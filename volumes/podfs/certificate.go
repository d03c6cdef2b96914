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
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
)

const (
	certificateRetry   = time.Minute // between two looks at a certificate that is due
	certificateMaxSize = 1 << 20
)

const (
	pemKey         = "PRIVATE KEY"
	pemCertificate = "CERTIFICATE"
)

// projectedCertificates adds the files of the podCertificate sources, and returns when to look at them again.
func projectedCertificates(
	ctx context.Context, r Request, s *corev1.ProjectedVolumeSource, o Objects, current *os.File, perSource []payload,
) (refresh time.Time, err error) {
	var errs []error
	d := defaultsOf(s.DefaultMode, s.DefaultUser)
	for i, source := range s.Sources {
		if source.PodCertificate == nil {
			continue
		}
		shown, renew := currentCertificate(current, source.PodCertificate)
		c, renew, err := o.PodCertificate(ctx, r.Pod, r.Volume.Name, i, shown, renew)
		if err == nil {
			perSource[i], err = certificateFiles(r.Pod, source.PodCertificate, c, renew, d)
		}
		if err != nil {
			errs = append(errs, inSource(i, "podCertificate", err))
			continue
		}
		if soon := r.Now.Add(certificateRetry); renew.Before(soon) {
			renew = soon
		}
		refresh = earlier(refresh, renew)
	}
	return refresh, utilerrors.NewAggregate(errs)
}

// certificateFiles are a key and the chain that was issued to it, in one file or in two. The time to renew it is
// not in them, so it is stored beside them.
func certificateFiles(
	pod *corev1.Pod, s *corev1.PodCertificateProjection, c *tls.Certificate, renew time.Time, d defaults,
) (payload, error) {
	der, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	if err != nil {
		return nil, fmt.Errorf("encode the key: %w", err)
	}
	key := pem.EncodeToMemory(&pem.Block{Type: pemKey, Bytes: der})
	chain := encodeCertificates(c.Certificate)
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
		own := ownFile(pod, f.data, d, s.User)
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
