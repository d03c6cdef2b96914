package spec

import (
	"math"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
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
		if got, err := Expand(in, maxArguments, lookup); got != want || err != nil {
			t.Errorf("%q: got %q, %v, want %q", in, got, err, want)
		}
	}
}

// TestExpandIsBounded checks that a result has at most as many bytes as the limit, and that many references that are
// not closed do not take long: with a look for the end of each, this test would take an hour.
func TestExpandIsBounded(t *testing.T) {
	lookup := func(string) (string, bool) { return "12345", true }
	if got, err := Expand("$(A)$(A)", 10, lookup); got != "1234512345" || err != nil {
		t.Errorf("with 10 bytes of 10: got %q, %v, want all of them", got, err)
	}
	if got, err := Expand("$(A)$(A)", 9, lookup); err == nil {
		t.Errorf("with 10 bytes of 9: got %q, want an error", got)
	}
	open := strings.Repeat("$(", 8<<20)
	if got, err := Expand(open, len(open), lookup); got != open || err != nil {
		t.Errorf("references that are not closed: got %d bytes, %v, want them unchanged", len(got), err)
	}
}

// TestLarge checks that a container is large by its environment, its command or its arguments.
func TestLarge(t *testing.T) {
	value := strings.Repeat("v", 1<<10)
	words := strings.Fields(strings.Repeat("$(V) ", 65))
	for name, change := range map[string]func(in *ContainerInput){
		"environment": func(in *ContainerInput) {
			in.Container.Env = append(in.Container.Env, corev1.EnvVar{Name: "W", Value: strings.Join(words, "")})
		},
		"command":   func(in *ContainerInput) { in.Container.Command = words },
		"arguments": func(in *ContainerInput) { in.Container.Args = words },
		"service":   func(in *ContainerInput) { in.Objects.Services = servicePorts(2000) },
	} {
		in := testInput()
		env(in, corev1.EnvVar{Name: "V", Value: value})
		if Large(in) {
			t.Errorf("without a large %s: got large", name)
		}
		change(in)
		if !Large(in) {
			t.Errorf("with a large %s: got not large", name)
		}
		if _, err := Container(in); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzExpand(f *testing.F) {
	for _, seed := range []string{"$(A)", "$$(A)", "$", "$(", "$)(", "a$(A)b$$c$(B)$", "$\xff", "$é"} {
		f.Add(seed, "value")
	}
	f.Fuzz(func(t *testing.T, s, value string) {
		none := expanded(t, s, func(string) (string, bool) { return "", false })
		if strings.Count(s, "$$") == 0 && none != s {
			t.Errorf("%q without variables: got %q", s, none)
		}
		if !strings.Contains(s, "$") && none != s {
			t.Errorf("%q has no reference: got %q, want it unchanged", s, none)
		}
		var names int
		got := expanded(t, s, func(name string) (string, bool) {
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
		double := strings.ReplaceAll(s, "$", "$$")
		if back := expanded(t, double, func(string) (string, bool) { return "x", true }); back != s {
			t.Errorf("got %[2]q, want %[1]q", s, back)
		}
	})
}

func expanded(t *testing.T, s string, lookup func(string) (string, bool)) string {
	t.Helper()
	got, err := Expand(s, math.MaxInt, lookup)
	if err != nil {
		t.Error(err)
	}
	return got
}
