package mounts

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// answerTimeout is how long a Prober waits for a file system.
const answerTimeout = 2 * time.Second

// gone are the errors of a file system whose daemon or server has gone and does not come back for this mount.
var gone = []error{unix.ENOTCONN, unix.ECONNABORTED, unix.ESTALE, unix.EHOSTDOWN}

// Prober finds mounts that cannot be used any more. It is safe for use by many goroutines. The zero value is ready.
type Prober struct {
	mu sync.Mutex
	// asked are the questions without an answer, by path. No call to a file system ends before that answers.
	asked map[string]*question
}

// question is a call to a file system. broken is valid when done is closed.
type question struct {
	began  time.Time
	done   chan struct{}
	broken bool
}

// Broken reports whether the file system at a path cannot be used any more because its daemon or server has gone, such
// as that of a FUSE file system whose daemon has restarted. One that does not answer soon does not count as broken: it
// may be slow.
func (p *Prober) Broken(ctx context.Context, path string) bool {
	q := p.ask(path)
	timeout := time.NewTimer(answerTimeout - time.Since(q.began))
	defer timeout.Stop()
	select {
	case <-q.done:
		return q.broken
	case <-timeout.C:
	case <-ctx.Done():
	}
	return false
}

// ask asks a file system, unless it still has to answer.
func (p *Prober) ask(path string) *question {
	p.mu.Lock()
	defer p.mu.Unlock()
	if q := p.asked[path]; q != nil {
		return q
	}
	q := &question{began: time.Now(), done: make(chan struct{})}
	if p.asked == nil {
		p.asked = map[string]*question{}
	}
	p.asked[path] = q
	go func() {
		q.broken = broken(path)
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.asked, path)
		close(q.done)
	}()
	return q
}

// broken reports whether a remote file system cannot be used any more; no other is.
func broken(path string) bool {
	own, err := Remote(path)
	if err == nil {
		err = Ask(own)
		own.Close()
	}
	return slices.ContainsFunc(gone, func(e error) bool { return errors.Is(err, e) })
}
