package spec

import (
	"fmt"
	"math"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// TestLarge checks that a container is large by its environment, its command or its arguments, if its pod has many
// containers.
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
		in.Pod.Spec.Containers = append(in.Pod.Spec.Containers, make([]corev1.Container, 100)...)
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

// TestNotLarge checks that no container is large by the variables of some hundred services, as a big namespace has
// them, unless its pod has many containers; but one with megabytes is in any pod.
func TestNotLarge(t *testing.T) {
	in := testInput()
	for i := range 400 {
		in.Objects.Services = append(in.Objects.Services, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: in.Pod.Namespace, Name: fmt.Sprintf("service-of-a-team-%d", i)},
			Spec: corev1.ServiceSpec{ClusterIP: "10.100.200.123", Ports: []corev1.ServicePort{
				{Port: 8080, Name: "http"}, {Port: 9090, Name: "metrics"},
			}},
		})
	}
	in.Pod.Spec.Containers = append(in.Pod.Spec.Containers, make([]corev1.Container, 4)...)
	if Large(in) {
		t.Error("400 services: got large")
	}
	in = testInput()
	in.Objects.Services = servicePorts(15_000)
	if !Large(in) {
		t.Error("a service with 15,000 ports: got not large")
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
