package node

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// journal is a log that may be read while it is written.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

func (j *journal) count(words string) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return strings.Count(j.text.String(), words)
}

// TestDeletedNode: an object that somebody deletes is not registered again before the next start, and people are told
// so; an object that somebody makes in its place is taken over.
func TestDeletedNode(t *testing.T) {
	const told = "the Node object was deleted; restart the agent"
	synctest.Test(t, func(t *testing.T) {
		api, log := &fakeAPI{}, &journal{}
		b := start(t, api, func(c *Config) { c.Log = slog.New(slog.NewTextHandler(log, nil)) })
		b.SetRuntime(readyRuntime)
		settle(time.Minute)
		if n := log.count(told); n != 0 {
			t.Errorf("before anything was deleted the log says so %d times", n)
		}
		api.remove()
		settle(time.Hour)
		if api.get() != nil {
			t.Error("a node that was deleted is back by itself")
		}
		if n := log.count(told); n != 1 {
			t.Errorf("the log tells %d times what to do, want once", n)
		}
		b.SetRuntime(readyRuntime)
		api.store(existing(corev1.ConditionUnknown))
		settle(5 * time.Second)
		if c := b.ready(); c.Status != corev1.ConditionTrue {
			t.Errorf("the new object: %+v", c)
		}
	})
}
