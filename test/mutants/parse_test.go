package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const sample = `
# links are followed
file a.go
test a TestLink
- return refuse(path)
+ return open(path)
`

func TestParseAndApply(t *testing.T) {
	all, err := parse(sample)
	if err != nil || len(all) != 1 {
		t.Fatalf("parse: got %d mutants, %v, want 1", len(all), err)
	}
	got, err := all[0].apply("func f() {\n\treturn refuse(path)\n}")
	if want := "func f() {\nreturn open(path)\n}"; err != nil || got != want {
		t.Errorf("apply: got %q, %v, want %q", got, err, want)
	}
	for source, want := range map[string]string{
		"func f() {}": "do not stand in",
		"\treturn refuse(path)\n\treturn refuse(path)": "more than once",
	} {
		if _, err := all[0].apply(source); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("apply to %q: got error %v, want one with %q", source, err, want)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for _, text := range []string{"file a.go", "# x\nfil a.go", "# x\nfile a.go\ntest a TestA"} {
		if _, err := parse(text); err == nil {
			t.Errorf("parse(%q): got no error", text)
		}
	}
}

// TestListMatchesSource applies each mutant of the list to the source, without running its test.
func TestListMatchesSource(t *testing.T) {
	text, err := os.ReadFile("mutants.txt")
	if err != nil {
		t.Fatal(err)
	}
	all, err := parse(string(text))
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 10 {
		t.Fatalf("got %d mutants, want at least 10", len(all))
	}
	for _, m := range all {
		source, err := os.ReadFile(filepath.Join("../..", m.file))
		if err != nil {
			t.Errorf("mutant %q: %v", m.name, err)
			continue
		}
		if _, err := m.apply(string(source)); err != nil {
			t.Errorf("mutant %q: %v", m.name, err)
		}
	}
}

// TestHangingTestEnds checks that a test which hangs fails at the limit, whatever its build takes.
func TestHangingTestEnds(t *testing.T) {
	t.Chdir(t.TempDir())
	for name, text := range map[string]string{
		"go.mod":    "module p\n\ngo 1.26\n",
		"p_test.go": "package p\n\nimport \"testing\"\n\nfunc TestHangs(*testing.T) { <-make(chan bool) }\n",
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out, err := mutant{dir: ".", test: "TestHangs"}.goTest(time.Millisecond)
	if want := "test timed out after 1ms"; err == nil || !strings.Contains(out, want) {
		t.Errorf("got %v, want a failure with %q:\n%s", err, want, out)
	}
}
