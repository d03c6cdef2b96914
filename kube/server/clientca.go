package server

import (
	"crypto/x509"
	"fmt"
	"os"
	"sync"
)

// clientCAs are the certificate authorities that sign client certificates. Their file is checked each time they are
// needed, and read again after it has changed.
type clientCAs struct {
	file string

	mu   sync.Mutex
	seen os.FileInfo // of the file when pool was read
	pool *x509.CertPool
}

// newClientCAs reads the file once, so that an invalid file is an error at the start. It returns nil if file is empty.
func newClientCAs(file string) (*clientCAs, error) {
	if file == "" {
		return nil, nil
	}
	a := &clientCAs{file: file}
	if _, err := a.now(); err != nil {
		return nil, fmt.Errorf("read the client CAs (authentication.x509.clientCAFile): %w", err)
	}
	return a, nil
}

// now returns the current authorities. While the file cannot be read it returns the last valid ones.
func (a *clientCAs) now() (*x509.CertPool, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	st, err := os.Stat(a.file)
	if err == nil && a.seen != nil && os.SameFile(st, a.seen) && st.Size() == a.seen.Size() &&
		st.ModTime().Equal(a.seen.ModTime()) {
		return a.pool, nil
	}
	var pool *x509.CertPool
	if err == nil {
		pool, err = readCAs(a.file)
	}
	switch {
	case err == nil:
		a.seen, a.pool = st, pool
	case a.seen == nil:
		return nil, err
	}
	return a.pool, nil
}

func readCAs(file string) (*x509.CertPool, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s contains no PEM certificate", file)
	}
	return pool, nil
}
