package endpoints

import (
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodelet/nodelet/cri/logs"
)

// TestFiles checks that files and directories are served, but nothing outside the directory.
func TestFiles(t *testing.T) {
	dir := t.TempDir()
	secret := filepath.Join(t.TempDir(), "secret")
	for _, err := range []error{
		os.WriteFile(secret, []byte("secret"), 0o600), os.Mkdir(filepath.Join(dir, "sub"), 0o755),
		os.WriteFile(filepath.Join(dir, "sub", "a&b.log"), []byte("line\n"), 0o600),
		os.WriteFile(filepath.Join(dir, "sub", "javascript:alert(1)"), nil, 0o600), // a browser must not run it
		os.Symlink(secret, filepath.Join(dir, "link")),
		os.Symlink(filepath.Dir(secret), filepath.Join(dir, "linkdir")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	h := filesHandler("/logs/", logs.New(dir))
	for path, want := range map[string]string{
		"/logs/": `200 <a href="sub/">sub/</a>`, "/logs": `200 <a href="logs/sub/">sub/</a>`,
		"/logs/sub/": `200 <a href="./javascript:alert%281%29">javascript:alert(1)</a>` + "\n" +
			`<a href="a&b.log">a&amp;b.log</a>`,
		"/logs/sub":         `200 <a href="sub/a&b.log">a&amp;b.log</a>`,
		"/logs/sub/a&b.log": "200 line\n", "/logs/link": "404 ", "/logs/linkdir/secret": "404 ",
		"/logs/nothing":       "404 ",
		"/logs/sub/a&b.log/x": "404 ", "/logs/../" + filepath.Base(filepath.Dir(secret)) + "/secret": "404 ",
		"/logs/../../../../../etc/passwd": "404 ", "/other": "404 ",
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.URL.Path = path
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		code, text, _ := strings.Cut(want, " ")
		if got := w.Body.String(); w.Code/100 != int(code[0]-'0') || !strings.Contains(got, text) ||
			strings.Contains(got, "secret") && w.Code == 200 && path != "/logs/" && path != "/logs" {
			t.Errorf("%s: got %d %q, want %q", path, w.Code, got, want)
		}
		if w.Header().Get("Location") != "" {
			t.Errorf("%s: got a redirect, want none", path)
		}
	}
}
