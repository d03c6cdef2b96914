package cri

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/mem"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/internal/limiter"
	"github.com/nodelet/nodelet/internal/trace"
)

const (
	// defaultTimeout bounds a call where Options.Timeout is not set; it is the default of the KubeletConfiguration's
	// runtimeRequestTimeout.
	defaultTimeout = 2 * time.Minute
	// maxMessage is the longest message that is accepted from the runtime; the kubelet has the same bound.
	maxMessage = 16 << 20
)

// Options configure Dial. The zero value is what a kubelet without configuration does.
type Options struct {
	// ImageEndpoint is where the image service listens (KubeletConfiguration imageServiceEndpoint); empty means with the
	// runtime.
	ImageEndpoint string
	// Timeout bounds one call (KubeletConfiguration runtimeRequestTimeout); 0 means defaultTimeout.
	Timeout time.Duration
	// StreamLists asks for lists as streams, if the runtime has them (feature gate CRIListStreaming).
	StreamLists bool
	// Done, if set, receives the CRI name, duration and error of every finished call. Many goroutines call it; it must not
	// block.
	Done func(verb string, took time.Duration, err error)
	// Connect replaces the dialing of the socket at path, for tests; nil means a unix socket.
	Connect func(ctx context.Context, path string) (net.Conn, error)
	// Log receives a line when the event stream is lost or restored.
	Log *slog.Logger
}

// Client calls one container runtime. It is safe for use by many goroutines. Create it with Dial.
type Client struct {
	*caller
	images
	stats
	runtime runtimeapi.RuntimeServiceClient
	conns   []*grpc.ClientConn
	outputs outputs
	log     *slog.Logger
	// updates counts calls that may have changed the resources of a running container; see Snapshot.
	updates atomic.Uint64
	// mounted are the images of image volumes ([]string), by the ID of their container; see ImagesInUse.
	mounted sync.Map
}

// Dial returns a client for the runtime at endpoint, unix:///path/to/socket or, as the kubelet accepts it, the bare
// absolute path. It does not wait for the runtime: the first call connects. A lost connection is restored with a
// back-off of up to 3 s, during which calls fail at once; IsUnavailable reports these errors.
func Dial(endpoint string, o Options) (*Client, error) {
	if o.Done == nil {
		o.Done = func(string, time.Duration, error) {}
	}
	if o.Connect == nil {
		o.Connect = dialUnix
	}
	c := &Client{caller: newCaller(o), outputs: outputs{limiter.New(maxOutputs, maxOutputs, outputCountFor)}, log: o.Log}
	conn, err := c.connect("container runtime endpoint", endpoint, c.count(o.Connect))
	if err != nil {
		return nil, err
	}
	c.runtime = runtimeapi.NewRuntimeServiceClient(conn)
	c.stats = stats{c.caller, c.runtime}
	c.images = images{c.caller, runtimeapi.NewImageServiceClient(conn)}
	if o.ImageEndpoint == "" || o.ImageEndpoint == endpoint {
		return c, nil
	}
	own := newCaller(o)
	if conn, err = c.connect("image service endpoint", o.ImageEndpoint, own.count(o.Connect)); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	c.images = images{own, runtimeapi.NewImageServiceClient(conn)}
	return c, nil
}

// Connections returns how many connections to the runtime there have been. Another number after a call than before
// means that the runtime may have been replaced.
func (c *Client) Connections() uint64 { return c.connections.Load() }

// Close closes the connections. Calls in flight fail with an error that IsCanceled reports.
func (c *Client) Close() error {
	var errs []error
	for _, conn := range c.conns {
		errs = append(errs, conn.Close())
	}
	return errors.Join(errs...)
}

func (c *Client) connect(what, endpoint string, dial dialer) (*grpc.ClientConn, error) {
	path, err := socketPath(endpoint)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	conn, err := grpc.NewClient("passthrough:///"+path, append(dialOptions(), grpc.WithContextDialer(dial),
		grpc.WithChainUnaryInterceptor(c.outputs.intercept))...)
	if err != nil {
		return nil, fmt.Errorf("%s %q: %w", what, endpoint, err)
	}
	c.conns = append(c.conns, conn)
	return conn, nil
}

// count returns dial with connections counted. Behind each may be another run of the endpoint, which may have streams.
func (c *caller) count(dial dialer) dialer {
	return func(ctx context.Context, path string) (net.Conn, error) {
		conn, err := dial(ctx, path)
		if err == nil {
			c.connections.Add(1)
			c.streams.Store(c.streamLists)
		}
		return conn, err
	}
}

type dialer = func(ctx context.Context, path string) (net.Conn, error)

func dialUnix(ctx context.Context, path string) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, "unix", path)
}

// dialOptions returns options for one local process: there is no name to resolve, no service configuration, no proxy
// and no bandwidth to probe, and buffers are returned between calls. At most 4 MiB are on the way here, 1 MiB of
// them of one call. The back-off has the multiplier and the jitter of gRPC's own.
func dialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"),
		grpc.WithDisableServiceConfig(),
		grpc.WithUnaryInterceptor(trace.CallInterceptor),
		grpc.WithDisableHealthCheck(),
		grpc.WithNoProxy(),
		grpc.WithDisableRetry(),
		grpc.WithIdleTimeout(0),
		experimental.WithBufferPool(buffers()),
		grpc.WithReadBufferSize(8 << 10),
		grpc.WithWriteBufferSize(8 << 10),
		grpc.WithStaticStreamWindowSize(1 << 20),
		grpc.WithStaticConnWindowSize(4 << 20),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.ForceCodecV2(newCodec(buffers()))),
		grpc.WithConnectParams(grpc.ConnectParams{
			MinConnectTimeout: 5 * time.Second,
			Backoff: backoff.Config{
				BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 3 * time.Second,
			},
		}),
	}
}

// buffers returns the pool of buffers for messages. gRPC's own pool takes 1 MiB for each message over 32 KiB, and the
// lists of a node with 60 pods are longer than that; this one has the powers of two between as well.
var buffers = sync.OnceValue(func() mem.BufferPool {
	pool, err := mem.NewBinaryTieredBufferPool(8, 12, 14, 15, 16, 17, 18, 19, 20)
	if err != nil {
		panic(err) // the sizes are constants that gRPC accepts
	}
	return pool
})

// socketPath returns the path of the unix socket of an endpoint.
func socketPath(endpoint string) (string, error) {
	if filepath.IsAbs(endpoint) {
		return endpoint, nil
	}
	u, err := url.Parse(endpoint)
	switch {
	case endpoint == "":
		return "", errors.New("is empty; set it to the socket of the runtime, such as unix:///run/containerd/containerd.sock")
	case err != nil:
		return "", fmt.Errorf("is not a URL: %w", err)
	case u.Scheme != "unix":
		return "", fmt.Errorf("%q: only unix sockets are supported; use unix:///path/to/the.sock", endpoint)
	case u.Host != "" || !filepath.IsAbs(u.Path):
		return "", fmt.Errorf("%q: the path of the socket must be absolute; use three slashes, unix:///path/to/the.sock",
			endpoint)
	}
	return u.Path, nil
}

// codec is gRPC's codec for protobuf with another pool. To decode a message of several frames gRPC joins them in a
// buffer of its own pool, whatever the pool of the connection is.
type codec struct {
	encoding.CodecV2
	pool mem.BufferPool
}

func newCodec(pool mem.BufferPool) codec { return codec{encoding.GetCodecV2(proto.Name), pool} }

// Name returns no name, because gRPC appends it to the content type. CRI-O closes a connection whose content type is
// not application/grpc alone.
func (codec) Name() string { return "" }

// Unmarshal decodes the message in data into v.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	joined := data.MaterializeToBuffer(c.pool)
	defer joined.Free()
	return c.CodecV2.Unmarshal(mem.BufferSlice{joined}, v)
}

// sockets are where container runtimes usually listen.
var sockets = []string{
	"/run/containerd/containerd.sock", "/run/crio/crio.sock", "/run/k3s/containerd/containerd.sock",
}

// Sockets returns the usual endpoints below root that exist, apart from endpoint. An empty root means /.
func Sockets(root, endpoint string) []string {
	own, _ := socketPath(endpoint)
	var found []string
	for _, path := range sockets {
		info, err := os.Stat(filepath.Join("/", root, path))
		if err == nil && info.Mode()&os.ModeSocket != 0 && path != own {
			found = append(found, "unix://"+path)
		}
	}
	return found
}
