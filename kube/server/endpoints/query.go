package endpoints

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os/exec"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	maxTail = 100_000
	// maxServices and maxService bound the names that one query may ask for.
	maxServices = 4
	maxService  = 256
	// maxQueries bounds the queries that run journalctl at a time: it counts against the memory and CPUs of the agent.
	// turnTime is how long another one waits, queryTime how long one may take.
	maxQueries = 4
	turnTime   = 5 * time.Second
	queryTime  = 30 * time.Second
	// journalTime is how journalctl wants a point in time, in UTC.
	journalTime = "2006-01-02 15:04:05 UTC"
)

// serviceName matches the allowed names of services. journalctl can take none of them for an option.
var serviceName = regexp.MustCompile(`^[a-zA-Z0-9_.:@][a-zA-Z0-9\-_.:@]*$`)

// queryHandler serves the machine's logs by query, and files as filesHandler does (KEP-2258). ?query=NAME is the
// journal of a systemd service, or else the file NAME, NAME.log or NAME/NAME.log of dir; ?query=/FILE is a file of dir.
// sinceTime and untilTime (RFC 3339), tailLines, boot (0 is the current one, -1 the previous) and pattern (PCRE2)
// filter a journal.
func queryHandler(prefix string, dir Dir) http.Handler {
	files := filesHandler(prefix, dir)
	running := make(chan struct{}, maxQueries)
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
			q.serve(w, r, dir, running)
		}
	})
}

// query is a request for one file, or for the journals of some services.
type query struct {
	file     string
	services []string
	// filters are options for journalctl.
	filters []string
}

// parseQuery returns nil if the request has no query. An error names the parameter.
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
			return nil, fmt.Errorf(
				"query: %.64q is not the name of a service: at most %d letters, digits and -_.:@",
				name,
				maxService,
			)
		default:
			q.services = append(q.services, name)
		}
		names++
	}
	if err := q.options(v); err != nil {
		return nil, err
	}
	switch {
	case names == 0 && len(v["query"]) == 0 && len(q.filters) == 0:
		return nil, nil
	case names == 0:
		return nil, errors.New("query: must not be empty; name a service or a file")
	case q.file != "" && names > 1:
		return nil, errors.New("query: a file must be the only query")
	case q.file != "" && len(q.filters) > 0:
		return nil, errors.New("query: a file cannot be filtered; ask without options")
	case len(q.services) > maxServices:
		return nil, fmt.Errorf("query: at most %d services", maxServices)
	}
	return q, nil
}

// options reads the filters for a journal.
func (q *query) options(v url.Values) error {
	times := map[string]time.Time{}
	for _, o := range []struct{ name, option string }{{"sinceTime", "--since="}, {"untilTime", "--until="}} {
		if text := v.Get(o.name); text != "" {
			at, err := time.Parse(time.RFC3339, text)
			if err != nil {
				return fmt.Errorf("%s: %.64q is not a time such as %s", o.name, text, time.RFC3339)
			}
			times[o.name] = at
			q.filters = append(q.filters, o.option+at.UTC().Format(journalTime))
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
			q.filters = append(q.filters, o.option+strconv.Itoa(n))
		}
	}
	if text := v.Get("pattern"); text != "" {
		if _, err := syntax.Parse(text, syntax.Perl); err != nil {
			return fmt.Errorf("pattern: %w", err)
		}
		q.filters = append(q.filters, "--grep="+text)
	}
	return nil
}

// serve answers a query for journals when few enough others are running.
func (q *query) serve(w http.ResponseWriter, r *http.Request, dir Dir, running chan struct{}) {
	select {
	case running <- struct{}{}:
	case <-time.After(turnTime):
		w.Header().Set("Retry-After", strconv.Itoa(int(turnTime.Seconds())))
		http.Error(w, "too many queries at a time; try again", http.StatusTooManyRequests)
		return
	case <-r.Context().Done():
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), queryTime)
	defer cancel()
	context.AfterFunc(ctx, func() { <-running }) // not later: a client that reads nothing holds up the rest
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	q.write(ctx, w, dir)
}

// write writes the journals of the services that have one, then the files of the others. Errors are part of the text,
// because the answer has begun.
func (q *query) write(ctx context.Context, w io.Writer, dir Dir) {
	known := journalUnits(ctx)
	var units, others []string
	for _, name := range q.services {
		if unit := strings.TrimSuffix(name, ".service") + ".service"; slices.Contains(known, unit) ||
			slices.Contains(known, name) {
			units = append(units, "--unit="+name)
		} else {
			others = append(others, name)
		}
	}
	if len(units) > 0 {
		q.journal(ctx, w, units)
	}
	if len(others) > 0 && len(q.filters) > 0 {
		fmt.Fprintf(w, "\n%s: no such service in the journal, and log files cannot be filtered: ask again without options\n",
			strings.Join(others, ", "))
		return
	}
	for _, name := range others {
		if err := copyFirst(w, dir, name, name+".log", name+"/"+name+".log"); errors.Is(err, fs.ErrNotExist) {
			fmt.Fprintf(w, "\nlog not found for %s\n", name)
		} else if err != nil {
			fmt.Fprintf(w, "\nerror getting log for %s: %v\n", name, err)
		}
	}
}

// journalUnits returns the systemd units that have lines in the journal, nil if there is no journal.
func journalUnits(ctx context.Context) []string {
	out, err := exec.CommandContext(ctx, "journalctl", "--field=_SYSTEMD_UNIT").Output()
	if err != nil {
		return nil
	}
	return strings.Fields(string(out))
}

func (q *query) journal(ctx context.Context, w io.Writer, units []string) {
	args := slices.Concat([]string{"--utc", "--no-pager", "--output=short-precise"}, q.filters, units)
	cmd := exec.CommandContext(ctx, "journalctl", args...)
	cmd.Stdout, cmd.Stderr = w, w
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) { // journalctl has printed its own errors
		fmt.Fprintf(w, "\nerror: journal output not available: %v\n", err)
	}
}
