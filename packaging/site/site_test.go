package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// tree writes a source tree with these files and returns its directory.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		if err := put(root, name, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// TestSite checks the links between pages, to headings and to other files, and the index of the search.
func TestSite(t *testing.T) {
	root, out := tree(t, map[string]string{
		"README.md":      "# Top\n[docs](docs/README.md) [code](docs/x.yaml) [web](https://example.org)\n",
		"docs/README.md": "# Docs\nintro\n\n## A *new* part\nbody `code`\n\n| a | b |\n|---|---|\n| 1 | 2 |\n",
		"docs/x.yaml":    "",
		"docs/i/x.png":   "picture",
		"docs/d/deep.md": "![x](../i/x.png) [part](../README.md#a-new-part) [dir](../../docs)\n\n" +
			"## None yet\n[self](#none-yet)\n",
	}), t.TempDir()
	if err := build(root, out); err != nil {
		t.Fatal(err)
	}
	for name, wants := range map[string][]string{
		"index.html": {`href="docs/index.html"`, `href="` + repository + `docs/x.yaml"`, `href="https://example.org"`},
		"docs/d/deep.html": {
			`href="../../docs/index.html#a-new-part"`, `href="../../docs/index.html"`,
			`href="../../docs/d/deep.html#none-yet"`, `href="../../style.css"`, `src="../../docs/i/x.png"`,
		},
		"docs/i/x.png":    {"picture"},
		"docs/index.html": {`<h2 id="a-new-part">`, "<td>1</td>"},
		"search-index.js": {`"u":"docs/index.html#a-new-part","p":"Docs","h":"A new part","t":"body code a b 1 2"`},
	} {
		text, err := os.ReadFile(filepath.Join(out, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range wants {
			if !strings.Contains(string(text), want) {
				t.Errorf("%s: got\n%s\nwant %s in it", name, text, want)
			}
		}
	}
}

// TestLinksLeadSomewhere checks that links to pages, headings and files that do not exist are errors.
func TestLinksLeadSomewhere(t *testing.T) {
	for _, link := range []string{"missing.md", "README.md#missing", "#missing", "missing.yaml", "../outside.md"} {
		root := tree(t, map[string]string{"docs/README.md": "# Docs\n[x](" + link + ")\n"})
		err := build(root, t.TempDir())
		if err == nil || !strings.Contains(err.Error(), "docs/README.md: link to "+link) {
			t.Errorf("%s: got error %v, want one that names it", link, err)
		}
	}
	err := build(tree(t, map[string]string{"docs/README.md": "# Docs\n![x](missing.png)\n"}), t.TempDir())
	if err == nil || !strings.Contains(err.Error(), "docs/README.md: image missing.png") {
		t.Errorf("image: got error %v, want one that names it", err)
	}
}

// TestPages checks that the site of this repository can be made.
func TestPages(t *testing.T) {
	if err := build("../..", t.TempDir()); err != nil {
		t.Error(err)
	}
}
