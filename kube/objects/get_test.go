package objects

import "testing"

// TestReadsShareOneCopy checks that containers which are created at once hold one copy of an object that all of them
// have read, as long as it is the same object in the same version.
func TestReadsShareOneCopy(t *testing.T) {
	run(t, func(b *bench) {
		get := func() any {
			o, err := b.o.ConfigMap(b.Context(), "ns", "a")
			if err != nil {
				b.Error(err)
			}
			return o
		}
		b.o.Use("p1", []Ref{ref("a", false)})
		b.server.Put(configMap("a", "1"))
		first := get()
		if get() != first {
			b.Error("another read of one version: got another copy")
		}
		b.server.Put(configMap("a", "2"))
		second := get()
		if second == first {
			b.Error("the next version: got the one before")
		}
		b.server.Delete("configmaps", "ns", "a")
		b.wantMissing("a")
	})
}
