package pod

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// TestShorten checks that a text that is too long keeps its beginning and its end, and no part of a character.
func TestShorten(t *testing.T) {
	const limit = 64
	if short := strings.Repeat("x", limit); Shorten(short, limit) != short {
		t.Error("a text of the allowed length: got it changed")
	}
	got := Shorten("exec: "+strings.Repeat("é", limit)+": file name too long", limit)
	if len(got) > limit || !utf8.ValidString(got) ||
		!strings.HasPrefix(got, "exec: éé") || !strings.HasSuffix(got, "éé: file name too long") {
		t.Errorf("got %d bytes, %q, want at most %d with both ends", len(got), got, limit)
	}
}
