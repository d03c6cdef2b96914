package logs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const sample = `2026-01-02T03:04:05.000000001Z stdout F one
2026-01-02T03:04:06.5Z stderr F two
2026-01-02T03:04:07Z stdout P thr
2026-01-02T03:04:07.1Z stdout P e
2026-01-02T03:04:07.2Z stdout F e
2026-01-02T05:04:08.25+02:00 stdout F:later-tag four
2026-01-02T03:04:09Z stdout F 
`

// newLog makes a log of a pod.
func newLog(t *testing.T, text string) (*Dir, string) {
	t.Helper()
	root := t.TempDir()
	dir := filepath.Join(root, "ns_pod_uid", "app")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "0.log")
	if err := os.WriteFile(path, []byte(text), 0o640); err != nil {
		t.Fatal(err)
	}
	return New(root), path
}

func all() Options { return Options{Tail: -1, Limit: -1} }

// TestRead checks each option on one log.
func TestRead(t *testing.T) {
	since := func(s string) time.Time {
		at, err := time.Parse(time.RFC3339, s)
		if err != nil {
			t.Fatal(err)
		}
		return at
	}
	for _, c := range []struct {
		name     string
		text     string
		change   func(*Options)
		out, err string
	}{
		{"all", sample, nil, "one\nthree\nfour\n\n", "two\n"},
		{"none", "", nil, "", ""},
		{"timestamps", sample, func(o *Options) { o.Timestamps = true },
			"2026-01-02T03:04:05.000000001Z one\n2026-01-02T03:04:07.000000000Z three\n" +
				"2026-01-02T05:04:08.250000000+02:00 four\n2026-01-02T03:04:09.000000000Z \n",
			"2026-01-02T03:04:06.500000000Z two\n"},
		{"tail of nothing", sample, func(o *Options) { o.Tail = 0 }, "", ""},
		{"tail", sample, func(o *Options) { o.Tail = 2 }, "four\n\n", ""},
		{"tail counts pieces", sample, func(o *Options) { o.Tail = 3 }, "e\nfour\n\n", ""},
		{"tail of more than there is", sample, func(o *Options) { o.Tail = 100 }, "one\nthree\nfour\n\n", "two\n"},
		{"tail without a last line feed", strings.TrimSuffix(sample, "\n") + "\n2026-01-02T03:04:10Z stdout F cut",
			func(o *Options) { o.Tail = 1 }, "cut", ""},
		{"since", sample, func(o *Options) { o.Since = since("2026-01-02T03:04:07.15Z") }, "e\nfour\n\n", ""},
		{"since its very moment", sample, func(o *Options) { o.Since = since("2026-01-02T03:04:09Z") }, "\n", ""},
		{"limit", sample, func(o *Options) { o.Limit = 6 }, "on" + "e\n", "tw"},
		{"limit with timestamps", sample, func(o *Options) { o.Limit, o.Timestamps = 8, true }, "2026-01-", ""},
		{"no end", "2026-01-02T03:04:05Z stdout F cut", nil, "cut", ""},
		{
			"rubbish between",
			"2026-01-02T03:04:05Z stdout F a\nrubbish\n2026 stdout F x\n2026-01-02T03:04:05Z nowhere F x\n\n" +
				"2026-01-02T03:04:05Z stdout F b\n",
			nil,
			"a\nb\n",
			"",
		},
		{"zeros after a power cut",
			"2026-01-02T03:04:05Z stdout F a\n" + strings.Repeat("\x00", 100_000) + "\n2026-01-02T03:04:05Z stdout F b\n", nil,
			"a\nb\n", ""},
		{"long line", "2026-01-02T03:04:05Z stdout F " + strings.Repeat("y", 300_000) + "\n2026-01-02T03:04:05Z stdout F b\n",
			nil, strings.Repeat("y", 300_000) + "\nb\n", ""},
		{"long pieces", "2026-01-02T03:04:05Z stdout P " + strings.Repeat("y",
			100_000) + "\n2026-01-02T03:04:05Z stdout F b\n", nil, strings.Repeat("y", 100_000) + "b\n", ""},
		{"long line, cut", "2026-01-02T03:04:05Z stdout F " + strings.Repeat("y", 300_000) + "\n",
			func(o *Options) { o.Limit = 200_000 }, strings.Repeat("y", 200_000), ""},
	} {
		d, path := newLog(t, c.text)
		o := all()
		if c.change != nil {
			c.change(&o)
		}
		var out, errs bytes.Buffer
		if err := d.Read(t.Context(), path, o, &out, &errs); err != nil {
			t.Errorf("%s: got %v, want no error", c.name, err)
		}
		if out.String() != c.out || errs.String() != c.err {
			t.Errorf("%s: got %.300q and %.300q, want %.300q and %.300q", c.name, out.String(), errs.String(), c.out, c.err)
		}
	}
}

// TestOneStream checks that a stream that is not wanted is neither written nor counted.
func TestOneStream(t *testing.T) {
	d, path := newLog(t, sample)
	o := all()
	o.Limit = 4
	var errs bytes.Buffer
	if err := d.Read(t.Context(), path, o, nil, &errs); err != nil || errs.String() != "two\n" {
		t.Errorf("standard error: got %q, %v, want the second line alone", errs.String(), err)
	}
}

// TestTailFindsTheLine checks every size of the file around the size of the block that is searched.
func TestTailFindsTheLine(t *testing.T) {
	line := "2026-01-02T03:04:05Z stdout F 0123456789\n"
	for _, n := range []int{1, 2, bufferSize / len(line), bufferSize/len(line) + 1, 3 * bufferSize / len(line)} {
		d, path := newLog(t, strings.Repeat(line, n))
		for _, tail := range []int64{1, 2, int64(n - 1), int64(n), int64(n + 1)} {
			o := all()
			o.Tail = tail
			var out bytes.Buffer
			if err := d.Read(t.Context(), path, o, &out, &out); err != nil {
				t.Fatal(err)
			}
			if got, want := int64(strings.Count(out.String(), "\n")), min(tail, int64(n)); got != want {
				t.Errorf("%d of %d lines: got %d, want %d", tail, n, got, want)
			}
		}
	}
}

// TestOnlyRealLogsAreRead checks that nothing outside the directory is read, through no link, and no pipe.
func TestOnlyRealLogsAreRead(t *testing.T) {
	d, path := newLog(t, sample)
	dir := filepath.Dir(path)
	secret := filepath.Join(t.TempDir(), "shadow")
	for _, err := range []error{
		os.WriteFile(secret, []byte("2026-01-02T03:04:05Z stdout F secret\n"), 0o600),
		os.Symlink(secret, filepath.Join(dir, "1.log")),
		os.Symlink(filepath.Dir(secret), filepath.Join(d.path, "linked")),
		os.Symlink("0.log", filepath.Join(dir, "2.log")),
		unix.Mkfifo(filepath.Join(dir, "3.log"), 0o600),
		os.Mkdir(filepath.Join(dir, "4.log"), 0o700),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, bad := range []string{filepath.Join(dir, "1.log"), filepath.Join(dir, "2.log"), filepath.Join(dir, "3.log"),
		filepath.Join(dir, "4.log"),
		filepath.Join(d.path, "linked", "shadow"), secret, d.path + "/../" + filepath.Base(filepath.Dir(secret)) + "/shadow",
		d.path, filepath.Join(dir, "5.log")} {
		var out bytes.Buffer
		if err := d.Read(t.Context(), bad, all(), &out, &out); err == nil || out.Len() > 0 {
			t.Errorf("%s: got %q, %v, want an error and no text", bad, out.String(), err)
		}
	}
	pipe, err := filepath.Rel(d.path, filepath.Join(dir, "3.log"))
	if err != nil {
		t.Fatal(err)
	}
	if f, err := d.Open(pipe); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a pipe: got %v, %v, want %v", f, err, os.ErrNotExist)
	}
}

// TestReaderGoes checks that a reading ends with its context, and with a writer that fails.
func TestReaderGoes(t *testing.T) {
	d, path := newLog(t, strings.Repeat(sample, 10_000))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out bytes.Buffer
	if err := d.Read(ctx, path, all(), &out, &out); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	gone := errors.New("gone")
	if err := d.Read(t.Context(), path, all(), failing{gone}, failing{gone}); !errors.Is(err, gone) {
		t.Error(err)
	}
	o := all()
	o.Tail = 1
	if err := d.Read(ctx, path, o, failing{gone}, failing{gone}); !errors.Is(err, context.Canceled) {
		t.Errorf("while the start of the tail is looked for: got %v, want %v", err, context.Canceled)
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

// FuzzRead checks that whatever stands in a log, a reading ends, writes no more than there is and keeps its limit.
func FuzzRead(f *testing.F) {
	f.Add([]byte(sample), int64(-1), int64(-1))
	f.Add([]byte("2026-01-02T03:04:05Z stdout P\n2026-01-02T03:04:05Z stdout F"), int64(0), int64(0))
	root := f.TempDir()
	path := filepath.Join(root, "x.log")
	f.Fuzz(func(t *testing.T, text []byte, tail, limit int64) {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		var out, errs bytes.Buffer
		err := New(root).Read(t.Context(), path, Options{Tail: tail, Limit: limit}, &out, &errs)
		n := int64(out.Len() + errs.Len())
		if err != nil || limit >= 0 && n > limit || n > int64(len(text)) {
			t.Errorf("got %d bytes of %d with limit %d, and the error %v, want fewer and no error", n, len(text), limit, err)
		}
	})
}

// TestTailAfterRotation checks that the newest lines include those of the file that was rotated last, until that is
// compressed, and that a follower gets each once.
func TestTailAfterRotation(t *testing.T) {
	d, ctr := newContainer(t)
	rot := ctr.rotator(d, 5)
	check := func(tail int64, want ...int) {
		t.Helper()
		for _, follow := range []bool{false, true} {
			o := all()
			o.Tail, o.Follow = tail, follow
			o.Ended = func() (bool, <-chan struct{}) { return true, nil }
			var out, lines bytes.Buffer
			for _, n := range want {
				fmt.Fprintf(&lines, "line %d\n", n)
			}
			if err := d.Read(t.Context(), ctr.path, o, &out, &out); err != nil || out.String() != lines.String() {
				t.Errorf("the last %d lines, following %v: got %q, %v, want %q", tail, follow, out.String(), err, lines.String())
			}
		}
	}
	for range 3 {
		ctr.say()
	}
	rot.Round(t.Context())
	check(2, 1, 2)
	check(0)
	for range 3 {
		ctr.say()
	}
	check(2, 4, 5)
	check(3, 3, 4, 5)
	check(5, 1, 2, 3, 4, 5)
	check(100, 0, 1, 2, 3, 4, 5)
	check(-1, 3, 4, 5)
	o := all()
	o.Tail, o.Limit = 100, 3
	var out bytes.Buffer
	if err := d.Read(t.Context(), ctr.path, o, &out, &out); err != nil || out.String() != "lin" {
		t.Errorf("three bytes of the last lines: got %q, %v, want the first three", out.String(), err)
	}
}
