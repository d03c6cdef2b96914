package endpoints

import (
	"errors"
	"fmt"
	"html"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const logsPath = "/logs/"

// Dir is a directory with logs, normally /var/log. Open opens a file or directory by its path below it and follows no
// symbolic link on the way: a pod that can write there could point one to any file.
type Dir interface {
	Open(name string) (*os.File, error)
}

// logsHandler serves the logs of the machine, with queries if they are on.
func (c *Config) logsHandler() http.Handler {
	switch {
	case !c.SystemLogs:
		return disabled("logs")
	case c.SystemLogQuery:
		return queryHandler(logsPath, c.Logs)
	}
	return filesHandler(logsPath, c.Logs)
}

// filesHandler serves the files of dir below prefix. Directories are shown as lists of links. Unlike the kubelet it
// follows no symbolic link.
func filesHandler(prefix string, dir Dir) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rest, ok := strings.CutPrefix(r.URL.Path, prefix)
		if !ok && r.URL.Path+"/" == prefix {
			rest, ok = "", true
		}
		if !ok {
			http.NotFound(w, r)
			return
		}
		if err := serveFile(w, r, dir, rest); err != nil {
			code := http.StatusInternalServerError
			if isNotFound(err) || errors.Is(err, unix.ELOOP) {
				code = http.StatusNotFound
			}
			http.Error(w, fmt.Sprintf("node log %q cannot be read", rest), code)
		}
	})
}

func isNotFound(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR)
}

func serveFile(w http.ResponseWriter, r *http.Request, dir Dir, name string) error {
	f, err := dir.Open(strings.TrimPrefix(path.Clean("/"+name), "/"))
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
		return fs.ErrNotExist
	}
	return writeList(w, f, r.URL.Path)
}

// writeList writes the entries of a directory as HTML. at is the path that the client has asked for: if it does not end
// with a slash, links are relative to the directory above.
func writeList(w http.ResponseWriter, dir *os.File, at string) error {
	base := ""
	if !strings.HasSuffix(at, "/") {
		base = path.Base(at) + "/"
	}
	entries, err := dir.ReadDir(-1)
	if err != nil {
		return err
	}
	var lines []string
	for _, e := range entries {
		n := e.Name()
		if e.IsDir() {
			n += "/"
		}
		link := (&url.URL{Path: base + n}).String() // a name with a colon must not become a scheme
		lines = append(lines, fmt.Sprintf("<a href=\"%s\">%s</a>\n", link, html.EscapeString(n)))
	}
	slices.Sort(lines)
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, err = io.WriteString(w, "<!doctype html>\n<pre>\n"+strings.Join(lines, "")+"</pre>\n")
	return err
}

// copyFirst writes the first of the files of dir that exists.
func copyFirst(w io.Writer, dir Dir, names ...string) error {
	for _, name := range names {
		f, err := dir.Open(name)
		if isNotFound(err) {
			continue
		}
		if err != nil {
			return err
		}
		defer f.Close()
		if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
			continue // /var/log/NAME may be the directory of NAME.log
		}
		_, err = io.Copy(w, f)
		return err
	}
	return fs.ErrNotExist
}
