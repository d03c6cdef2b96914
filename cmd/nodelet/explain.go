package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/nodelet/nodelet/agent"
)

// explainSocket is where the agent says what its pods wait for; only root can ask.
const explainSocket = "nodelet.sock"

// serveExplain answers `nodelet explain` until ctx ends.
func (n *nodelet) serveExplain(ctx context.Context) {
	path := filepath.Join(n.cfg.Paths.Root, explainSocket)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		n.log.Warn("cannot serve explain", "err", err)
		return
	}
	listener, err := net.Listen("unix", path)
	if err == nil {
		err = os.Chmod(path, 0o600)
	}
	if err != nil {
		n.log.Warn("cannot serve explain", "err", err)
		return
	}
	server := &http.Server{ReadHeaderTimeout: 5 * time.Second, Handler: explainHandler(n.supervisor, n.waitingForRuntime)}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		n.log.Warn("explain is not served any more", "err", err)
	}
}

// explainHandler asks the supervisor, unless waiting tells why that does not work yet.
func explainHandler(s *agent.Supervisor, waiting func() error) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /explain", func(w http.ResponseWriter, r *http.Request) {
		if err := waiting(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		all, err := s.Explain(r.Context())
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(all)
	})
	return mux
}

const explainUsage = `usage: nodelet explain [--root-dir DIR] [--json] [NAMESPACE/POD | POD]...

Shows what each pod on this node is doing and what it is waiting for.

  --json           print JSON
  --root-dir DIR   the agent's --root-dir (default /var/lib/kubelet)
`

// explain asks the agent on this node what its pods are waiting for, and prints it.
func explain(args []string, out io.Writer) error {
	flags := pflag.NewFlagSet("explain", pflag.ContinueOnError)
	rootDir := flags.String("root-dir", "/var/lib/kubelet", "")
	asJSON := flags.Bool("json", false, "")
	names, err := parse(flags, args)
	if err != nil {
		return err
	}
	all, err := askExplain(filepath.Join(*rootDir, explainSocket))
	if err != nil {
		return err
	}
	if len(names) > 0 {
		if all = named(all, names); len(all) == 0 {
			return fmt.Errorf("no pod on this node is called %s", strings.Join(names, " or "))
		}
	}
	if *asJSON {
		return json.NewEncoder(out).Encode(all)
	}
	agent.WriteExplanations(out, all, time.Now())
	return nil
}

func askExplain(socket string) ([]*agent.Explanation, error) {
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		}}}
	resp, err := client.Get("http://nodelet/explain")
	if err != nil {
		return nil, fmt.Errorf("ask the agent at %s: %w (is nodelet running with this --root-dir?)", socket, errors.Unwrap(err))
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		why, _ := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
		return nil, fmt.Errorf("ask the agent at %s: %s", socket, cmp.Or(strings.TrimSpace(string(why)), resp.Status))
	}
	var all []*agent.Explanation
	if err := json.NewDecoder(resp.Body).Decode(&all); err != nil {
		return nil, fmt.Errorf("read the agent's answer: %w", err)
	}
	return all, nil
}

func named(all []*agent.Explanation, names []string) []*agent.Explanation {
	var kept []*agent.Explanation
	for _, e := range all {
		for _, name := range names {
			if _, short, _ := strings.Cut(e.Pod, "/"); e.Pod == name || short == name {
				kept = append(kept, e)
			}
		}
	}
	return kept
}
