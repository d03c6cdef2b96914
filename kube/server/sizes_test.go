package server

import (
	"io"
	"strings"
	"testing"
)

// repeated is an endless input of one byte.
type repeated byte

func (r repeated) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(r)
	}
	return len(p), nil
}

// TestEndlessTerminalSize checks that what never ends as the size of a terminal is not kept in memory, and that any
// number of sizes is read.
func TestEndlessTerminalSize(t *testing.T) {
	const most = 1 << 20
	for _, endless := range []repeated{' ', '1'} {
		from := &io.LimitedReader{R: endless, N: most}
		make(terminalSizes).read(t.Context(), io.NopCloser(from))
		if n := most - from.N; n > maxTerminalSize {
			t.Errorf("endless %q: got %d bytes read, want at most %d", endless, n, maxTerminalSize)
		}
	}
	many := strings.NewReader(strings.Repeat(`{"Width":80,"Height":25} `, maxTerminalSize))
	sizes := make(terminalSizes)
	go sizes.read(t.Context(), io.NopCloser(many))
	for sizes.Next() != nil {
	}
	if many.Len() != 0 {
		t.Errorf("many sizes: got %d bytes left, want none", many.Len())
	}
}
