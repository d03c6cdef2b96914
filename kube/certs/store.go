package certs

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/util/keyutil"

	"github.com/nodelet/nodelet/host/atomicfile"
)

// store stores the certificates for one purpose in dir as the kubelet does: NAME-<date>.pem has a certificate and its
// key, NAME-current.pem is a link to the newest, NAME.key.tmp is the key of a pending request.
type store struct {
	dir, name string // name: kubelet-client or kubelet-server
}

// Current returns the file with the newest certificate in a directory. name is kubelet-client or kubelet-server.
func Current(dir, name string) string { return filepath.Join(dir, name+"-current.pem") }

func (s store) current() string { return Current(s.dir, s.name) }
func (s store) keyFile() string { return filepath.Join(s.dir, s.name+".key.tmp") }

// load returns the current certificate; the error wraps fs.ErrNotExist if there is none.
func (s store) load() (*tls.Certificate, error) { return loadPair(s.current(), s.current()) }

func loadPair(certFile, keyFile string) (*tls.Certificate, error) {
	c, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return nil, fmt.Errorf("load certificate %s: %w", certFile, err)
	}
	return &c, nil // Leaf is filled since Go 1.23
}

// requestKey returns the key of the pending request, or a new one, which is on disk before it is used.
func (s store) requestKey() (crypto.Signer, error) {
	text, err := os.ReadFile(s.keyFile())
	if err == nil {
		if key, err := parseKey(text); err == nil {
			return key, nil
		} // an incomplete file: generate another key
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read the key of the certificate request: %w", err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	if text, err = keyPEM(key); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return nil, fmt.Errorf("create the directory of certificates: %w", err)
	}
	if err := atomicfile.WriteSynced(s.keyFile(), text, 0o600); err != nil {
		return nil, fmt.Errorf("write the key of the certificate request: %w", err)
	}
	return key, nil
}

// dropKey removes the key of a request that has ended.
func (s store) dropKey() { _ = os.Remove(s.keyFile()) }

// save stores a certificate (PEM, the leaf first) with its key as the current one.
func (s store) save(certs []byte, key crypto.Signer, now time.Time) (*tls.Certificate, error) {
	text, err := keyPEM(key)
	if err != nil {
		return nil, err
	}
	all := append(bytes.Clone(certs), text...)
	pair, err := tls.X509KeyPair(all, all)
	if err != nil {
		return nil, fmt.Errorf("certificate and key do not match: %w", err)
	}
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return nil, fmt.Errorf("create the directory of certificates: %w", err)
	}
	path, err := filepath.Abs(filepath.Join(s.dir, s.name+"-"+now.Format("2006-01-02-15-04-05")+".pem"))
	if err != nil {
		return nil, err
	}
	if err := atomicfile.WriteSynced(path, all, 0o600); err != nil {
		return nil, fmt.Errorf("write certificate: %w", err)
	}
	if err := s.point(path); err != nil {
		return nil, err
	}
	s.dropKey()
	return &pair, nil
}

// point changes NAME-current.pem to a link to path. The rename is atomic: there is always a current certificate.
func (s store) point(path string) error {
	if at, err := os.Lstat(s.current()); err == nil && at.Mode()&fs.ModeSymlink == 0 {
		return fmt.Errorf("%s must be a link to the newest certificate, but is a file: move it away", s.current())
	}
	next := filepath.Join(s.dir, s.name+"-updated.pem")
	_ = os.Remove(next)
	if err := os.Symlink(path, next); err != nil {
		return fmt.Errorf("link the newest certificate: %w", err)
	}
	if err := os.Rename(next, s.current()); err != nil {
		return fmt.Errorf("link the newest certificate: %w", err)
	}
	return nil
}

func parseKey(text []byte) (crypto.Signer, error) {
	key, err := keyutil.ParsePrivateKeyPEM(text)
	if err != nil {
		return nil, err
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("a %T cannot sign", key)
	}
	return signer, nil
}

func keyPEM(key crypto.Signer) ([]byte, error) {
	ec, ok := key.(*ecdsa.PrivateKey)
	if !ok {
		der, err := x509.MarshalPKCS8PrivateKey(key)
		return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), err
	}
	der, err := x509.MarshalECPrivateKey(ec)
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), err
}
