package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// licenses are the notices of everything that is linked into a program.
type licenses []moduleLicense

// moduleLicense has the notices of one module, or of the Go standard library with the path "std".
type moduleLicense struct {
	path, version string
	spdx          string   // SPDX expression of the module's own license files
	notices       []notice // sorted by name
}

type notice struct {
	name string // relative to the module
	text string
}

// goPackage is what "go list -json" says of a package.
type goPackage struct {
	ImportPath, Dir string
	Standard        bool
	Module          *struct {
		Path, Version, Dir string
		Main               bool
	}
}

// licensesOf collects the notices of all modules with packages in the program. A module without a license, or with one
// that is not recognized, is an error: a person has to look at it.
func licensesOf(ctx context.Context, o options, arch string) (licenses, error) {
	out, err := output(ctx, o.root, goEnv(arch), "go", "list", "-deps", "-tags", o.tags,
		"-json=ImportPath,Dir,Standard,Module", "./cmd/nodelet")
	if err != nil {
		return nil, err
	}
	goroot, err := output(ctx, o.root, goEnv(arch), "go", "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	goVersion, err := output(ctx, o.root, goEnv(arch), "go", "env", "GOVERSION")
	if err != nil {
		return nil, err
	}
	std, err := readNotices("std", goVersion, goroot, map[string]bool{goroot: true})
	if err != nil {
		return nil, err
	}
	all := licenses{std}
	dirs := map[string]map[string]bool{} // of linked packages and those above them, by module
	modules := map[string]goPackage{}
	for d := json.NewDecoder(strings.NewReader(out)); ; {
		var p goPackage
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("read the output of go list: %w", err)
		}
		if p.Standard || p.Module.Main {
			continue
		}
		modules[p.Module.Path] = p
		if dirs[p.Module.Path] == nil {
			dirs[p.Module.Path] = map[string]bool{}
		}
		for dir := p.Dir; len(dir) >= len(p.Module.Dir); dir = filepath.Dir(dir) {
			dirs[p.Module.Path][dir] = true
		}
	}
	for _, path := range slices.Sorted(maps.Keys(modules)) {
		m, err := readNotices(path, modules[path].Module.Version, modules[path].Module.Dir, dirs[path])
		if err != nil {
			return nil, err
		}
		all = append(all, m)
	}
	return all, nil
}

// noticeFile matches the names of files with license texts and notices.
var noticeFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents)([-.](md|txt|libyaml|[a-z]+))?$`)

// readNotices reads the notices in the directories of a module.
func readNotices(path, version, root string, dirs map[string]bool) (moduleLicense, error) {
	m := moduleLicense{path: path, version: version}
	var own []string
	for _, dir := range slices.Sorted(maps.Keys(dirs)) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return m, err
		}
		for _, e := range entries {
			if e.IsDir() || !noticeFile.MatchString(e.Name()) || strings.HasSuffix(e.Name(), ".go") {
				continue
			}
			text, err := os.ReadFile(filepath.Join(dir, e.Name()))
			if err != nil {
				return m, err
			}
			name, err := filepath.Rel(root, filepath.Join(dir, e.Name()))
			if err != nil {
				return m, err
			}
			m.notices = append(m.notices, notice{name: name, text: string(text)})
			if dir == root {
				own = append(own, string(text))
			}
		}
	}
	m.spdx = classify(strings.Join(own, "\n"))
	if m.spdx == "" {
		return m, fmt.Errorf("find the license of %s %s: no known license in %s", path, version, root)
	}
	return m, nil
}

// phrases identify licenses. Texts are compared in lower case with single blanks.
var phrases = []struct{ spdx, phrase string }{
	{"Apache-2.0", "apache license version 2.0, january 2004"},
	{"Apache-2.0", "licensed under the apache license, version 2.0"},
	{"MIT", "permission is hereby granted, free of charge, to any person obtaining a copy"},
	{"ISC", "permission to use, copy, modify, and distribute this software for any purpose with or without fee"},
	{"ISC", "permission to use, copy, modify, and/or distribute this software for any purpose with or without fee"},
	{"MPL-2.0", "mozilla public license version 2.0"},
	{"MPL-2.0", "mozilla public license, version 2.0"},
}

// classify returns the SPDX expression of the licenses in a text, or "" if it has none that is known.
func classify(text string) string {
	text = strings.ToLower(strings.Join(strings.Fields(text), " "))
	found := map[string]bool{}
	for _, p := range phrases {
		if strings.Contains(text, p.phrase) {
			found[p.spdx] = true
		}
	}
	for _, part := range strings.Split(text, "redistribution and use in source and binary forms")[1:] {
		found[bsd(part)] = true
	}
	return strings.Join(slices.Sorted(maps.Keys(found)), " AND ")
}

// bsd tells the variants of the BSD license apart by what follows their first sentence.
func bsd(text string) string {
	if strings.Contains(text, "neither the name") || strings.Contains(text, "may not be used to endorse") {
		return "BSD-3-Clause"
	}
	return "BSD-2-Clause"
}

// expression returns the SPDX expression of the program with all that is linked into it.
func (l licenses) expression() string {
	all := map[string]bool{"Apache-2.0": true}
	for _, m := range l {
		for part := range strings.SplitSeq(m.spdx, " AND ") {
			all[part] = true
		}
	}
	return strings.Join(slices.Sorted(maps.Keys(all)), " AND ")
}

// text returns all notices as one file. A text that several modules share stands in it once.
func (l licenses) text() []byte {
	users := map[string][]string{}
	var texts []string
	for _, m := range l {
		for _, n := range m.notices {
			if users[n.text] == nil {
				texts = append(texts, n.text)
			}
			users[n.text] = append(users[n.text], fmt.Sprintf("%s %s: %s", m.path, m.version, n.name))
		}
	}
	var out bytes.Buffer
	out.WriteString("nodelet contains the following modules of others, under the licenses below.\n\n")
	for _, m := range l {
		fmt.Fprintf(&out, "%s %s: %s\n", m.path, m.version, m.spdx)
	}
	for _, text := range texts {
		fmt.Fprintf(&out, "\n%s\n%s\n%s\n\n%s\n", strings.Repeat("=", 80), strings.Join(users[text], "\n"),
			strings.Repeat("-", 80), strings.TrimRight(text, "\n"))
	}
	return out.Bytes()
}
