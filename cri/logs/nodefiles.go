package logs

import (
	"errors"
	"fmt"
	"html"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// NodeFiles serves the node's own logs: below prefix, such as /logs/, the files of a directory, normally /var/log. Directories
// are lists of links. Unlike the kubelet it follows no symbolic link: a pod that may write there could lead it to any file.
func NodeFiles(prefix, dir string) http.Handler {
	d := New(dir)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rest, ok := strings.CutPrefix(r.URL.Path, prefix)
		if !ok && r.URL.Path+"/" == prefix {
			rest, ok = "", true
		}
		if !ok {
			http.NotFound(w, r)
			return
		}
		if err := d.serveFile(w, r, strings.TrimSuffix(rest, "/")); err != nil {
			code := http.StatusInternalServerError
			if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) || errors.Is(err, errOutside) {
				code = http.StatusNotFound
			}
			http.Error(w, fmt.Sprintf("node log %q cannot be read", rest), code)
		}
	})
}

func (d *Dir) serveFile(w http.ResponseWriter, r *http.Request, name string) error {
	f, err := d.open(d.path+"/"+name, unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return err
	case info.Mode().IsRegular():
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		http.ServeContent(w, r, "", info.ModTime(), f)
		return nil
	case !info.IsDir():
		return unix.ENOENT
	}
	entries, err := f.ReadDir(-1)
	if err != nil {
		return err
	}
	var lines []string
	for _, e := range entries {
		n := e.Name()
		if e.IsDir() {
			n += "/"
		}
		lines = append(lines, fmt.Sprintf("<a href=\"%s\">%s</a>\n", (&url.URL{Path: n}).EscapedPath(), html.EscapeString(n)))
	}
	slices.Sort(lines)
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, err = fmt.Fprintf(w, "<!doctype html>\n<pre>\n%s</pre>\n", strings.Join(lines, ""))
	return err
}
