package spec

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseResolvConf(t *testing.T) {
	for name, c := range map[string]struct {
		in   string
		want ResolvConf
	}{
		"empty":          {"", ResolvConf{}},
		"comments":       {"# nameserver 1.2.3.4\n #x\n;nameserver 1.2.3.4\n\n \n", ResolvConf{}},
		"after comments": {"#\n\nnameserver 1.2.3.4", ResolvConf{Nameservers: []string{"1.2.3.4"}}},
		"others":         {"domain a.b\nsortlist 1.2.3.4\n", ResolvConf{}},
		"servers": {"nameserver 1.2.3.4\n  nameserver\t::1 # mine\r\n",
			ResolvConf{Nameservers: []string{"1.2.3.4", "::1"}}},
		"same server twice": {"nameserver a\nnameserver a", ResolvConf{Nameservers: []string{"a", "a"}}},
		"last search wins":  {"search a b\nsearch c d. .\n", ResolvConf{Search: []string{"c", "d"}}},
		"empty search":      {"search a\nsearch\n", ResolvConf{}},
		"two options lines": {"options ndots:1 edns0\noptions ndots:5 rotate\n",
			ResolvConf{Options: []string{"ndots:5", "edns0", "rotate"}}},
	} {
		got, err := ParseResolvConf([]byte(c.in))
		if diff := cmp.Diff(c.want, got); err != nil || diff != "" {
			t.Errorf("%s: got the error %v, and -want +got:\n%s", name, err, diff)
		}
	}
	if _, err := ParseResolvConf([]byte("search a\nnameserver\n")); err == nil ||
		!strings.Contains(err.Error(), "line 2") {
		t.Errorf("a nameserver line without an address: got %v, want an error", err)
	}
	if _, err := ParseResolvConf(make([]byte, maxResolvConf+1)); err == nil {
		t.Error("a file that is too large: got no error, want one")
	}
}

func FuzzParseResolvConf(f *testing.F) {
	for _, seed := range []string{"nameserver 1.2.3.4\nsearch a b\noptions ndots:5", "nameserver", "search . a.",
		"options :", "\r\n\x00"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		conf, err := ParseResolvConf(content)
		if err != nil {
			return
		}
		seen := map[string]bool{}
		for _, o := range conf.Options {
			if seen[optionName(o)] {
				t.Errorf("got option %s twice, want once", o)
			}
			seen[optionName(o)] = true
		}
		// The written configuration parses to the same value.
		text := "search " + strings.Join(conf.Search, " ") + "\noptions " + strings.Join(conf.Options, " ") + "\n"
		for _, s := range conf.Nameservers {
			text += "nameserver " + s + "\n"
		}
		again, err := ParseResolvConf([]byte(text))
		if err != nil || !cmp.Equal(again.Options, conf.Options) || !cmp.Equal(again.Nameservers, conf.Nameservers) {
			t.Errorf("%+v written and read again: got %+v, %v, want the same", conf, again, err)
		}
	})
}
