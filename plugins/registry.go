package plugins

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/nodelet/nodelet/host/inotify"
	"github.com/nodelet/nodelet/internal/backoff"
	"github.com/nodelet/nodelet/internal/latest"
)

const (
	// registryDir is where plugins register, pluginsDir where they have their own sockets and mounts. Their pods mount
	// both, many only if they exist.
	registryDir = "plugins_registry"
	pluginsDir  = "plugins"
	// infoTimeout bounds each of the two calls of the registration.
	infoTimeout = 10 * time.Second
	// registerFirst and registerMax bound the time between two attempts to register a plugin.
	registerFirst = 500 * time.Millisecond
	registerMax   = 2 * time.Minute
)

// Info is what a plugin has registered with.
type Info struct {
	Type, Name string
	// Versions are the supported versions of the API of its type.
	Versions []string
	// Endpoint is the path of the socket on which it serves that API.
	Endpoint string
}

// Handler serves the plugins of one type.
type Handler interface {
	// Accept makes a plugin known or returns why it cannot be, which is reported to the plugin. dismiss is called once
	// after the plugin's socket is gone; its ctx ends with the agent.
	Accept(ctx context.Context, p Info) (dismiss func(ctx context.Context), err error)
}

// Config says where plugins register and who serves them.
type Config struct {
	Root     string // the agent's root directory
	Handlers map[string]Handler
	// Connected returns the plugins of a type that may also register in another way.
	Connected map[string]func() []string
	Log       *slog.Logger
	// PollInterval is the longest time between two looks at the directory while it cannot be watched; zero means five
	// seconds.
	PollInterval time.Duration
}

// Registry registers plugins.
type Registry struct {
	root, dir    string
	handlers     map[string]Handler
	connected    map[string]func() []string
	log          *slog.Logger
	pollInterval time.Duration
	// dismissed says that a plugin has been dismissed: another may be at its socket.
	dismissed latest.Signal

	mu sync.Mutex
	// served are the sockets that were found, with the plugins there that their handlers serve; nil: none yet.
	served map[string]*Info
}

// New returns a registry. Nothing is called before Run.
func New(cfg Config) *Registry {
	return &Registry{root: cfg.Root, dir: filepath.Join(cfg.Root, registryDir), handlers: cfg.Handlers,
		connected: cfg.Connected, log: cfg.Log,
		pollInterval: cmp.Or(cfg.PollInterval, 5*time.Second), dismissed: latest.NewSignal(), served: map[string]*Info{}}
}

// Names returns the names of the plugins that are served now, by type, in no order. One with several sockets is there
// several times.
func (r *Registry) Names() map[string][]string {
	all := map[string][]string{}
	r.mu.Lock()
	for _, p := range r.served {
		if p != nil {
			all[p.Type] = append(all[p.Type], p.Name)
		}
	}
	r.mu.Unlock()
	for kind, names := range r.connected {
		all[kind] = names()
	}
	return all
}

// Sockets returns the sockets at which plugins register, and whether the plugin of each is served now.
func (r *Registry) Sockets() map[string]bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make(map[string]bool, len(r.served))
	for socket, p := range r.served {
		all[socket] = p != nil
	}
	return all
}

// setServed notes the plugin at a socket: nil for one that is not served yet.
func (r *Registry) setServed(socket string, p *Info) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.served[socket] = p
}

// forget forgets a socket.
func (r *Registry) forget(socket string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.served, socket)
}

// Run registers and dismisses plugins until ctx ends. While it cannot watch the directory, normally because no
// inotify instance is free, it polls and tries to watch again.
func (r *Registry) Run(ctx context.Context) {
	known := map[string]*plugin{}
	defer func() {
		for _, p := range known {
			p.end()
		}
	}()
	backoff.Repeat(ctx, r.pollInterval, func() error { return r.follow(ctx, known) },
		func(err error, retryIn time.Duration) {
			r.log.Error("cannot watch the directory of plugins, polling it "+
				"(is the sysctl fs.inotify.max_user_instances too low?)", "dir", r.dir, "err", err, "retryIn", retryIn)
		})
}

// follow looks for plugins at each change below the directory. It returns when ctx ends, or after one look if there is
// no inotify instance.
func (r *Registry) follow(ctx context.Context, known map[string]*plugin) error {
	for _, dir := range []string{filepath.Join(r.root, pluginsDir), r.dir} {
		if err := MakeDir(dir, r.log); err != nil {
			return err
		}
	}
	w, err := inotify.New()
	if err != nil {
		_ = r.look(ctx, known, func(string) error { return nil }) // the caller looks again in any case
		return err
	}
	defer w.Close()
	return r.followWith(ctx, known, w)
}

// watcher is an *inotify.Watcher.
type watcher interface {
	Add(dir string) error
	Changes() <-chan inotify.Change
}

// followWith looks at each change that w reports until ctx ends. It reads all of the directory, for there are few
// sockets. While not all of it can be watched, it polls too.
func (r *Registry) followWith(ctx context.Context, known map[string]*plugin, w watcher) error {
	for last := ""; ; {
		var again <-chan time.Time
		problem := ""
		if err := r.look(ctx, known, w.Add); err != nil {
			again, problem = time.After(r.pollInterval), err.Error()
		}
		if problem != "" && problem != last {
			r.log.Warn("cannot watch all directories of plugins, polling them", "dir", r.dir, "err", problem,
				"interval", r.pollInterval)
		}
		last = problem
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.Changes():
		case <-r.dismissed:
		case <-again:
		}
	}
}

// look registers the plugins of new sockets and dismisses those whose sockets are gone. An error says that there may be
// more sockets, or that it will not be noticed when there are.
func (r *Registry) look(ctx context.Context, known map[string]*plugin, watch func(dir string) error) error {
	first := watch(r.root) // the directory may be removed, and made again or replaced by a link
	found, err := sockets(r.dir, watch)
	r.compare(ctx, known, found)
	return cmp.Or(first, err)
}

// sockets returns all sockets below dir, and links to sockets as in the kubelet, each with an identity that no later
// socket or link at the same path shares. It calls watch for each directory. Hidden sockets are not plugins. What can
// be neither read nor watched does not end the search; the first such error is returned.
func sockets(dir string, watch func(dir string) error) (found map[string]string, first error) {
	root := dir + "/" // the directory that a link leads to
	found = map[string]string{}
	trouble := func(path string, err error) {
		if first == nil && (path == root || !errors.Is(err, fs.ErrNotExist)) { // else removed meanwhile
			first = err
		}
	}
	_ = filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			trouble(path, err)
		case path != root && strings.HasPrefix(e.Name(), "."):
			if e.IsDir() {
				return filepath.SkipDir
			}
		case e.IsDir():
			if err := watch(path); err != nil {
				trouble(path, err)
			}
		case e.Type()&(fs.ModeSocket|fs.ModeSymlink) != 0:
			id, socket, err := identity(path)
			if err != nil {
				trouble(path, err)
			} else if socket {
				found[path] = id
			}
		}
		return nil
	})
	return found, first
}

// identity identifies the socket to which a path leads, and reports whether there is one. For a link it begins with the
// identity of the link, which is all of it while the link leads to nothing. A change of its owner, mode or label does
// not change an identity, unless the file system does not say when its files were made.
func identity(path string) (id string, socket bool, err error) {
	own, err := stat(path, unix.AT_SYMLINK_NOFOLLOW)
	if err != nil || !isType(own, unix.S_IFLNK) {
		return inode(own), isType(own, unix.S_IFSOCK), err
	}
	target, err := stat(path, 0)
	return inode(own) + inode(target), isType(target, unix.S_IFSOCK), err
}

// inode returns a text that no other file shares, also none that has the same inode later; empty if there is no file.
func inode(st unix.Statx_t) string {
	if st.Mask == 0 {
		return ""
	}
	made := st.Ctime
	if st.Mask&unix.STATX_BTIME != 0 {
		made = st.Btime
	}
	return fmt.Sprintf("%d %d.%09d ", st.Ino, made.Sec, made.Nsec)
}

// stat returns what statx(2) says of a path: nothing if it does not exist or leads to nothing.
func stat(path string, flags int) (st unix.Statx_t, err error) {
	const want = unix.STATX_TYPE | unix.STATX_INO | unix.STATX_BTIME | unix.STATX_CTIME
	switch err := unix.Statx(unix.AT_FDCWD, path, flags, want, &st); {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return unix.Statx_t{}, nil
	case err != nil:
		return unix.Statx_t{}, &fs.PathError{Op: "statx", Path: path, Err: err}
	}
	return st, nil
}

func isType(st unix.Statx_t, fileType uint16) bool { return st.Mode&unix.S_IFMT == fileType }

// plugin is the registration of one socket.
type plugin struct {
	socket, identity string
	cancel           context.CancelFunc
	gone             chan struct{} // closed when the plugin has been dismissed
}

func (p *plugin) end() {
	p.cancel()
	<-p.gone
}

// there reports whether the plugin's socket has not gone and was not replaced; found is the identity of what was found
// at its path, empty if that is nothing.
func (p *plugin) there(found string) bool {
	if found != "" {
		return found == p.identity
	}
	now, _, err := identity(p.socket)
	return err != nil || now != "" && strings.HasPrefix(p.identity, now)
}

// compare registers new sockets and dismisses those that are gone or were replaced. One that was not found, because its
// directory could not be read, or its link leads to nothing now, is not gone. A dismissal may take a while: only the
// next plugin at its socket waits for it.
func (r *Registry) compare(ctx context.Context, known map[string]*plugin, found map[string]string) {
	for socket, p := range known {
		if !p.there(found[socket]) {
			p.cancel()
		}
		if latest.Closed(p.gone) { // even if its socket has come back meanwhile
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
		r.setServed(socket, nil)
		go func() {
			r.keep(own, ctx, p.socket)
			r.forget(p.socket)
			close(p.gone)
			r.dismissed.Set()
		}()
	}
}

// keep registers the plugin at a socket and keeps it until ctx ends. agent ends with the agent.
func (r *Registry) keep(ctx, agent context.Context, socket string) {
	var dismiss func(context.Context)
	defer func() {
		if dismiss != nil {
			dismiss(agent)
		}
	}()
	for wait := registerFirst; ; wait = min(2*wait, registerMax) {
		err := r.register(ctx, socket, &dismiss)
		if err == nil {
			<-ctx.Done()
		}
		if ctx.Err() != nil {
			return
		}
		r.log.Warn("cannot register a plugin, trying again", "socket", socket, "err", err, "retryIn", wait)
		if !backoff.Sleep(ctx, wait) {
			return
		}
	}
}

// register makes the two calls of the registration. It sets dismiss once the handler has accepted the plugin, which is
// not asked again where only the second call has failed.
func (r *Registry) register(ctx context.Context, socket string, dismiss *func(context.Context)) error {
	conn, err := Dial(socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	client := registration.NewRegistrationClient(conn)
	asking, cancel := context.WithTimeout(ctx, infoTimeout)
	defer cancel()
	info, err := client.GetInfo(asking, &registration.InfoRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return fmt.Errorf("get info of the plugin: %w", err)
	}
	if *dismiss == nil {
		*dismiss, err = r.accept(ctx, info, socket)
	}
	s := &registration.RegistrationStatus{PluginRegistered: err == nil}
	if err != nil {
		s.Error = err.Error()
	}
	notifying, cancel := context.WithTimeout(ctx, infoTimeout)
	defer cancel()
	if _, notifyErr := client.NotifyRegistrationStatus(notifying, s); notifyErr != nil && err == nil {
		return fmt.Errorf("notify plugin %s that it is registered: %w", info.Name, notifyErr)
	}
	return err
}

// accept passes a plugin to the handler of its type.
func (r *Registry) accept(ctx context.Context, info *registration.PluginInfo,
	socket string) (func(context.Context), error) {
	handler := r.handlers[info.Type]
	if handler == nil {
		return nil, fmt.Errorf("plugins of type %q are not served by this node agent", info.Type)
	}
	endpoint := strings.TrimPrefix(cmp.Or(info.Endpoint, socket), "unix://")
	p := Info{Type: info.Type, Name: info.Name, Versions: info.SupportedVersions, Endpoint: endpoint}
	dismiss, err := handler.Accept(ctx, p)
	if err == nil {
		r.setServed(socket, &p)
	}
	return dismiss, err
}
