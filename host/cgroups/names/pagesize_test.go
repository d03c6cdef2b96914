package names

import "testing"

func TestPageSize(t *testing.T) {
	for size, want := range map[int64]string{64 << 10: "64KB", 2 << 20: "2MB", 1 << 30: "1GB", 16 << 30: "16GB"} {
		if got := PageSize(size); got != want {
			t.Errorf("%d: got %s, want %s", size, got, want)
		}
		if got, ok := ParsePageSize(want); got != size || !ok {
			t.Errorf("%s: got %d, %v, want %d", want, got, ok, size)
		}
	}
	for _, name := range []string{"x", "MB", "1TB", ""} {
		if got, ok := ParsePageSize(name); ok {
			t.Errorf("%q: got the size %d, want none", name, got)
		}
	}
}
