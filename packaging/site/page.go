package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/text"
)

// repository is where links to files that are no pages lead.
const repository = "https://github.com/nodelet/nodelet/blob/main/"

var markdown = goldmark.New(
	goldmark.WithExtensions(extension.GFM),
	goldmark.WithParserOptions(parser.WithAutoHeadingID()),
)

// page is a parsed Markdown file.
type page struct {
	name     string // path in the repository
	title    string
	source   []byte
	root     ast.Node
	sections []section // the first one is the text before the first heading below the title
}

// section is what the search finds: a heading and the text below it.
type section struct {
	ID, Heading, Text string
}

func parse(name string, source []byte) *page {
	p := &page{name: name, title: name, source: source, root: markdown.Parser().Parse(text.NewReader(source))}
	p.sections = []section{{}}
	var body strings.Builder
	end := func() {
		p.sections[len(p.sections)-1].Text = strings.Join(strings.Fields(body.String()), " ")
		body.Reset()
	}
	for n := p.root.FirstChild(); n != nil; n = n.NextSibling() {
		h, ok := n.(*ast.Heading)
		if !ok {
			plain(&body, n, source)
			continue
		}
		var heading strings.Builder
		plain(&heading, h, source)
		id, _ := h.AttributeString("id")
		end()
		if h.Level == 1 && p.title == name {
			p.title = strings.TrimSpace(heading.String())
		}
		p.sections = append(p.sections, section{ID: string(id.([]byte)), Heading: strings.TrimSpace(heading.String())})
	}
	end()
	return p
}

// plain writes the text of a node without its markup.
func plain(w *strings.Builder, n ast.Node, source []byte) {
	_ = ast.Walk(n, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		switch {
		case !entering && n.Type() == ast.TypeBlock:
			w.WriteByte(' ')
		case !entering:
		case n.Kind() == ast.KindText:
			t := n.(*ast.Text)
			w.Write(t.Segment.Value(source))
			if t.SoftLineBreak() || t.HardLineBreak() {
				w.WriteByte(' ')
			}
		case n.Kind() == ast.KindCodeBlock, n.Kind() == ast.KindFencedCodeBlock:
			w.Write(n.Lines().Value(source))
		}
		return ast.WalkContinue, nil
	})
}

// target returns the path of a page in the site.
func target(name string) string {
	dir, file := path.Split(name)
	if file == "README.md" {
		return dir + "index.html"
	}
	return dir + strings.TrimSuffix(file, ".md") + ".html"
}

// relative returns a link from one page of the site to another.
func relative(from, to string) string { return strings.Repeat("../", strings.Count(from, "/")) + to }

// link makes the links of a page those of the site, notes its images, and returns an error for each that leads nowhere.
func (s *site) link(p *page) (errs []error) {
	_ = ast.Walk(p.root, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if i, ok := n.(*ast.Image); ok && entering {
			name := path.Join(path.Dir(p.name), string(i.Destination))
			if _, err := fs.Stat(s.tree, name); err != nil {
				errs = append(errs, fmt.Errorf("%s: image %s: %w", p.name, i.Destination, err))
			}
			s.images = append(s.images, name)
			i.Destination = []byte(relative(p.name, name))
		}
		if l, ok := n.(*ast.Link); ok && entering {
			to, err := s.resolve(p, string(l.Destination))
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: link to %s: %w", p.name, l.Destination, err))
			}
			l.Destination = []byte(to)
		}
		return ast.WalkContinue, nil
	})
	return errs
}

func (s *site) resolve(p *page, link string) (string, error) {
	u, err := url.Parse(link)
	if err != nil || u.IsAbs() {
		return link, err
	}
	name := p.name
	if u.Path != "" {
		name = path.Join(path.Dir(p.name), u.Path)
	}
	if info, err := fs.Stat(s.tree, name); err != nil {
		return link, err
	} else if info.IsDir() && s.pages[name+"/README.md"] != nil {
		name += "/README.md"
	}
	to := s.pages[name]
	if to == nil {
		return repository + name, nil
	}
	anchor := ""
	if u.Fragment != "" {
		if !slices.ContainsFunc(to.sections, func(s section) bool { return s.ID == u.Fragment }) {
			return link, fmt.Errorf("%s has no heading %s", name, u.Fragment)
		}
		anchor = "#" + u.Fragment
	}
	return relative(p.name, target(name)) + anchor, nil
}

func (p *page) html() ([]byte, error) {
	var out bytes.Buffer
	err := markdown.Renderer().Render(&out, p.source, p.root)
	return out.Bytes(), err
}
