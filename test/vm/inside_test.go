package main

import (
	"fmt"
	"os/exec"
	"reflect"
	"strings"
	"testing"
)

// TestArgumentLists checks that -- separates the arguments of programs, and that one without arguments runs, too.
func TestArgumentLists(t *testing.T) {
	for args, want := range map[string][][]string{
		"":           {{}},
		"a b":        {{"a", "b"}},
		"a -- b c":   {{"a"}, {"b", "c"}},
		"-- a -- --": {{}, {"a"}, {}, {}},
	} {
		if got := argumentLists(strings.Fields(args)); !reflect.DeepEqual(got, want) {
			t.Errorf("%q: got %q, want %q", args, got, want)
		}
	}
}

// TestLabelled checks that lines that are written in pieces get one label each.
func TestLabelled(t *testing.T) {
	var got strings.Builder
	l := &labelled{label: "2: ", to: &got}
	for _, piece := range []string{"on", "e\n\ntwo\nth", "ree", "\n"} {
		fmt.Fprint(l, piece)
	}
	if want := "2: one\n2: \n2: two\n2: three\n"; got.String() != want {
		t.Errorf("got %q, want %q", got.String(), want)
	}
}

// TestQuote checks that the shell reads a quoted text as it was.
func TestQuote(t *testing.T) {
	for _, text := range []string{"", "a b", `it's $HOME "x" \n`, "^(A|B)$", "'"} {
		got, err := exec.Command("sh", "-c", "printf %s "+quote(text)).Output()
		if err != nil || string(got) != text {
			t.Errorf("quote(%q), read by a shell: got %q, %v, want the same text", text, got, err)
		}
	}
}
