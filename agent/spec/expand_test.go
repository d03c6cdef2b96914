package spec

import (
	"strings"
	"testing"
)

func TestExpand(t *testing.T) {
	vars := map[string]string{"A": "1", "B_2": "$(A)", "EMPTY": "", "with space": "s", "": "nothing"}
	lookup := func(name string) (string, bool) { v, ok := vars[name]; return v, ok }
	for in, want := range map[string]string{
		"":                 "",
		"plain":            "plain",
		"$(A)":             "1",
		"$(A)$(A)":         "11",
		"x$(A)y":           "x1y",
		"$(B_2)":           "$(A)",
		"$(EMPTY)":         "",
		"$(MISSING)":       "$(MISSING)",
		"$(with space)":    "s",
		"$()":              "nothing",
		"$$(A)":            "$(A)",
		"$$$(A)":           "$1",
		"$$$$(A)":          "$$(A)",
		"$$":               "$",
		"$":                "$",
		"a$":               "a$",
		"$A":               "$A",
		"${A}":             "${A}",
		"$é(A)":            "$é(A)",
		"$\xff$(A)":        "$\xff1",
		"$(A":              "$(A",
		"$(A$(A)":          "$(A$(A)",
		"$((A)":            "$((A)",
		"(A)":              "(A)",
		"$(A))":            "1)",
		"x $(A)$ $$ $(A) ": "x 1$ $ 1 ",
	} {
		if got := Expand(in, lookup); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

func FuzzExpand(f *testing.F) {
	for _, seed := range []string{"$(A)", "$$(A)", "$", "$(", "$)(", "a$(A)b$$c$(B)$", "$\xff", "$é"} {
		f.Add(seed, "value")
	}
	f.Fuzz(func(t *testing.T, s, value string) {
		none := Expand(s, func(string) (string, bool) { return "", false })
		if strings.Count(s, "$$") == 0 && none != s {
			t.Errorf("%q without variables: got %q", s, none)
		}
		if !strings.Contains(s, "$") && none != s {
			t.Errorf("%q has no reference: got %q, want it unchanged", s, none)
		}
		var names int
		got := Expand(s, func(name string) (string, bool) {
			names++
			if strings.Contains(name, ")") {
				t.Errorf("got the name %q in %q, want none with a parenthesis", name, s)
			}
			return value, true
		})
		if len(got) > len(s)+names*len(value) {
			t.Errorf("%q with %d variables of %d bytes: got %d bytes", s, names, len(value), len(got))
		}
		// A text in which each $ is doubled expands to itself.
		if back := Expand(strings.ReplaceAll(s, "$", "$$"), func(string) (string, bool) { return "x", true }); back != s {
			t.Errorf("got %[2]q, want %[1]q", s, back)
		}
	})
}
