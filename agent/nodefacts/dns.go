package nodefacts

import (
	"bytes"
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
	// text is what was read last, failure the last error, so that it is logged once.
	text    []byte
	failure string
}

// read returns the settings if they have changed since the last call. While the file cannot be read, they have not.
func (d *dnsFile) read() (conf spec.ResolvConf, changed bool) {
	if d.path == "" {
		return conf, false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	text, err := os.ReadFile(d.path)
	if err == nil && bytes.Equal(text, d.text) {
		d.failure = ""
		return conf, false
	}
	if err == nil {
		conf, err = spec.ParseResolvConf(text)
	}
	if err == nil {
		d.text, d.failure = text, ""
		return conf, true
	}
	if d.failure != err.Error() {
		d.failure = err.Error()
		d.log.Warn("cannot read the node's DNS settings; new pods with dnsPolicy Default get those that were read last",
			"file", d.path, "err", err)
	}
	return conf, false
}
