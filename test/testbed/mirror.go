package testbed

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"
)

const (
	// BinariesEnv is the environment variable with the mirror of built programs and images: a directory or an HTTP URL.
	BinariesEnv = "NODELET_BINARIES_URL"
	// BinariesSumEnv is the environment variable with the SHA-256 of the mirror's file SHA256SUMS, which the user trusts.
	BinariesSumEnv = "NODELET_BINARIES_SUM"
	// sumsName lists the files of a mirror with their SHA-256, in the format of sha256sum(1).
	sumsName = "SHA256SUMS"
)

// mirror serves files of the cache that others have built. Files lie in linux-ARCH/ under their names in the cache. A
// file counts only with the checksum that SHA256SUMS has for it, and SHA256SUMS only with the checksum that the user
// has set.
type mirror struct {
	base, sum string
	progress  io.Writer

	once sync.Once
	sums map[string]string // SHA-256 by name in the cache
	err  error
}

// newMirror returns the mirror of the environment, or nil if there is none.
func newMirror(progress io.Writer) *mirror {
	base := os.Getenv(BinariesEnv)
	if base == "" {
		return nil
	}
	return &mirror{base: strings.TrimSuffix(base, "/"), sum: os.Getenv(BinariesSumEnv), progress: progress}
}

// platformDir is the directory of a mirror with the files for this machine.
func platformDir() string { return "linux-" + runtime.GOARCH }

// fetch puts a file of the mirror into the cache directory dir. It reports whether the mirror has the file. A wrong
// checksum is an error and never a reason to build: the mirror was changed.
func (m *mirror) fetch(ctx context.Context, dir, name string) (bool, error) {
	if ok, err := m.has(ctx, name); err != nil || !ok {
		return false, err
	}
	sum := m.sums[name]
	// An interrupted download continues: the name is that of the content.
	part := filepath.Join(dir, ".fetch-"+sum)
	if err := m.download(ctx, name, part); err != nil {
		return false, fmt.Errorf("fetch %s from %s: %w", name, m.base, err)
	}
	got, err := fileSum(part)
	if err != nil {
		return false, err
	}
	if got != sum {
		os.Remove(part)
		return false, fmt.Errorf("fetch %s from %s: got SHA-256 %s, want %s; the mirror is damaged or its SHA256SUMS is old",
			name, m.base, got, sum)
	}
	to := filepath.Join(dir, name)
	if err := errors.Join(os.Chmod(part, 0o755), os.MkdirAll(filepath.Dir(to), 0o755)); err != nil {
		return false, err
	}
	return true, os.Rename(part, to)
}

// fetchDir fetches a file as fetch does, after the other files of its directory: when it is there, all are.
func (m *mirror) fetchDir(ctx context.Context, dir, name string) (bool, error) {
	done, err := m.has(ctx, name)
	if err != nil || !done {
		return false, err
	}
	for other := range m.sums {
		if path.Dir(other) != path.Dir(name) || other == name {
			continue
		}
		if _, err := m.fetch(ctx, dir, other); err != nil {
			return false, err
		}
	}
	return m.fetch(ctx, dir, name)
}

// has reports whether the mirror has a file; a nil mirror has none.
func (m *mirror) has(ctx context.Context, name string) (bool, error) {
	if m == nil {
		return false, nil
	}
	m.once.Do(func() { m.sums, m.err = m.readSums(ctx) })
	_, ok := m.sums[name]
	return ok, m.err
}

// readSums reads SHA256SUMS and checks it.
func (m *mirror) readSums(ctx context.Context) (map[string]string, error) {
	body, err := m.open(ctx, sumsName, 0)
	if err != nil {
		return nil, fmt.Errorf("read %s of %s: %w", sumsName, m.base, err)
	}
	defer body.Close()
	text, err := io.ReadAll(io.LimitReader(body, 1<<20))
	if err != nil {
		return nil, fmt.Errorf("read %s of %s: %w", sumsName, m.base, err)
	}
	if got := hex.EncodeToString(sha256Of(text)); got != m.sum {
		return nil, fmt.Errorf("%s of %s has SHA-256 %s, want %q: set BINARIES_SUM to the sum that the mirror's owner "+
			"has given you", sumsName, m.base, got, m.sum)
	}
	return parseSums(string(text), platformDir()+"/")
}

func sha256Of(text []byte) []byte { sum := sha256.Sum256(text); return sum[:] }

// parseSums returns the checksums of the files below a directory, by their names in it.
func parseSums(text, dir string) (map[string]string, error) {
	sums := map[string]string{}
	for s := bufio.NewScanner(strings.NewReader(text)); s.Scan(); {
		sum, name, ok := strings.Cut(s.Text(), "  ")
		if !ok || len(sum) != 2*sha256.Size || !fs.ValidPath(name) {
			return nil, fmt.Errorf("read %s: %q is not a checksum and a relative path", sumsName, s.Text())
		}
		if name, ok := strings.CutPrefix(name, dir); ok {
			sums[name] = sum
		}
	}
	return sums, nil
}

// tries is how often a download that was cut continues.
const tries = 5

// download completes a file of the mirror. What the file has already stays: the request is for the rest.
func (m *mirror) download(ctx context.Context, name, part string) error {
	var err error
	for range tries {
		if err = m.downloadOnce(ctx, name, part); err == nil || ctx.Err() != nil || errors.Is(err, fs.ErrNotExist) {
			return err
		}
		fmt.Fprintf(m.progress, "%s: %v; continuing\n", name, err)
	}
	return err
}

func (m *mirror) downloadOnce(ctx context.Context, name, part string) error {
	f, err := os.OpenFile(part, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	have, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	body, err := m.open(ctx, path.Join(platformDir(), name), have)
	if errors.Is(err, errComplete) {
		return nil
	}
	if err != nil {
		return err
	}
	defer body.Close()
	if body.from != have {
		have = body.from
		if _, err := f.Seek(have, io.SeekStart); err != nil {
			return err
		}
	}
	began := time.Now()
	n, err := io.Copy(f, body)
	if err != nil {
		return fmt.Errorf("cut after %d bytes: %w", have+n, err)
	}
	fmt.Fprintf(m.progress, "%s: %.1f MB in %.1f s\n", name, float64(have+n)/1e6, time.Since(began).Seconds())
	return f.Truncate(have + n)
}

// errComplete says that nothing is left to download.
var errComplete = errors.New("the file is complete")

// rest is the content of a file of the mirror from an offset on.
type rest struct {
	io.ReadCloser
	from int64
}

// open opens a file of the mirror at an offset. A server that ignores the offset sends all.
func (m *mirror) open(ctx context.Context, name string, from int64) (rest, error) {
	if !strings.HasPrefix(m.base, "http://") && !strings.HasPrefix(m.base, "https://") {
		f, err := os.Open(filepath.Join(strings.TrimPrefix(m.base, "file://"), name))
		return rest{f, 0}, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, m.base+"/"+name, nil)
	if err != nil {
		return rest{}, err
	}
	if from > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", from))
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return rest{}, err
	}
	switch resp.StatusCode {
	case http.StatusOK:
		return rest{resp.Body, 0}, nil
	case http.StatusPartialContent:
		return rest{resp.Body, from}, nil
	case http.StatusRequestedRangeNotSatisfiable:
		return rest{}, errors.Join(errComplete, resp.Body.Close())
	case http.StatusNotFound:
		return rest{}, errors.Join(fs.ErrNotExist, resp.Body.Close())
	}
	return rest{}, errors.Join(errors.New(resp.Status), resp.Body.Close())
}

func fileSum(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// Mirror builds what a testbed with these options needs and copies it to a directory that others can use as
// NODELET_BINARIES_URL. It returns the checksum for NODELET_BINARIES_SUM. The files of other architectures stay.
func Mirror(ctx context.Context, o Options, dir string) (sum string, err error) {
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	tb, err := newTestbed(o)
	if err != nil {
		return "", err
	}
	if _, err := tb.prepare(ctx); err != nil {
		return "", err
	}
	return tb.cache.copyUsed(dir)
}

// copyUsed copies what was asked for to a directory, and returns the checksum of its SHA256SUMS.
func (c *Cache) copyUsed(dir string) (sum string, err error) {
	for _, name := range c.used {
		files := []string{name}
		if all, err := os.ReadDir(filepath.Join(c.dir, name)); err == nil {
			files = regularFiles(name, all)
		}
		for _, file := range files {
			if err := copyFile(filepath.Join(c.dir, file), filepath.Join(dir, platformDir(), file)); err != nil {
				return "", err
			}
		}
	}
	return writeMirrorSums(dir)
}

// regularFiles returns the files of a directory, without links: a mirror has none.
func regularFiles(dir string, all []os.DirEntry) []string {
	var files []string
	for _, e := range all {
		if e.Type().IsRegular() {
			files = append(files, filepath.Join(dir, e.Name()))
		}
	}
	return files
}

// writeMirrorSums writes SHA256SUMS of all files in a directory and returns its own checksum.
func writeMirrorSums(dir string) (string, error) {
	var text strings.Builder
	err := filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Name() == sumsName {
			return err
		}
		sum, err := fileSum(file)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, file)
		fmt.Fprintf(&text, "%s  %s\n", sum, name)
		return err
	})
	if err != nil {
		return "", err
	}
	return hex.EncodeToString(sha256Of([]byte(text.String()))),
		os.WriteFile(filepath.Join(dir, sumsName), []byte(text.String()), 0o644)
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
