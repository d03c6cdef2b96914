package self

import (
	"fmt"
	"io"
	"sync/atomic"
	"time"
)

// LogWriter passes the log on, and knows whether its reader takes it. A pipe whose reader has stopped, such as journald
// that hangs, blocks every goroutine that logs. Write may be called by many goroutines.
type LogWriter struct {
	To io.Writer
	// writing is the time in nanoseconds since 1970 at which the oldest unfinished write began; 0 if there is none.
	// Handlers of log/slog write one record at a time.
	writing atomic.Int64
}

// Write writes one record.
func (w *LogWriter) Write(record []byte) (int, error) {
	first := w.writing.CompareAndSwap(0, time.Now().UnixNano())
	n, err := w.To.Write(record)
	if first {
		w.writing.Store(0)
	}
	return n, err
}

// stuckAfter is how long a write may take. The kubelet allows its log to be as late.
const stuckAfter = 2 * time.Minute

// Health returns an error if a write of the log has taken more than two minutes.
func (w *LogWriter) Health() error {
	began := w.writing.Load()
	if took := time.Since(time.Unix(0, began)); began != 0 && took > stuckAfter {
		return fmt.Errorf("the log could not be written for %v", took.Truncate(time.Second))
	}
	return nil
}
