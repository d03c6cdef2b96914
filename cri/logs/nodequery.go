package logs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	maxTail = 100_000
	// maxServices and maxService bound the names that one query may ask for.
	maxServices = 4
	maxService  = 256
	// queryTime is how long one query may take.
	queryTime = 30 * time.Second
	// journalTime is how journalctl wants a point in time, in UTC.
	journalTime = "2006-01-02 15:04:05 UTC"
)

// serviceName is all that may stand in the name of a service: nothing that journalctl takes for something else.
var serviceName = regexp.MustCompile(`^[a-zA-Z0-9_.:@][a-zA-Z0-9\-_.:@]*$`)

// NodeQuery serves the node's logs by query beside NodeFiles (KEP-2258): ?query=NAME is the journal of a systemd service, or else
// the file NAME, NAME.log or NAME/NAME.log of dir; ?query=/FILE is a file of dir. A journal is narrowed down by sinceTime and
// untilTime (RFC 3339), tailLines, boot (0 is this one, -1 the one before) and pattern (PCRE2).
func NodeQuery(prefix, dir string) http.Handler {
	files := NodeFiles(prefix, dir)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q, err := parseQuery(r.URL.Query())
		switch {
		case err != nil:
			http.Error(w, err.Error(), http.StatusBadRequest)
		case q == nil:
			files.ServeHTTP(w, r)
		case strings.Trim(strings.TrimPrefix(r.URL.Path, strings.TrimSuffix(prefix, "/")), "/") != "":
			http.Error(w, "path not allowed in query mode", http.StatusNotAcceptable)
		case q.file != "":
			r = r.Clone(r.Context())
			r.URL.Path = prefix + strings.TrimLeft(q.file, "/")
			files.ServeHTTP(w, r)
		default:
			ctx, cancel := context.WithTimeout(r.Context(), queryTime)
			defer cancel()
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			w.Header().Set("X-Content-Type-Options", "nosniff")
			q.write(ctx, w, New(dir))
		}
	})
}

// query is what somebody wants of the node's logs: one file, or the journals of some services.
type query struct {
	file     string
	services []string
	// narrow are the options for journalctl.
	narrow []string
}

// parseQuery reads a query; nil where there is none. An error names the parameter.
func parseQuery(v url.Values) (*query, error) {
	q := &query{}
	names := 0
	for _, name := range v["query"] {
		switch {
		case strings.TrimSpace(name) == "":
			continue
		case strings.ContainsAny(name, `/\`):
			q.file = strings.ReplaceAll(name, `\`, "/")
		case len(name) > maxService || !serviceName.MatchString(name):
			return nil, fmt.Errorf("query: %.64q is not the name of a service: at most %d letters, digits and -_.:@", name, maxService)
		default:
			q.services = append(q.services, name)
		}
		names++
	}
	if err := q.options(v); err != nil {
		return nil, err
	}
	switch {
	case names == 0 && len(v["query"]) == 0 && len(q.narrow) == 0:
		return nil, nil
	case names == 0:
		return nil, errors.New("query: may not be empty; name a service or a file")
	case q.file != "" && names > 1:
		return nil, errors.New("query: a file must be asked for alone")
	case q.file != "" && len(q.narrow) > 0:
		return nil, errors.New("query: a file is given as a whole, without options")
	case len(q.services) > maxServices:
		return nil, fmt.Errorf("query: at most %d services", maxServices)
	}
	return q, nil
}

// options reads what narrows a journal down.
func (q *query) options(v url.Values) error {
	times := map[string]time.Time{}
	for _, o := range []struct{ name, option string }{{"sinceTime", "--since="}, {"untilTime", "--until="}} {
		if text := v.Get(o.name); text != "" {
			at, err := time.Parse(time.RFC3339, text)
			if err != nil {
				return fmt.Errorf("%s: %.64q is no time of the form %s", o.name, text, time.RFC3339)
			}
			times[o.name] = at
			q.narrow = append(q.narrow, o.option+at.UTC().Format(journalTime))
		}
	}
	if since, until := times["sinceTime"], times["untilTime"]; !until.IsZero() && since.After(until) {
		return errors.New("untilTime: must be after `sinceTime`")
	}
	for _, o := range []struct {
		name, option string
		least, most  int
	}{{"tailLines", "--lines=", 0, maxTail}, {"boot", "--boot=", -1 << 31, 0}} {
		if text := v.Get(o.name); text != "" {
			n, err := strconv.Atoi(text)
			if err != nil || n < o.least || n > o.most {
				return fmt.Errorf("%s: %.64q is not a number from %d to %d", o.name, text, o.least, o.most)
			}
			q.narrow = append(q.narrow, o.option+strconv.Itoa(n))
		}
	}
	if text := v.Get("pattern"); text != "" {
		if _, err := syntax.Parse(text, syntax.Perl); err != nil {
			return fmt.Errorf("pattern: %w", err)
		}
		q.narrow = append(q.narrow, "--grep="+text)
	}
	return nil
}

// write gives the journals of the services that have one, then the files of the others. What fails is said in the text, for that
// has begun.
func (q *query) write(ctx context.Context, w io.Writer, d *Dir) {
	known := journalUnits(ctx)
	var units, others []string
	for _, name := range q.services {
		if unit := strings.TrimSuffix(name, ".service") + ".service"; slices.Contains(known, unit) || slices.Contains(known, name) {
			units = append(units, "--unit="+name)
		} else {
			others = append(others, name)
		}
	}
	if len(units) > 0 {
		q.journal(ctx, w, units)
	}
	if len(others) > 0 && len(q.narrow) > 0 {
		fmt.Fprintf(w, "\n%s: no such service in the journal, and log files cannot be narrowed down: ask again without options\n",
			strings.Join(others, ", "))
		return
	}
	for _, name := range others {
		if err := d.copyFirst(w, name, name+".log", name+"/"+name+".log"); errors.Is(err, fs.ErrNotExist) {
			fmt.Fprintf(w, "\nlog not found for %s\n", name)
		} else if err != nil {
			fmt.Fprintf(w, "\nerror getting log for %s: %v\n", name, err)
		}
	}
}

// journalUnits are the systemd units that the journal has lines of; none where there is no journal.
func journalUnits(ctx context.Context) []string {
	out, err := exec.CommandContext(ctx, "journalctl", "--field=_SYSTEMD_UNIT").Output()
	if err != nil {
		return nil
	}
	return strings.Fields(string(out))
}

func (q *query) journal(ctx context.Context, w io.Writer, units []string) {
	cmd := exec.CommandContext(ctx, "journalctl", slices.Concat([]string{"--utc", "--no-pager", "--output=short-precise"}, q.narrow, units)...)
	cmd.Stdout, cmd.Stderr = w, w
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) { // of a failure journalctl itself tells
		fmt.Fprintf(w, "\nerror: journal output not available: %v\n", err)
	}
}

// copyFirst writes the first of the files that exists.
func (d *Dir) copyFirst(w io.Writer, names ...string) error {
	for _, name := range names {
		f, err := d.open(d.path+"/"+name, unix.O_RDONLY)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
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
	return os.ErrNotExist
}
