package server

import (
	"crypto/x509"
	"fmt"
	"os"
	"sync"
	"time"
)

// watched is a value that is read from files, and read again after one of them has changed. The files are checked each
// time the value is needed.
type watched[V any] struct {
	files []string
	read  func() (V, error)

	mu    sync.Mutex
	seen  []stamp
	value V
}

type stamp struct {
	size  int64
	moved time.Time
	inode os.FileInfo
}

// now returns the current value. While the files cannot be read it returns the last valid one.
func (w *watched[V]) now() (V, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	stamps, err := w.look()
	if err == nil && w.same(stamps) {
		return w.value, nil
	}
	var next V
	if err == nil {
		next, err = w.read()
	}
	if err != nil {
		if w.seen != nil {
			return w.value, nil
		}
		return w.value, err
	}
	w.seen, w.value = stamps, next
	return next, nil
}

func (w *watched[V]) look() ([]stamp, error) {
	all := make([]stamp, len(w.files))
	for i, f := range w.files {
		st, err := os.Stat(f)
		if err != nil {
			return nil, err
		}
		all[i] = stamp{st.Size(), st.ModTime(), st}
	}
	return all, nil
}

func (w *watched[V]) same(now []stamp) bool {
	if w.seen == nil {
		return false
	}
	for i, s := range now {
		if o := w.seen[i]; s.size != o.size || !s.moved.Equal(o.moved) || !os.SameFile(s.inode, o.inode) {
			return false
		}
	}
	return true
}

// clientCAs are the certificate authorities that sign client certificates.
type clientCAs = watched[*x509.CertPool]

// newClientCAs reads the file once, so that an invalid file is an error at the start. It returns nil if file is empty.
func newClientCAs(file string) (*clientCAs, error) {
	if file == "" {
		return nil, nil
	}
	a := &clientCAs{files: []string{file}, read: func() (*x509.CertPool, error) {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("%s contains no PEM certificate", file)
		}
		return pool, nil
	}}
	if _, err := a.now(); err != nil {
		return nil, fmt.Errorf("read the client CAs (authentication.x509.clientCAFile): %w", err)
	}
	return a, nil
}
