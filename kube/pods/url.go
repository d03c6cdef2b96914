package pods

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/config"
	"github.com/nodelet/nodelet/internal/latest"
	"github.com/nodelet/nodelet/kube/pods/manifest"
)

// urlTimeout bounds one request, as in the kubelet.
const urlTimeout = 10 * time.Second

// urlSource is the state of the manifests at a URL.
type urlSource struct {
	file
	cfg    Config
	client *http.Client
	refs   references
	// running are the static pods that an earlier agent has left running, of all sources.
	running map[types.NamespacedName]Running
	last    *delivery
}

func newURLSource(cfg Config, running map[types.NamespacedName]Running) *urlSource {
	return &urlSource{
		cfg:     cfg,
		client:  &http.Client{Timeout: urlTimeout},
		refs:    newReferences(cfg.API, running),
		running: running,
	}
}

func (u *urlSource) run(ctx context.Context, out latest.Value[delivery]) {
	tick := time.NewTicker(u.cfg.URLCheck)
	defer tick.Stop()
	for {
		if state := u.check(ctx, time.Now()); u.last == nil || !u.last.same(state) {
			u.last = &state
			out.Put(state)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// check reads the URL and returns the state. While it cannot be read, or has no valid manifest, the pods keep running.
func (u *urlSource) check(ctx context.Context, now time.Time) delivery {
	data, err := u.get(ctx)
	switch {
	case err != nil:
		u.errs = []error{withoutLocalPort(err)}
	case len(data) == 0: // no pods, as in the kubelet
		u.file = file{everOK: true}
	default:
		origin := manifest.Origin{NodeName: u.cfg.NodeName, Source: string(SourceHTTP), Where: u.cfg.URL}
		u.parse(data, origin, u.running, now)
	}
	state := delivery{source: SourceHTTP, synced: u.everOK, configMaps: u.good.ConfigMaps, secrets: u.good.Secrets}
	where := config.WithoutPassword(u.cfg.URL)
	for _, err := range u.errs {
		state.problems = append(state.problems, Problem{
			Source:  SourceHTTP,
			File:    where,
			Message: err.Error(),
			Unknown: !u.everOK,
		})
	}
	for _, err := range u.good.Ignored {
		state.problems = append(state.problems, Problem{Source: SourceHTTP, File: where, Message: "ignored: " + err.Error()})
	}
	pods := make([]filePod, 0, len(u.good.Pods))
	for _, p := range u.good.Pods {
		pods = append(pods, filePod{p.Pod, where})
	}
	u.refs.admit(&state, pods)
	return state
}

func (u *urlSource) get(ctx context.Context) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.cfg.URL, nil)
	if err != nil {
		return nil, err
	}
	if u.cfg.URLHeader != nil {
		req.Header = u.cfg.URLHeader.Clone()
	}
	resp, err := u.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the server answered %s", resp.Status)
	}
	return io.ReadAll(io.LimitReader(resp.Body, manifest.MaxSize+1))
}

// localPort is the port in "127.0.0.1:52956->", this end of a connection.
var localPort = regexp.MustCompile(`:\d+->`)

// withoutLocalPort returns a network error without this end's port, which is another one in each attempt: the same
// failure is one problem.
func withoutLocalPort(err error) error {
	return errors.New(localPort.ReplaceAllString(err.Error(), "->"))
}
