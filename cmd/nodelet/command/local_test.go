package command

import "testing"

func TestNoPod(t *testing.T) {
	known := []string{"dns-7d9f", "web-node-1"}
	for _, c := range []struct {
		names []string
		want  string
	}{
		{[]string{"web"}, `no pod on this node is called web; did you mean "web-node-1"?`},
		{[]string{"web-nod-1"}, `no pod on this node is called web-nod-1; did you mean "web-node-1"?`},
		{[]string{"quux"}, "no pod on this node is called quux"},
		{[]string{"quux", "dns"}, `no pod on this node is called quux or dns; did you mean "dns-7d9f"?`},
	} {
		if got := NoPod(c.names, known).Error(); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

func TestCount(t *testing.T) {
	for n, want := range map[int]string{0: "0 pods", 1: "1 pod", 2: "2 pods"} {
		if got := Count(n, "pod"); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
