package podfs

import (
	"bytes"
	"encoding/pem"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// FuzzPath checks that a path that an object or manifest gives is refused, or that the file is in the volume and
// nowhere else.
func FuzzPath(f *testing.F) {
	for _, seed := range []string{
		"a", "a/b", "../a", "a/../b", "/a", "", ".", "./a", "a/.", "..data", "..data/a", "./..data", "..2020_", "...", ".. ",
		"a//b", "a/", "\x00", "a\nb", strings.Repeat("x", 255), strings.Repeat("x", 256), strings.Repeat("a/", 2048), "..\\a",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, path string) {
		p := payload{}
		if p.set(path, file{data: []byte("x"), mode: 0o644}) != nil {
			return
		}
		if !filepath.IsLocal(path) {
			t.Fatalf("got path %q, which leads out of the volume, want an error", path)
		}
		a, root := openTestDir(t)
		if err := a.write(t.Context(), p, testNow, ownNothing); err != nil {
			if len(path) < 4000 { // the directory above counts towards the kernel's limit
				t.Fatalf("%q: %v", path, err)
			}
			return
		}
		if raw, err := a.root.ReadFile(filepath.Clean(path)); err != nil || string(raw) != "x" {
			t.Fatalf("file %q: got %q, %v, want x", path, raw, err)
		}
		if changed := a.mustWrite(t, p); changed {
			t.Fatalf("%q, written again: got a change, want none", path)
		}
		a.mustWrite(t, payload{})
		wantFiles(t, root, nil)
	})
}

func FuzzToken(f *testing.F) {
	token, _, _ := issueAt(func() time.Time { return testNow })(testPod(), "", 3607)
	f.Add(token)
	for _, claims := range []map[string]any{
		{}, {"aud": "one", "iat": 1, "exp": 2}, {"aud": []string{}, "iat": 1, "exp": 1e300}, {"iat": -1, "exp": 1e18},
		{"iat": 1, "exp": 253402300799, "kubernetes.io": map[string]any{"warnafter": 5}},
		{"iat": 1.5, "exp": 2.5, "aud": nil, "kubernetes.io": nil}, {"iat": "1", "exp": 2}, {"aud": 7, "iat": 1, "exp": 2},
	} {
		f.Add(makeToken(claims))
	}
	for _, raw := range []string{"", ".", "..", "a.b.c", "...", "e30.e30.e30", token + ".x", token[:40]} {
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		c, err := parseClaims(raw)
		if err != nil {
			if len(raw) > 40 && strings.Contains(err.Error(), raw) {
				t.Fatalf("got the token in the error %v, want it hidden", err)
			}
			return
		}
		if !c.expires.After(c.issued) && c.expires.Unix() != c.issued.Unix() || c.expires.Year() > 9999 {
			t.Fatalf("got issued %v, expires %v, want the end after the start and before the year 10000",
				c.issued, c.expires)
		}
		for _, now := range []time.Time{testNow, c.issued, c.expires} {
			at := c.refreshAt(now, time.Second)
			if at.Before(now.Add(tokenRetry)) || at.After(now.Add(tokenMaxAge)) && at.After(now.Add(tokenRetry)) {
				t.Fatalf("refresh: got %v, want it between the next attempt and the greatest age; now %v, token %+v",
					at, now, c)
			}
		}
	})
}

// FuzzTrustBundle checks that whatever bundles hold, containers get a series of plain certificates, each once, that
// does not depend on the order of the bundles.
func FuzzTrustBundle(f *testing.F) {
	one, two := encodeCertificates([][]byte{{1}}), encodeCertificates([][]byte{{2}, {1}})
	f.Add(string(one), string(two))
	f.Add("text\n"+string(one)+"text", "-----BEGIN CERTIFICATE-----\nHeader: x\n\nAQ==\n-----END CERTIFICATE-----\n")
	f.Add("-----BEGIN PRIVATE KEY-----\nAQ==\n-----END PRIVATE KEY-----\n",
		"-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n")
	f.Add("-----BEGIN CERTIFICATE-----", "-----BEGIN CERTIFICATE-----\nA\n-----END CERTIFICATE-----\r\n")
	f.Fuzz(func(t *testing.T, a, b string) {
		join := func(all ...string) []byte {
			var ders [][]byte
			for _, text := range all {
				ders = append(ders, certificates([]byte(text))...)
			}
			return encodeCertificates(shuffled(ders, "seed"))
		}
		got := join(a, b)
		if !bytes.Equal(got, join(b, a, b)) {
			t.Fatal("bundles in another order, one of them twice: got another file, want the same")
		}
		seen, rest := map[string]bool{}, got
		for len(rest) > 0 {
			block, after := pem.Decode(rest)
			if block == nil || block.Type != "CERTIFICATE" || len(block.Headers) > 0 || seen[string(block.Bytes)] {
				t.Fatalf("got block %+v in %q, want a certificate without headers, once", block, got)
			}
			seen[string(block.Bytes)], rest = true, after
		}
		for _, der := range append(certificates([]byte(a)), certificates([]byte(b))...) {
			if !seen[string(der)] {
				t.Fatalf("got no certificate %x, want each that was given", der)
			}
		}
	})
}
