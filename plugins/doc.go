// Package plugins registers the plugins that leave a socket in <root-dir>/plugins_registry, as CSI drivers and device plugins
// do (k8s.io/kubelet/pkg/apis/pluginregistration).
//
// It owns the look at that directory and the two calls of the registration. What a plugin is for it never knows: the rooms that
// serve plugins of a type are its Handlers, and speak to them by themselves. cmd/nodelet wires it and runs Run.
//
// A crash leaves nothing behind: the sockets are there, and the next life registers their plugins anew.
package plugins

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
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
	// Accept makes a plugin known, or says why it cannot be; the plugin is told that. What it returns is called once when the
	// plugin's socket has gone; its ctx ends with the agent.
	Accept(ctx context.Context, p Info) (dismiss func(ctx context.Context), err error)
}

// Config says where plugins register and who serves them.
type Config struct {
	Root     string // the agent's root directory
	Handlers map[string]Handler
	Log      *slog.Logger // nil: nothing is logged
	// LookEvery is how often it is looked for plugins where their coming and going cannot be followed; zero means five seconds.
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
	return &Registry{dir: filepath.Join(cfg.Root, pluginsDir), handlers: cfg.Handlers, log: cfg.Log, lookEvery: cfg.LookEvery}
}

// maxMessage bounds what a plugin may answer.
const maxMessage = 4 << 20

// Dial prepares a connection to a plugin's socket; it is made by the first call.
func Dial(path string) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient("passthrough:///"+path,
		grpc.WithContextDialer(func(ctx context.Context, path string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"),
		grpc.WithDisableServiceConfig(), grpc.WithDisableHealthCheck(), grpc.WithNoProxy(), grpc.WithDisableRetry(),
		grpc.WithReadBufferSize(8<<10), grpc.WithWriteBufferSize(8<<10),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: 5 * time.Second,
			Backoff: backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 3 * time.Second}}),
	)
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", path, err)
	}
	return conn, nil
}
