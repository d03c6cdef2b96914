package logs

import (
	"compress/gzip"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nodelet/nodelet/test/pagecache"
)

func namesIn(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

// round rotates once, and waits until the files that were rotated before are compressed.
func round(t *testing.T, r *Rotator) {
	r.Round(t.Context())
	r.aside.Wait()
}

// TestRotate checks that names, number and content of rotated logs are the kubelet's: the newest plain, older ones
// compressed.
func TestRotate(t *testing.T) {
	d, ctr := newContainer(t)
	dir := filepath.Dir(ctr.path)
	rot := ctr.rotator(d, 4)
	want := [][]string{
		{"0.log", "0.log.20260102-030406"},
		{"0.log", "0.log.20260102-030406.gz", "0.log.20260102-030407"},
		{"0.log", "0.log.20260102-030406.gz", "0.log.20260102-030407.gz", "0.log.20260102-030408"},
		{"0.log", "0.log.20260102-030407.gz", "0.log.20260102-030408.gz", "0.log.20260102-030409"},
	}
	for i, w := range want {
		ctr.say()
		round(t, rot)
		if got := namesIn(t, dir); !slices.Equal(got, w) {
			t.Errorf("round %d: got %q, want %q", i, got, w)
		}
	}
	f, err := os.Open(filepath.Join(dir, "0.log.20260102-030407.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(z); err != nil || !strings.HasSuffix(string(text), " stdout F line 1\n") {
		t.Errorf("compressed log: got %q, %v, want line 1 at its end", text, err)
	}
	if info, _ := f.Stat(); info.Mode().Perm() != 0o640 {
		t.Errorf("mode: got %v, want 0640", info.Mode())
	}
}

// TestSmallLogsStay checks that nothing happens to a log below its size.
func TestSmallLogsStay(t *testing.T) {
	d, ctr := newContainer(t)
	ctr.say()
	rot := ctr.rotator(d, 4)
	rot.MaxBytes = 10_000
	rot.Reopen = func(context.Context, string) error { t.Error("got a call of Reopen, want none"); return nil }
	round(t, rot)
	if got := namesIn(t, filepath.Dir(ctr.path)); len(got) != 1 {
		t.Error(got)
	}
}

// TestRuntimeDoesNotReopen checks that the log keeps its name and is tried again.
func TestRuntimeDoesNotReopen(t *testing.T) {
	d, ctr := newContainer(t)
	ctr.say()
	rot := ctr.rotator(d, 4)
	rot.Reopen = func(context.Context, string) error { return errors.New("busy") }
	round(t, rot)
	if got := namesIn(t, filepath.Dir(ctr.path)); !slices.Equal(got, []string{"0.log"}) {
		t.Error(got)
	}
	ctr.say()
	rot.Reopen = ctr.reopen
	round(t, rot)
	if got := namesIn(t, filepath.Dir(ctr.path)); len(got) != 2 {
		t.Error(got)
	}
}

// TestInterruptedRotation checks that the next rotation repairs what an agent left behind that ended during a
// rotation.
func TestInterruptedRotation(t *testing.T) {
	d, ctr := newContainer(t)
	dir := filepath.Dir(ctr.path)
	for _, left := range []string{"0.log.20260101-000000", "0.log.20260101-000000.gz", "0.log.20260101-000001",
		"0.log.20260101-000001.tmp", "1.log", "0.logs"} {
		if err := os.WriteFile(filepath.Join(dir, left), []byte("x"), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	ctr.say()
	rot := ctr.rotator(d, 10)
	round(t, rot)
	want := []string{"0.log", "0.log.20260101-000000.gz", "0.log.20260101-000001.gz", "0.log.20260102-030406", "0.logs",
		"1.log"}
	if got := namesIn(t, dir); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	// Renamed, and then the agent ended: the runtime still writes to the renamed file.
	if err := os.Rename(ctr.path, ctr.path+".20260102-030500"); err != nil {
		t.Fatal(err)
	}
	round(t, rot)
	if _, err := os.Stat(ctr.path); err != nil {
		t.Errorf("reopened log: got %v, want it there", err)
	}
}

// TestOldLogThatCannotBeCompressed checks that the newest log is rotated beside an old one that cannot be compressed,
// and that the number of files stays bounded.
func TestOldLogThatCannotBeCompressed(t *testing.T) {
	d, ctr := newContainer(t)
	dir := filepath.Dir(ctr.path)
	if err := os.Symlink("nowhere", ctr.path+".20260101-000000"); err != nil {
		t.Fatal(err)
	}
	rot := ctr.rotator(d, 3)
	for i, want := range [][]string{
		{"0.log", "0.log.20260101-000000", "0.log.20260102-030406"},
		{"0.log", "0.log.20260102-030406.gz", "0.log.20260102-030407"},
	} {
		ctr.say()
		round(t, rot)
		if got := namesIn(t, dir); !slices.Equal(got, want) {
			t.Errorf("round %d: got %q, want %q", i, got, want)
		}
	}
}

// TestLinksAreNotRotated checks that a link that a pod has put in the place of its log leads the rotation nowhere.
func TestLinksAreNotRotated(t *testing.T) {
	d, ctr := newContainer(t)
	outside := filepath.Join(t.TempDir(), "precious")
	for _, err := range []error{os.WriteFile(outside, []byte("precious"), 0o600), os.Remove(ctr.path),
		os.Symlink(outside, ctr.path),
		os.Symlink(outside, ctr.path+".20260101-000000")} {
		if err != nil {
			t.Fatal(err)
		}
	}
	rot := ctr.rotator(d, 2)
	rot.Reopen = func(context.Context, string) error { return nil }
	round(t, rot)
	if text, err := os.ReadFile(outside); err != nil || string(text) != "precious" {
		t.Errorf("file outside: got %q, %v, want it unchanged", text, err)
	}
	if got := namesIn(t, filepath.Dir(outside)); !slices.Equal(got, []string{"precious"}) {
		t.Error(got)
	}
}

// TestAllLogsAreRotatedBeforeOneIsCompressed checks that the compression of large files delays no rotation.
func TestAllLogsAreRotatedBeforeOneIsCompressed(t *testing.T) {
	d, ctr := newContainer(t)
	dir := filepath.Dir(ctr.path)
	rot := ctr.rotator(d, 4)
	var all []Log
	for _, name := range []string{"0.log", "1.log"} {
		for _, file := range []string{name, name + ".20260101-000000"} {
			if err := os.WriteFile(filepath.Join(dir, file), []byte("x\n"), 0o640); err != nil {
				t.Fatal(err)
			}
		}
		all = append(all, Log{ID: name, Path: filepath.Join(dir, name)})
	}
	rot.List = func(context.Context) ([]Log, error) { return all, nil }
	compressed := func() (n int) {
		for _, name := range namesIn(t, dir) {
			if strings.HasSuffix(name, gz) {
				n++
			}
		}
		return n
	}
	rot.Reopen = func(_ context.Context, id string) error {
		if n := compressed(); n != 0 {
			t.Errorf("rotation of %s: got %d compressed files, want none yet", id, n)
		}
		return nil
	}
	round(t, rot)
	if n := compressed(); n != 2 {
		t.Errorf("got %d compressed files, want 2", n)
	}
}

// TestCompressionDelaysNoRound checks that logs are rotated while files of an earlier round are compressed, which leave
// these files alone.
func TestCompressionDelaysNoRound(t *testing.T) {
	d, ctr := newContainer(t)
	dir := filepath.Dir(ctr.path)
	rot := ctr.rotator(d, 4)
	ctr.say()
	round(t, rot)
	rot.batch.Lock() // what is compressed takes long
	want := []string{"0.log", "0.log.20260102-030406"}
	for _, next := range []string{"0.log.20260102-030407", "0.log.20260102-030408"} {
		ctr.say()
		rot.Round(t.Context())
		if want = append(want, next); !slices.Equal(namesIn(t, dir), want) {
			t.Errorf("got %q, want %q", namesIn(t, dir), want)
		}
		if next == "0.log.20260102-030407" {
			want = slices.Insert(want, 2, want[1]+tmp)
			if err := os.WriteFile(filepath.Join(dir, want[2]), nil, 0o640); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := os.Remove(filepath.Join(dir, want[2])); err != nil {
		t.Error(err)
	}
	rot.batch.Unlock()
	rot.aside.Wait()
	want = []string{"0.log", "0.log.20260102-030406.gz", "0.log.20260102-030407", "0.log.20260102-030408"}
	if got := namesIn(t, dir); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	ctr.say()
	round(t, rot)
	want = []string{"0.log", "0.log.20260102-030407.gz", "0.log.20260102-030408.gz", "0.log.20260102-030409"}
	if got := namesIn(t, dir); !slices.Equal(got, want) {
		t.Errorf("when all are compressed: got %q, want %q", got, want)
	}
}

// TestHugeOldLogStays checks that a rotated file which is far larger than a log gets is not compressed: a pod that can
// write to the directory can put one there.
func TestHugeOldLogStays(t *testing.T) {
	d, ctr := newContainer(t)
	const huge = "0.log.99999999-000000"
	path := filepath.Join(filepath.Dir(ctr.path), huge)
	if err := os.WriteFile(path, nil, 0o640); err != nil {
		t.Fatal(err)
	}
	ctr.say()
	rot := ctr.rotator(d, 4)
	rot.MaxBytes = 10
	if err := os.Truncate(path, 101*rot.MaxBytes); err != nil {
		t.Fatal(err)
	}
	round(t, rot)
	want := []string{"0.log", "0.log.20260102-030406", huge}
	if got := namesIn(t, filepath.Dir(path)); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestCompressedLogIsOnDisk checks that a compressed log is written to the disk by the time that the original is gone.
func TestCompressedLogIsOnDisk(t *testing.T) {
	pagecache.Need(t)
	d, ctr := newContainer(t)
	old := filepath.Join(filepath.Dir(ctr.path), "0.log.20260101-000000")
	ctr.say()
	if err := os.WriteFile(old, []byte("x\n"), 0o640); err != nil {
		t.Fatal(err)
	}
	round(t, ctr.rotator(d, 4))
	if n := pagecache.Unwritten(t, old+gz); n != 0 {
		t.Errorf("got %d pages that are in memory alone, want none", n)
	}
}
