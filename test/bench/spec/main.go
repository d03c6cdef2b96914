// Command spec checks the promises of SPECIFICATION.md against records of the benchmark. It also writes
// docs/performance.md.
//
// It reads the promises from the tables of SPECIFICATION.md, so that each promise has one home. It never measures;
// test/bench writes the records. `make spec` calls it. It exits with 1 if a promise is broken or was not measured.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"text/tabwriter"

	"github.com/nodelet/nodelet/test/bench/figures"
)

func main() {
	promises := flag.String("promises", "SPECIFICATION.md", "the file with the tables of promises")
	page := flag.String("page", "", "do not check; write this Markdown page from the records, with pictures beside it")
	flag.Usage = func() {
		fmt.Fprintf(os.Stderr, "usage: spec [flags] RECORD.json...\n\n"+
			"Checks the promises against the records, which \"test/bench -json\" writes.\n\n")
		flag.PrintDefaults()
	}
	flag.Parse()
	if err := run(*promises, *page, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "spec:", err)
		os.Exit(1)
	}
}

func run(promisesFile, page string, files []string) error {
	records, err := load(files)
	if err != nil {
		return err
	}
	if page != "" {
		return writePage(page, records)
	}
	text, err := os.ReadFile(promisesFile)
	if err != nil {
		return fmt.Errorf("read promises: %w", err)
	}
	promises, err := figures.ParsePromises(text)
	if err != nil {
		return fmt.Errorf("parse %s: %w", promisesFile, err)
	}
	if len(promises) == 0 {
		return fmt.Errorf("parse %s: no table of promises", promisesFile)
	}
	return check(os.Stdout, promises, records)
}

func load(files []string) ([]*figures.Record, error) {
	if len(files) == 0 {
		return nil, fmt.Errorf("no records given; write them with \"test/bench -json\"")
	}
	var records []*figures.Record
	for _, file := range files {
		r, err := figures.Load(file)
		if err != nil {
			return nil, err
		}
		records = append(records, r)
	}
	return records, nil
}

// check prints each promise with its figure. It returns an error if one is broken or has no figure. If a kind of run
// has several records, the last counts.
func check(w io.Writer, promises []figures.Promise, records []*figures.Record) error {
	last := map[string]*figures.Record{}
	for _, r := range records {
		last[r.Run] = r
	}
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(t, "\tbound\tfigure\tpromise")
	broken := 0
	for _, p := range promises {
		verdict, figure := judge(p, last[p.Run])
		if verdict != kept {
			broken++
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", verdict, p.BoundText(), figure, p.Text)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if broken > 0 {
		return fmt.Errorf("%d of %d promises are broken or were not measured", broken, len(promises))
	}
	return nil
}

// The verdicts on a promise.
const (
	kept        = "kept"
	brokenBound = "BROKEN"
	notMeasured = "NOT MEASURED"
)

// judge returns the verdict on a promise, and its figure or the reason why it has none. r is nil if there was no run of
// the promise's kind.
func judge(p figures.Promise, r *figures.Record) (verdict, figure string) {
	if r == nil {
		return notMeasured, fmt.Sprintf("no record of a run %q", p.Run)
	}
	value, err := p.Value(r)
	if err != nil {
		return notMeasured, err.Error()
	}
	if !p.Keeps(value) {
		return brokenBound, fmt.Sprintf("%.2f", value)
	}
	return kept, fmt.Sprintf("%.2f", value)
}
