package nodefacts

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"sync"

	"github.com/nodelet/nodelet/agent/spec"
)

// dnsFile is the file with the node's DNS settings; path is empty if there is none.
type dnsFile struct {
	path string
	log  *slog.Logger

	mu sync.Mutex
	// text is what was read last, nil if nothing was; failure the last error, so that it is logged once.
	text    []byte
	failure string
}

// read returns the settings if they have changed since the last call. While the file cannot be read, they have not; it
// is an error if it never could.
func (d *dnsFile) read() (conf spec.ResolvConf, changed bool, err error) {
	if d.path == "" {
		return conf, false, nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	text, err := os.ReadFile(d.path)
	known := d.text != nil
	if err == nil && known && bytes.Equal(text, d.text) {
		d.failure = ""
		return conf, false, nil
	}
	if err == nil {
		conf, err = spec.ParseResolvConf(text)
	}
	if err == nil {
		d.text, d.failure = text, ""
		return conf, true, nil
	}
	if d.failure != err.Error() {
		d.failure = err.Error()
		d.log.Warn("cannot read the node's DNS settings, correct the file or resolvConf", "file", d.path, "err", err,
			"usingThoseReadBefore", known)
	}
	if known {
		return conf, false, nil
	}
	return conf, false, fmt.Errorf("read the node's DNS settings (resolvConf): %w", err)
}
