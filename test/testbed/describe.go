package testbed

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"
	"time"
)

// Logs lists the paths of the processes' logs.
func (tb *Testbed) Logs() ([]string, error) { return filepath.Glob(tb.log("*")) }

// Describe prints the testbed's processes and nodes, and the Node objects of the API server.
func (tb *Testbed) Describe(ctx context.Context, w io.Writer) error {
	s, err := readState(tb.stateFile())
	if err != nil {
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "testbed %s\t%s\tAPI server %s\n\n", tb.name, tb.dir(), tb.apiURL())
	fmt.Fprintln(t, "PROCESS\tPID\tSTATE\tLOG")
	for _, role := range slices.Sorted(maps.Keys(s.Procs)) {
		p := s.Procs[role]
		alive := "running"
		if !p.Alive() {
			alive = "EXITED"
		}
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\n", role, p.PID, alive, tb.log(role))
	}
	fmt.Fprintln(t, "\nNODE\tADDRESS\tNAMESPACE\tRUNTIME")
	for _, n := range tb.Nodes {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", n.Name, n.IP, n.Netns, n.Runtime.Endpoint)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, err := tb.Kubectl(ctx, "get", "nodes", "-o", "wide")
	if err != nil {
		return fmt.Errorf("list the nodes of the API server: %w", err)
	}
	_, err = fmt.Fprintf(w, "\n%s\n", out)
	return err
}

// KeepLogs copies the logs to a new directory below that of LogsEnv, before the testbed is removed, and says where.
func (tb *Testbed) KeepLogs(progress io.Writer) error {
	dir := os.Getenv(LogsEnv)
	if dir == "" {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	kept, err := os.MkdirTemp(dir, "logs-")
	if err != nil {
		return err
	}
	fmt.Fprintln(progress, "the logs of the testbed are in", kept)
	return os.CopyFS(kept, os.DirFS(tb.logDir()))
}
