// Command mutants checks that the tests guard the security rules of docs/security.md: it takes one defence after the
// other out of the code and runs the test that must fail then.
//
//	go run ./test/mutants                 # all
//	go run ./test/mutants -only subpath   # those whose name contains the text
//
// mutants.txt lists them: which lines of which file go, what stands there instead, and which test must see it. A
// mutant whose lines are not found exactly once is an error, so the list cannot get out of date unnoticed. The source
// is never changed: the go command gets the changed file by -overlay. Some tests need root.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// testLimit bounds one test: a mutant may make it hang, which counts as a failure.
const testLimit = 4 * time.Minute

func main() {
	only := flag.String("only", "", "try only mutants whose name contains this text")
	flag.Parse()
	missed, err := run(*only)
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	case missed > 0:
		os.Exit(1)
	}
}

// run tries the mutants and returns how many were not noticed.
func run(only string) (missed int, err error) {
	text, err := os.ReadFile("test/mutants/mutants.txt")
	if err != nil {
		return 0, fmt.Errorf("read the list (run this from the root of the module): %w", err)
	}
	all, err := parse(string(text))
	if err != nil {
		return 0, err
	}
	dir, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	tried := 0
	for _, m := range all {
		if !strings.Contains(m.name, only) {
			continue
		}
		began := time.Now()
		noticed, err := m.noticed(dir)
		if err != nil {
			return missed, fmt.Errorf("mutant %q: %w", m.name, err)
		}
		verdict := "noticed"
		if !noticed {
			verdict = "NOT NOTICED"
			missed++
		}
		tried++
		fmt.Printf("%-11s  %s: %s (%s)\n", verdict, m.test, m.name, time.Since(began).Round(time.Second))
	}
	if tried == 0 {
		return 0, errors.New("no mutant has this name")
	}
	fmt.Printf("%d passed, %d failed\n", tried-missed, missed)
	return missed, nil
}

// noticed reports whether the test fails with the mutant. The test must build and pass without it.
func (m mutant) noticed(dir string) (bool, error) {
	source, err := os.ReadFile(m.file)
	if err != nil {
		return false, err
	}
	changed, err := m.apply(string(source))
	if err != nil {
		return false, err
	}
	replaced := filepath.Join(dir, "mutant.go")
	if err := os.WriteFile(replaced, []byte(changed), 0o600); err != nil {
		return false, err
	}
	file, err := filepath.Abs(m.file)
	if err != nil {
		return false, err
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {file: replaced}})
	if err != nil {
		return false, err
	}
	config := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(config, overlay, 0o600); err != nil {
		return false, err
	}
	if out, err := m.goTest(testLimit, "-overlay", config, "-run", "^$"); err != nil {
		return false, fmt.Errorf("the mutant does not build:\n%s", out)
	}
	out, err := m.goTest(testLimit, "-v")
	if err != nil || strings.Contains(out, "no tests to run") || strings.Contains(out, "--- SKIP: "+m.test) {
		return false, fmt.Errorf("the test does not run or fails without the mutant:\n%s", out)
	}
	_, err = m.goTest(testLimit, "-overlay", config)
	return err != nil, nil
}

// goTest runs the test. The limit is the test's own: it does not count the build, and go test ends all that holds the
// output.
func (m mutant) goTest(limit time.Duration, flags ...string) (string, error) {
	args := append([]string{"test", "-run", "^" + m.test + "$", "-timeout", limit.String()}, flags...)
	out, err := exec.Command("go", append(args, "./"+m.dir)...).CombinedOutput()
	return string(out), err
}
