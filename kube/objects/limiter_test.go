package objects

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
)

// TestReadsGoBeforeWatches checks that when many objects are wanted at once, reads have bounded places and watches
// wait until the last of them has ended; then few are opened at a time.
func TestReadsGoBeforeWatches(t *testing.T) {
	run(t, func(b *bench) {
		const many = 3 * readsAtOnce
		var reads, opens, mostReads, mostOpens, read atomic.Int32
		b.server.Intercept(func(r *http.Request) *apierrors.StatusError {
			now, most := &reads, &mostReads
			if r.URL.Query().Get("watch") != "" {
				now, most = &opens, &mostOpens
				if n := read.Load(); n < many {
					b.Errorf("objects read before a watch is opened: got %d, want all %d", n, many)
				}
			} else {
				defer read.Add(1)
			}
			most.Store(max(most.Load(), now.Add(1)))
			time.Sleep(100 * time.Millisecond)
			now.Add(-1)
			return nil
		})
		for i := range many {
			name := fmt.Sprint(i)
			b.server.Put(configMap(name, name))
			b.o.Use(types.UID("p"+name), []Ref{ref(name, true)})
		}
		b.wantValue("0", "0")
		time.Sleep(time.Minute)
		synctest.Wait()
		if mostReads.Load() != readsAtOnce || mostOpens.Load() != opensAtOnce {
			b.Errorf("got at most %d reads and %d openings at a time, want %d and %d",
				mostReads.Load(), mostOpens.Load(), readsAtOnce, opensAtOnce)
		}
		if n := b.server.Watches(); n != many {
			b.Errorf("got %d watches, want %d", n, many)
		}
	})
}

// TestHangingReadDelaysWatchesBriefly checks that a read that hangs keeps watches back for a while only.
func TestHangingReadDelaysWatchesBriefly(t *testing.T) {
	run(t, func(b *bench) {
		hang := make(chan struct{})
		defer close(hang)
		b.server.Intercept(func(r *http.Request) *apierrors.StatusError {
			if r.URL.Query().Get("fieldSelector") == "metadata.name=slow" {
				select {
				case <-hang:
				case <-r.Context().Done():
				}
			}
			return nil
		})
		b.server.Put(configMap("a", "1"))
		b.o.Use("p", []Ref{ref("slow", true)})
		synctest.Wait()
		b.o.Use("q", []Ref{ref("a", true)})
		b.wantValue("a", "1")
		synctest.Wait()
		if n := b.server.Watches(); n != 0 {
			b.Errorf("got %d watches while an object is being read, want none", n)
		}
		time.Sleep(idleLimit)
		synctest.Wait()
		if n := b.server.Watches(); n != 1 {
			b.Errorf("got %d watches after %s, want 1", n, idleLimit)
		}
	})
}

// TestWaitForPlaceIsNoOutage checks that an object that was read before is read again, however long the read waits for
// its turn, as long as the API server answers others. If it answers none, what was read before is returned at once.
func TestWaitForPlaceIsNoOutage(t *testing.T) {
	for answers, want := range map[bool]string{true: "2", false: "1"} {
		run(t, func(b *bench) {
			b.server.Put(configMap("a", "1"))
			b.o.Use("p", []Ref{ref("a", false)})
			b.wantValue("a", "1")
			b.server.Put(configMap("a", "2"))
			b.server.Intercept(func(r *http.Request) *apierrors.StatusError {
				if !answers {
					return b.silent(r)
				}
				select {
				case <-time.After(recallAfter - time.Second):
				case <-r.Context().Done():
				}
				return nil
			})
			for i := range 3 * readsAtOnce {
				name := fmt.Sprint(i)
				b.o.Use(types.UID("p"+name), []Ref{ref(name, true)})
			}
			synctest.Wait()
			start := time.Now()
			b.wantValue("a", want)
			if d := time.Since(start); !answers && d != recallAfter {
				b.Errorf("without an answer: took %s, want %s", d, recallAfter)
			}
		})
	}
}
