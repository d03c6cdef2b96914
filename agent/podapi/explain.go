package podapi

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nodelet/nodelet/agent"
)

// explainSocket is the name of the socket below the root directory; only root can connect to it.
const explainSocket = "nodelet.sock"

// ServeExplain answers Explain for the agent with this root directory, with what explain returns, until ctx ends.
func ServeExplain(
	ctx context.Context, rootDir string, explain func(context.Context) ([]*agent.Explanation, error), log *slog.Logger,
) {
	path := filepath.Join(rootDir, explainSocket)
	err := os.Remove(path)
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	var listener net.Listener
	if err == nil {
		listener, err = net.Listen("unix", path)
	}
	if err == nil {
		err = os.Chmod(path, 0o600)
	}
	if err != nil {
		log.Warn("cannot serve nodelet explain", "err", err)
		return
	}
	server := &http.Server{ReadHeaderTimeout: 5 * time.Second, Handler: explainHandler(explain)}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		log.Warn("nodelet explain is not served any more", "err", err)
	}
}

func explainHandler(explain func(context.Context) ([]*agent.Explanation, error)) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /explain", func(w http.ResponseWriter, r *http.Request) {
		all, err := explain(r.Context())
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(all)
	})
	return mux
}

// Explain asks the agent with this root directory what its pods are waiting for.
func Explain(ctx context.Context, rootDir string) ([]*agent.Explanation, error) {
	socket := filepath.Join(rootDir, explainSocket)
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		},
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://nodelet/explain", nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask the agent at %s: %w (is nodelet running with this --root-dir?)",
			socket, errors.Unwrap(err))
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		cause, _ := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
		return nil, fmt.Errorf("ask the agent at %s: %s", socket, cmp.Or(strings.TrimSpace(string(cause)), resp.Status))
	}
	var all []*agent.Explanation
	if err := json.NewDecoder(resp.Body).Decode(&all); err != nil {
		return nil, fmt.Errorf("read the agent's answer: %w", err)
	}
	return all, nil
}
