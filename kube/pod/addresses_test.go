package pod

import (
	"slices"
	"testing"
)

func TestSortIPs(t *testing.T) {
	const v4, v6 = false, true
	for _, c := range []struct {
		ipv6First bool
		in, want  []string
	}{
		{v4, nil, nil},
		{v4, []string{"fd00::2", "10.0.0.2"}, []string{"10.0.0.2", "fd00::2"}},
		{v6, []string{"10.0.0.2", "fd00::2"}, []string{"fd00::2", "10.0.0.2"}},
		{v4, []string{"10.0.0.2", "10.0.0.3", "fd00::2", "fd00::3"}, []string{"10.0.0.2", "fd00::2"}},
		{v4, []string{"fd00::2"}, []string{"fd00::2"}},
		{v4, []string{"", "x", "fd00:0::2"}, []string{"fd00::2"}},
		{v4, []string{"::ffff:10.0.0.2"}, []string{"10.0.0.2"}},
		{v6, []string{"fe80::1%eth0", "fd00::2"}, []string{"fd00::2"}},
	} {
		if got := SortIPs(c.in, c.ipv6First); !slices.Equal(got, c.want) {
			t.Errorf("%v, IPv6 first %v: got %v", c.in, c.ipv6First, got)
		}
	}
}
