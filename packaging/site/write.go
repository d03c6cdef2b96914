package main

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"html/template"
	"io/fs"
	"os"
	"path"
	"path/filepath"
)

// assets are the layout of a page, its style and the search.
//
//go:embed layout.html style.css search.js
var assets embed.FS

var layout = template.Must(template.ParseFS(assets, "layout.html"))

// site is all pages, and the names of their images.
type site struct {
	tree   fs.FS
	pages  map[string]*page // by name
	order  []*page
	images []string
}

// entry is a section in the index of the search, which is a script so that it also works without a server.
type entry struct {
	URL     string `json:"u"`
	Page    string `json:"p"`
	Heading string `json:"h"`
	Text    string `json:"t"`
}

// item is a page in the navigation.
type item struct {
	URL, Title string
	Here       bool
}

func (s *site) write(out string) error {
	var index []entry
	for _, p := range s.order {
		for _, sec := range p.sections {
			u := target(p.name)
			if sec.ID != "" {
				u += "#" + sec.ID
			}
			if sec.Heading != "" || sec.Text != "" {
				index = append(index, entry{URL: u, Page: p.title, Heading: sec.Heading, Text: sec.Text})
			}
		}
		if err := s.writePage(out, p); err != nil {
			return err
		}
	}
	list, err := json.Marshal(index)
	if err != nil {
		return err
	}
	for _, name := range []string{"style.css", "search.js"} {
		if err := copyFile(out, assets, name); err != nil {
			return err
		}
	}
	for _, name := range s.images {
		if err := copyFile(out, s.tree, name); err != nil {
			return err
		}
	}
	fmt.Printf("%d pages, %d sections in the search, all links lead somewhere\n", len(s.order), len(index))
	return put(out, "search-index.js", append([]byte("const sections = "), list...))
}

func copyFile(out string, from fs.FS, name string) error {
	text, err := fs.ReadFile(from, name)
	if err != nil {
		return err
	}
	return put(out, name, text)
}

func (s *site) writePage(out string, p *page) error {
	body, err := p.html()
	if err != nil {
		return fmt.Errorf("render %s: %w", p.name, err)
	}
	var pages []item
	for _, other := range s.order {
		// The pages above and beside this one; docs/README.md lists the others.
		if dir := path.Dir(other.name); dir == "." || dir == "docs" || dir == path.Dir(p.name) {
			pages = append(pages, item{relative(p.name, target(other.name)), other.title, other == p})
		}
	}
	var text bytes.Buffer
	err = layout.Execute(&text, map[string]any{
		"Title": p.title,
		"Top":   relative(p.name, ""),
		"Pages": pages,
		"Body":  template.HTML(body),
	})
	if err != nil {
		return fmt.Errorf("render %s: %w", p.name, err)
	}
	return put(out, target(p.name), text.Bytes())
}

func put(dir, name string, text []byte) error {
	file := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o644)
}
