package devices

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/nodelet/nodelet/internal/listener"
	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/plugins"
)

const (
	socketName = "kubelet.sock"
	dirMode    = 0o750
)

// serve serves at the socket in a directory until ctx ends and server is stopped. If the socket fails, it is opened
// again. Unless the directory is cleared already, all sockets in it are removed first.
func (d *Devices) serve(ctx context.Context, server *grpc.Server, dir string, cleared bool) {
	d.background.Go(func() {
		listener.Serve(ctx, func() (net.Listener, error) {
			if err := plugins.MakeDir(dir, d.log); err != nil {
				return nil, err
			}
			if !cleared {
				if err := removeSockets(dir); err != nil {
					return nil, err
				}
				cleared = true
			}
			return listener.Unix(filepath.Join(dir, socketName), dirMode, 0)
		}, server.Serve, func(err error, retryIn time.Duration) {
			d.log.Error("cannot serve a socket for device plugins, remove what is in its place",
				"dir", dir, "err", err, "retryIn", retryIn)
		})
	})
}

// removeSockets removes the sockets that an earlier process and its plugins have left, so that the plugins register
// again.
func removeSockets(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Type()&os.ModeSocket == 0 {
			continue
		}
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove old socket: %w", err)
		}
	}
	return nil
}

// registrar serves the registration of plugins.
type registrar struct {
	api.UnimplementedRegistrationServer
	d *Devices
}

// Register connects to a plugin and answers when it has been reached.
func (r *registrar) Register(ctx context.Context, q *api.RegisterRequest) (*api.Empty, error) {
	err := check(q.ResourceName, q.Version)
	if err == nil {
		_, err = r.d.connect(ctx, q.ResourceName, filepath.Join(r.d.dir, q.Endpoint))
	}
	if err != nil {
		r.d.log.Warn("device plugin refused", "resource", q.ResourceName, "endpoint", q.Endpoint, "err", err)
		return nil, err
	}
	return &api.Empty{}, nil
}

// Accept connects to a plugin that has registered by a socket of its own; its name is its resource.
func (d *Devices) Accept(ctx context.Context, info plugins.Info) (dismiss func(context.Context), err error) {
	if err := check(info.Name, info.Versions...); err != nil {
		return nil, err
	}
	p, err := d.connect(ctx, info.Name, info.Endpoint)
	if err != nil {
		return nil, err
	}
	return func(context.Context) { p.cancel() }, nil
}

// check refuses plugins of another API version, and resources that are no extended resources.
func check(resource string, versions ...string) error {
	if !slices.ContainsFunc(versions, func(v string) bool { return slices.Contains(api.SupportedVersions[:], v) }) {
		return fmt.Errorf("requested API version %q is not supported by kubelet. Supported version is %q", versions,
			api.SupportedVersions)
	}
	native := podutil.IsNative(corev1.ResourceName(resource))
	quota := corev1.DefaultResourceRequestsPrefix
	if native || strings.HasPrefix(resource, quota) || len(validation.IsQualifiedName(quota+resource)) > 0 {
		return fmt.Errorf("the ResourceName %q is invalid: want a name of the form vendor-domain/resource", resource)
	}
	return nil
}
