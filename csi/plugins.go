package csi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/nodelet/nodelet/inotify"
)

const (
	pluginsDir = "plugins_registry"
	// infoTimeout bounds the two calls of the registration itself.
	infoTimeout = 10 * time.Second
	// A driver that could not be registered is tried again while its socket is there.
	registerFirst = 500 * time.Millisecond
	registerMax   = 2 * time.Minute
	csiType       = "CSIPlugin"
)

// watchPlugins follows the sockets by which plugins register (k8s.io/kubelet/pkg/apis/pluginregistration), until ctx ends.
// Any change below the directory means a look at all of it: there are few sockets.
func (c *CSI) watchPlugins(ctx context.Context) {
	dir := c.files.abs(pluginsDir)
	known := map[string]*plugin{}
	defer func() {
		for _, p := range known {
			p.end()
		}
	}()
	watcher, err := inotify.New()
	if err == nil {
		defer watcher.Close()
		err = os.MkdirAll(dir, 0o755)
	}
	if err != nil {
		c.log.Error("plugins cannot register; is there room for another inotify watch?", "dir", dir, "err", err)
		return
	}
	for {
		c.comparePlugins(ctx, known, sockets(dir, watcher, func(err error) {
			c.log.Warn("cannot look for plugins everywhere", "dir", dir, "err", err)
		}))
		if !settle(ctx, watcher) {
			return
		}
	}
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

// sockets finds all sockets below dir, with what tells one socket from a later one at the same path, and has watcher watch
// the directories. Hidden ones are no plugins.
func sockets(dir string, watcher *inotify.Watcher, trouble func(error)) map[string]string {
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
			return watcher.Add(path)
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

// comparePlugins begins with new sockets and ends with those that have gone or have been made anew.
func (c *CSI) comparePlugins(ctx context.Context, known map[string]*plugin, found map[string]string) {
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
			c.keep(own, ctx, p.socket)
		}()
	}
}

// keep registers the plugin at a socket and holds it until ctx ends; life is the agent's.
func (c *CSI) keep(ctx, life context.Context, socket string) {
	for wait := registerFirst; ; wait = min(2*wait, registerMax) {
		d, err := c.register(ctx, socket)
		if err == nil && d != nil {
			c.log.Info("CSI driver is registered", "driver", d.name, "node", d.info.NodeID)
			<-ctx.Done()
			c.dismiss(life, d)
			return
		}
		if ctx.Err() != nil {
			return
		}
		c.log.Warn("cannot register a plugin, trying again", "socket", socket, "err", err, "after", wait)
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// register speaks the registration protocol once.
func (c *CSI) register(ctx context.Context, socket string) (*driver, error) {
	conn, err := dial(socket)
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
	d, err := c.accept(ctx, info, socket)
	s := &registration.RegistrationStatus{PluginRegistered: err == nil}
	if err != nil {
		s.Error = err.Error()
	}
	telling, cancel := context.WithTimeout(ctx, infoTimeout)
	defer cancel()
	if _, tellErr := client.NotifyRegistrationStatus(telling, s); tellErr != nil && err == nil {
		c.log.Warn("the driver did not take the news that it is registered", "driver", info.Name, "err", tellErr)
	}
	return d, err
}

// accept makes a plugin known, if it is a driver that this agent can work with.
func (c *CSI) accept(ctx context.Context, info *registration.PluginInfo, socket string) (*driver, error) {
	if info.Type != csiType {
		return nil, fmt.Errorf("plugins of type %q are not served by this node agent", info.Type)
	}
	if err := checkName("CSI driver", info.Name); err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(info.SupportedVersions, isVersion1) {
		return nil, fmt.Errorf("CSI driver %s speaks versions %q of the CSI specification; 1.x is needed", info.Name, info.SupportedVersions)
	}
	endpoint := info.Endpoint
	if endpoint == "" {
		endpoint = socket
	}
	d, err := c.connect(ctx, info.Name, strings.TrimPrefix(endpoint, "unix://"), socket)
	if err != nil {
		return nil, err
	}
	if c.cfg.Registered != nil {
		if err := c.cfg.Registered(ctx, d.info); err != nil {
			return nil, errors.Join(err, d.conn.Close())
		}
	}
	c.admit(d)
	return d, nil
}

// isVersion1: a version of the form 1.x or 1.x.y, with or without a v before it.
func isVersion1(v string) bool {
	v = strings.TrimPrefix(v, "v")
	return v == "1" || strings.HasPrefix(v, "1.")
}
