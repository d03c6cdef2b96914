package testbed

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const mirrored = "kubernetes-v1/kube-apiserver"

// mirrorServer serves a mirror with one program. cut is how often it breaks off in the middle of the program.
type mirrorServer struct {
	sums, program string
	cut           int
	ranges        []string // Range header of each request for the program
}

func newMirrorServer(program string) *mirrorServer {
	sum := hex.EncodeToString(sha256Of([]byte(program)))
	return &mirrorServer{sums: fmt.Sprintf("%s  %s/%s\n", sum, platformDir(), mirrored), program: program}
}

func (s *mirrorServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/" + sumsName:
		io.WriteString(w, s.sums)
	case "/" + platformDir() + "/" + mirrored:
		s.ranges = append(s.ranges, r.Header.Get("Range"))
		if s.cut > 0 {
			s.cut--
			w.Header().Set("Content-Length", fmt.Sprint(len(s.program)))
			io.WriteString(w, s.program[:len(s.program)/2])
			http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader(s.program))
	default:
		http.NotFound(w, r)
	}
}

// cacheWith returns an empty cache with a mirror, whose checksum is that of s unless sum is given.
func cacheWith(t *testing.T, s *mirrorServer, sum string) *Cache {
	t.Helper()
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	t.Setenv(CacheEnv, t.TempDir())
	t.Setenv(BinariesEnv, server.URL+"/")
	if sum == "" {
		sum = hex.EncodeToString(sha256Of([]byte(s.sums)))
	}
	t.Setenv(BinariesSumEnv, sum)
	c, err := OpenCache(io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func checkFetched(t *testing.T, c *Cache, want string) {
	t.Helper()
	got, err := c.mirror.fetch(t.Context(), c.dir, mirrored)
	if err != nil || !got {
		t.Fatalf("fetch: got %v, %v", got, err)
	}
	body, err := os.ReadFile(filepath.Join(c.dir, mirrored))
	if err != nil || string(body) != want {
		t.Errorf("got %q, %v, want %q", body, err, want)
	}
	checkNoParts(t, c, 0)
}

func checkNoParts(t *testing.T, c *Cache, want int) {
	t.Helper()
	parts, err := filepath.Glob(filepath.Join(c.dir, ".fetch-*"))
	if err != nil || len(parts) != want {
		t.Errorf("got incomplete files %v, %v, want %d", parts, err, want)
	}
}

// TestFetchContinues breaks a download off and checks that the second request is for the rest alone.
func TestFetchContinues(t *testing.T) {
	s := newMirrorServer(strings.Repeat("program ", 1000))
	s.cut = 1
	c := cacheWith(t, s, "")
	checkFetched(t, c, s.program)
	if len(s.ranges) != 2 || s.ranges[0] != "" || !strings.HasPrefix(s.ranges[1], "bytes=") {
		t.Errorf("got ranges %q, want none and then the rest", s.ranges)
	}
}

// TestFetchAfterInterrupt gives up a download and checks that the next process continues it.
func TestFetchAfterInterrupt(t *testing.T) {
	s := newMirrorServer(strings.Repeat("program ", 1000))
	s.cut = tries
	c := cacheWith(t, s, "")
	if _, err := c.mirror.fetch(t.Context(), c.dir, mirrored); err == nil || !strings.Contains(err.Error(), "cut after") {
		t.Fatalf("got %v, want an error of a cut download", err)
	}
	checkNoParts(t, c, 1)
	again, err := OpenCache(io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	checkFetched(t, again, s.program)
	if last := s.ranges[len(s.ranges)-1]; !strings.HasPrefix(last, "bytes=") {
		t.Errorf("got a request for %q, want one for the rest", last)
	}
}

// TestFetchWrongChecksum checks that a changed program is refused, not built, and not kept.
func TestFetchWrongChecksum(t *testing.T) {
	s := newMirrorServer("program")
	c := cacheWith(t, s, "")
	s.program = "another"
	_, err := c.mirror.fetch(t.Context(), c.dir, mirrored)
	if err == nil || !strings.Contains(err.Error(), "got SHA-256 "+hex.EncodeToString(sha256Of([]byte("another")))) {
		t.Errorf("got %v, want an error with the checksum", err)
	}
	if _, err := os.Stat(filepath.Join(c.dir, mirrored)); !os.IsNotExist(err) {
		t.Errorf("program in the cache: got %v, want that it does not exist", err)
	}
	checkNoParts(t, c, 0)
}

// TestFetchWrongSums checks that a mirror whose list of checksums is not the one that the user trusts is refused.
func TestFetchWrongSums(t *testing.T) {
	for _, sum := range []string{"none", strings.Repeat("0", 64)} {
		s := newMirrorServer("program")
		c := cacheWith(t, s, sum)
		_, err := c.mirror.fetch(t.Context(), c.dir, mirrored)
		if err == nil || !strings.Contains(err.Error(), "set BINARIES_SUM") || len(s.ranges) > 0 {
			t.Errorf("%s: got %v after %d requests, want an error before any", sum, err, len(s.ranges))
		}
	}
}

// TestFetchMissing checks that what a mirror does not have is left to the build, and that a listed file that is gone is
// an error.
func TestFetchMissing(t *testing.T) {
	s := newMirrorServer("program")
	s.sums += strings.Repeat("0", 64) + "  " + platformDir() + "/gone\n"
	c := cacheWith(t, s, "")
	if got, err := c.mirror.fetch(t.Context(), c.dir, "kubernetes-v1/kubelet"); got || err != nil {
		t.Errorf("got %v, %v, want neither the file nor an error", got, err)
	}
	if _, err := c.mirror.fetch(t.Context(), c.dir, "gone"); err == nil {
		t.Error("got no error for a listed file that is gone")
	}
}

func TestParseSums(t *testing.T) {
	sum := strings.Repeat("a", 64)
	for _, bad := range []string{sum, "aa  name", sum + "  ../name", sum + "  /etc/passwd"} {
		if got, err := parseSums(bad+"\n", ""); err == nil {
			t.Errorf("%q: got %v, want an error", bad, got)
		}
	}
}

// TestMirrorDirectory makes a mirror and uses it as a directory.
func TestMirrorDirectory(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, platformDir(), mirrored)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("program"), 0o755); err != nil {
		t.Fatal(err)
	}
	sum, err := writeMirrorSums(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(CacheEnv, t.TempDir())
	t.Setenv(BinariesEnv, dir)
	t.Setenv(BinariesSumEnv, sum)
	c, err := OpenCache(io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	checkFetched(t, c, "program")
}

// TestProgramsOfMirror checks that Programs takes all programs of the mirror and builds none.
func TestProgramsOfMirror(t *testing.T) {
	ctx := context.Background()
	version, err := moduleVersion("cri-tools")
	if err != nil {
		t.Fatal(err)
	}
	s := newMirrorServer("crictl")
	name := "cri-tools-" + version + "/crictl"
	s.sums = strings.ReplaceAll(s.sums, mirrored, name)
	c := cacheWith(t, s, "")
	c.lookOnly = true // a build would be an error
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.URL.Path = strings.ReplaceAll(r.URL.Path, name, mirrored)
		s.ServeHTTP(w, r)
	}))
	defer server.Close()
	c.mirror.base = server.URL
	program, err := c.Program(ctx, "cri-tools", "crictl")
	if err != nil {
		t.Fatal(err)
	}
	if body, err := os.ReadFile(program); err != nil || string(body) != "crictl" {
		t.Errorf("got %q, %v", body, err)
	}
}
