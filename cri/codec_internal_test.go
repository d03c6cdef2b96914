package cri

import (
	"strings"
	"testing"

	"google.golang.org/grpc/mem"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// countingPool counts the buffers that are taken from it, and those that are in use.
type countingPool struct {
	mem.BufferPool
	taken, used int
}

func (p *countingPool) Get(size int) *[]byte {
	p.taken++
	p.used++
	return p.BufferPool.Get(size)
}

func (p *countingPool) Put(b *[]byte) {
	p.used--
	p.BufferPool.Put(b)
}

// TestLongMessage checks that a message of several frames is decoded in a buffer of the client's pool, and that the
// buffer is returned.
func TestLongMessage(t *testing.T) {
	pool := &countingPool{BufferPool: buffers()}
	c := newCodec(pool)
	want := strings.Repeat("x", 100<<10)
	whole, err := c.Marshal(&runtimeapi.Container{Id: want})
	if err != nil {
		t.Fatal(err)
	}
	all := whole.Materialize()
	frames := mem.BufferSlice{mem.SliceBuffer(all[:16<<10]), mem.SliceBuffer(all[16<<10:])}
	var got runtimeapi.Container
	if err := c.Unmarshal(frames, &got); err != nil || got.Id != want {
		t.Errorf("got error %v and an ID of %d bytes, want %d", err, len(got.Id), len(want))
	}
	if pool.taken != 1 || pool.used != 0 {
		t.Errorf("got %d buffers from the pool, %d not returned; want 1 and 0", pool.taken, pool.used)
	}
}
