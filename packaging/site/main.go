// Command site makes a static site from the Markdown pages of the repository: HTML with a navigation and a search that
// works in the browser, without a server and without a request to another site. "make site" calls it.
//
// It reads the pages and writes the output directory. It fails if a link leads to a page, a heading or a file that does
// not exist. Links to other files of the repository lead to GitHub.
//
// It is a module of its own, so that its libraries are no dependency of nodelet.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
)

func main() {
	root := flag.String("root", ".", "source tree")
	out := flag.String("out", "site", "directory for the site")
	flag.Parse()
	if err := build(*root, *out); err != nil {
		fmt.Fprintln(os.Stderr, "site:", err)
		os.Exit(1)
	}
}

func build(root, out string) error {
	tree := os.DirFS(root)
	names, err := pageNames(tree)
	if err != nil {
		return err
	}
	s := &site{tree: tree, pages: map[string]*page{}}
	for _, name := range names {
		text, err := fs.ReadFile(tree, name)
		if err != nil {
			return err
		}
		s.pages[name] = parse(name, text)
		s.order = append(s.order, s.pages[name])
	}
	var errs []error
	for _, p := range s.order {
		errs = append(errs, s.link(p)...)
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	return s.write(out)
}

// pageNames lists the pages: those at the top and all below docs, the more general ones first.
func pageNames(tree fs.FS) ([]string, error) {
	names, err := fs.Glob(tree, "*.md")
	if err != nil {
		return nil, err
	}
	err = fs.WalkDir(tree, "docs", func(name string, _ fs.DirEntry, err error) error {
		if path.Ext(name) == ".md" {
			names = append(names, name)
		}
		return err
	})
	slices.SortStableFunc(names, func(a, b string) int {
		if d := strings.Count(a, "/") - strings.Count(b, "/"); d != 0 {
			return d
		}
		return strings.Compare(a, b)
	})
	return names, err
}
