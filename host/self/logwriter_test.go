package self

import (
	"bytes"
	"io"
	"testing"
	"testing/synctest"
	"time"
)

// TestLogWriterHealth checks that a reader that takes nothing is noticed, and that it recovers.
func TestLogWriterHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, pipe := io.Pipe()
		w := &LogWriter{To: pipe}
		if err := w.Health(); err != nil {
			t.Errorf("before the first write: got %v", err)
		}
		go func() { _, _ = w.Write([]byte("one\n")) }()
		time.Sleep(stuckAfter - time.Second)
		if err := w.Health(); err != nil {
			t.Errorf("shortly after: got %v", err)
		}
		time.Sleep(2 * time.Second)
		if err := w.Health(); err == nil {
			t.Error("with a reader that takes nothing: got nil, want an error")
		}
		if _, err := r.Read(make([]byte, 10)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if err := w.Health(); err != nil {
			t.Errorf("after the reader took it: got %v", err)
		}
	})
	var out bytes.Buffer
	if n, err := (&LogWriter{To: &out}).Write([]byte("x")); n != 1 || err != nil || out.String() != "x" {
		t.Errorf("got %d, %v and %q, want 1, nil and x", n, err, &out)
	}
}
