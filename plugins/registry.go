package plugins

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/nodelet/nodelet/host/inotify"
)

const (
	pluginsDir = "plugins_registry"
	// infoTimeout bounds the two calls of the registration itself.
	infoTimeout = 10 * time.Second
	// A plugin that could not be registered is tried again while its socket is there.
	registerFirst = 500 * time.Millisecond
	registerMax   = 2 * time.Minute
)

// Info is what a plugin says of itself, and where it is reached.
type Info struct {
	Type, Name string
	// Versions are those of the interface that its type stands for.
	Versions []string
	// Endpoint is the path of the socket on which it serves that interface.
	Endpoint string
}

// Handler serves the plugins of one type.
type Handler interface {
	// Accept makes a plugin known, or says why it cannot be; the plugin is told that. What it returns is called once when
	// the plugin's socket has gone; its ctx ends with the agent.
	Accept(ctx context.Context, p Info) (dismiss func(ctx context.Context), err error)
}

// Config says where plugins register and who serves them.
type Config struct {
	Root     string // the agent's root directory
	Handlers map[string]Handler
	Log      *slog.Logger // nil: nothing is logged
	// LookEvery is how often it is looked for plugins where their coming and going cannot be followed; zero means five
	// seconds.
	LookEvery time.Duration
}

// Registry registers plugins.
type Registry struct {
	dir       string
	handlers  map[string]Handler
	log       *slog.Logger
	lookEvery time.Duration
}

// New makes a registry; nothing is called before Run.
func New(cfg Config) *Registry {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.LookEvery == 0 {
		cfg.LookEvery = 5 * time.Second
	}
	return &Registry{dir: filepath.Join(cfg.Root, pluginsDir), handlers: cfg.Handlers, log: cfg.Log,
		lookEvery: cfg.LookEvery}
}

// Run follows the sockets by which plugins register, until ctx ends. Where changes cannot be followed, for want of an
// inotify instance as a rule, it looks now and then, and tries again.
func (r *Registry) Run(ctx context.Context) {
	known := map[string]*plugin{}
	defer func() {
		for _, p := range known {
			p.end()
		}
	}()
	for last := ""; ; {
		err := r.follow(ctx, known)
		if ctx.Err() != nil {
			return
		}
		if err.Error() != last {
			r.log.Error("cannot watch the directory of plugins, polling it "+
				"(is the sysctl fs.inotify.max_user_instances too low?)",
				"dir", r.dir, "err", err, "interval", r.lookEvery)
			last = err.Error()
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(r.lookEvery):
		}
	}
}

// follow looks for plugins at each change below the directory: a look at all of it, for there are few sockets. It ends
// with ctx, or at once, after one look, where changes cannot be followed.
func (r *Registry) follow(ctx context.Context, known map[string]*plugin) error {
	if err := os.MkdirAll(r.dir, 0o755); err != nil {
		return err
	}
	watcher, err := inotify.New()
	if err != nil {
		r.look(ctx, known, func(string) error { return nil })
		return err
	}
	defer watcher.Close()
	for {
		r.look(ctx, known, watcher.Add)
		if !settle(ctx, watcher) {
			return ctx.Err()
		}
	}
}

// look brings the registrations in line with the sockets that there are.
func (r *Registry) look(ctx context.Context, known map[string]*plugin, watch func(dir string) error) {
	r.compare(ctx, known, sockets(r.dir, watch, func(err error) {
		r.log.Warn("cannot look for plugins everywhere", "dir", r.dir, "err", err)
	}))
}

// settle waits for a change.
func settle(ctx context.Context, watcher *inotify.Watcher) bool {
	select {
	case <-ctx.Done():
		return false
	case <-watcher.Changes():
		return true
	}
}

// sockets finds all sockets below dir, with what tells one socket from a later one at the same path, and has the
// directories watched. Hidden ones are no plugins.
func sockets(dir string, watch func(dir string) error, trouble func(error)) map[string]string {
	found := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // it went while we looked
		case err != nil:
			return err
		case path != dir && strings.HasPrefix(e.Name(), "."):
			if e.IsDir() {
				return filepath.SkipDir
			}
			return nil
		case e.IsDir():
			return watch(path)
		case e.Type()&fs.ModeSocket == 0:
			return nil
		}
		var st unix.Stat_t
		if unix.Lstat(path, &st) == nil {
			found[path] = strconv.FormatUint(st.Ino, 10) + " " + strconv.FormatInt(st.Ctim.Nano(), 10)
		}
		return nil
	})
	if err != nil {
		trouble(err)
	}
	return found
}

// plugin is the registration of one socket.
type plugin struct {
	socket, identity string
	cancel           context.CancelFunc
	gone             chan struct{}
}

func (p *plugin) end() {
	p.cancel()
	<-p.gone
}

// compare begins with new sockets and ends with those that have gone or have been made anew.
func (r *Registry) compare(ctx context.Context, known map[string]*plugin, found map[string]string) {
	for socket, p := range known {
		if found[socket] != p.identity {
			p.end()
			delete(known, socket)
		}
	}
	for socket, identity := range found {
		if known[socket] != nil {
			continue
		}
		p := &plugin{socket: socket, identity: identity, gone: make(chan struct{})}
		var own context.Context
		own, p.cancel = context.WithCancel(ctx)
		known[socket] = p
		go func() {
			defer close(p.gone)
			r.keep(own, ctx, p.socket)
		}()
	}
}

// keep registers the plugin at a socket and holds it until ctx ends; life is the agent's.
func (r *Registry) keep(ctx, life context.Context, socket string) {
	for wait := registerFirst; ; wait = min(2*wait, registerMax) {
		dismiss, err := r.register(ctx, socket)
		if err == nil {
			<-ctx.Done()
			dismiss(life)
			return
		}
		if ctx.Err() != nil {
			return
		}
		r.log.Warn("cannot register a plugin, trying again", "socket", socket, "err", err, "after", wait)
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// register speaks the registration protocol once.
func (r *Registry) register(ctx context.Context, socket string) (dismiss func(context.Context), err error) {
	conn, err := Dial(socket)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	client := registration.NewRegistrationClient(conn)
	asking, cancel := context.WithTimeout(ctx, infoTimeout)
	defer cancel()
	info, err := client.GetInfo(asking, &registration.InfoRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return nil, fmt.Errorf("ask the plugin who it is: %w", err)
	}
	dismiss, err = r.accept(ctx, info, socket)
	s := &registration.RegistrationStatus{PluginRegistered: err == nil}
	if err != nil {
		s.Error = err.Error()
	}
	telling, cancel := context.WithTimeout(ctx, infoTimeout)
	defer cancel()
	if _, tellErr := client.NotifyRegistrationStatus(telling, s); tellErr != nil && err == nil {
		r.log.Warn("the plugin did not take the news that it is registered", "plugin", info.Name, "err", tellErr)
	}
	return dismiss, err
}

// accept hands a plugin to the room that serves its type.
func (r *Registry) accept(ctx context.Context, info *registration.PluginInfo,
	socket string) (func(context.Context), error) {
	handler := r.handlers[info.Type]
	if handler == nil {
		return nil, fmt.Errorf("plugins of type %q are not served by this node agent", info.Type)
	}
	endpoint := strings.TrimPrefix(cmp.Or(info.Endpoint, socket), "unix://")
	return handler.Accept(ctx, Info{Type: info.Type, Name: info.Name, Versions: info.SupportedVersions,
		Endpoint: endpoint})
}
