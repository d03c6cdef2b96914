package main

import (
	"fmt"
	"strings"
)

// mutant is one change that takes a defence out of the code.
type mutant struct {
	// name is the rule that falls.
	name string
	// file is changed; test, a test function in the package at dir, must fail then.
	file, dir, test string
	// lines are taken out of the file, and put stands in their place.
	lines, put []string
}

// parse reads the list. Each mutant is a block of lines, after a comment that names it:
//
//	# what no longer holds
//	file host/beneath/open.go
//	test host/beneath TestLinkIsRefused
//	- flags := unix.RESOLVE_BENEATH
//	+ flags := 0
//
// Leading white space of the lines to take out does not count; that of the lines to put does not matter to Go.
func parse(text string) ([]mutant, error) {
	var all []mutant
	for n, line := range strings.Split(text, "\n") {
		word, rest, _ := strings.Cut(line, " ")
		switch {
		case word == "#":
			all = append(all, mutant{name: rest})
			continue
		case strings.TrimSpace(line) == "":
			continue
		case len(all) == 0:
			return nil, fmt.Errorf("mutants.txt:%d: a mutant begins with a comment", n+1)
		}
		m := &all[len(all)-1]
		switch word {
		case "file":
			m.file = rest
		case "test":
			m.dir, m.test, _ = strings.Cut(rest, " ")
		case "-":
			m.lines = append(m.lines, strings.TrimSpace(rest))
		case "+":
			m.put = append(m.put, rest)
		default:
			return nil, fmt.Errorf("mutants.txt:%d: a line begins with #, file, test, - or +, not %q", n+1, word)
		}
	}
	for _, m := range all {
		if m.file == "" || m.test == "" || len(m.lines) == 0 {
			return nil, fmt.Errorf("mutants.txt: mutant %q lacks a file, a test, or lines to take out", m.name)
		}
	}
	return all, nil
}

// apply returns the source with the mutant's lines exchanged. They must be there exactly once.
func (m mutant) apply(source string) (string, error) {
	lines := strings.Split(source, "\n")
	found := -1
	for i := range lines {
		if !m.at(lines, i) {
			continue
		}
		if found >= 0 {
			return "", fmt.Errorf("the lines stand in %s more than once", m.file)
		}
		found = i
	}
	if found < 0 {
		return "", fmt.Errorf("the lines do not stand in %s: the code has changed, change the mutant with it", m.file)
	}
	changed := append(append(append([]string{}, lines[:found]...), m.put...), lines[found+len(m.lines):]...)
	return strings.Join(changed, "\n"), nil
}

// at reports whether the mutant's lines stand at line i.
func (m mutant) at(lines []string, i int) bool {
	if i+len(m.lines) > len(lines) {
		return false
	}
	for j, want := range m.lines {
		if strings.TrimSpace(lines[i+j]) != want {
			return false
		}
	}
	return true
}
