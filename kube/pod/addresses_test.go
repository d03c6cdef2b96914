package pod

import (
	"slices"
	"testing"
)

func TestIPsLike(t *testing.T) {
	const v4, v6 = "192.168.0.1", "fd00::1"
	for _, c := range []struct {
		host     string
		in, want []string
	}{
		{v4, nil, nil},
		{"", []string{"fd00::2", "10.0.0.2"}, []string{"10.0.0.2", "fd00::2"}},
		{v4, []string{"fd00::2", "10.0.0.2"}, []string{"10.0.0.2", "fd00::2"}},
		{v6, []string{"10.0.0.2", "fd00::2"}, []string{"fd00::2", "10.0.0.2"}},
		{v4, []string{"10.0.0.2", "10.0.0.3", "fd00::2", "fd00::3"}, []string{"10.0.0.2", "fd00::2"}},
		{v4, []string{"fd00::2"}, []string{"fd00::2"}},
		{v4, []string{"", "x", "fd00:0::2"}, []string{"fd00::2"}},
		{v4, []string{"::ffff:10.0.0.2"}, []string{"10.0.0.2"}},
		{v6, []string{"fe80::1%eth0", "fd00::2"}, []string{"fd00::2"}},
	} {
		if got := IPsLike(c.host, c.in); !slices.Equal(got, c.want) {
			t.Errorf("%v on %v: got %v", c.in, c.host, got)
		}
	}
}
