// Command registrar tells the node agent of a CSI driver: it asks the driver for its name and serves the registration
// at /registration, which is the agent's plugins_registry. It takes the flags of the CSI project's
// node-driver-registrar.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

const registry = "/registration"

func main() {
	address := flag.String("csi-address", "/csi/csi.sock", "the driver's unix `socket`, as this program sees it")
	path := flag.String("kubelet-registration-path", "", "the driver's unix `socket`, as the node agent sees it")
	timeout := flag.Duration("timeout", time.Minute, "how `long` one question to the driver may take")
	_ = flag.String("v", "", "taken and left: this program says little")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := run(ctx, *address, *path, *timeout); err != nil {
		log.Fatalf("register the driver at %s: %v", *address, err)
	}
}

func run(ctx context.Context, address, path string, timeout time.Duration) error {
	name, err := driverName(ctx, address, timeout)
	if err != nil {
		return err
	}
	socket := filepath.Join(registry, name+"-reg.sock")
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	defer listener.Close() // it takes the socket away
	r := &registrar{name: name, path: path, refused: make(chan string, 1)}
	server := grpc.NewServer()
	registration.RegisterRegistrationServer(server, r)
	broken := make(chan error, 1)
	go func() { broken <- server.Serve(listener) }()
	select {
	case err := <-broken:
		return err
	case why := <-r.refused:
		return fmt.Errorf("the node agent refuses %s: %s", name, why)
	case <-ctx.Done():
		return nil
	}
}

// driverName asks until the driver answers: it may start later than this program.
func driverName(ctx context.Context, address string, timeout time.Duration) (string, error) {
	conn, err := grpc.NewClient("unix://"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return "", err
	}
	defer conn.Close()
	for ctx.Err() == nil {
		asked, cancel := context.WithTimeout(ctx, timeout)
		info, err := csi.NewIdentityClient(conn).GetPluginInfo(asked, &csi.GetPluginInfoRequest{}, grpc.WaitForReady(true))
		cancel()
		if err == nil {
			return info.GetName(), nil
		}
		log.Printf("ask the driver at %s for its name: %v", address, err)
	}
	return "", ctx.Err()
}

type registrar struct {
	registration.UnimplementedRegistrationServer
	name, path string
	refused    chan string
}

func (r *registrar) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{
		Type:              registration.CSIPlugin,
		Name:              r.name,
		Endpoint:          r.path,
		SupportedVersions: []string{"1.0.0"},
	}, nil
}

func (r *registrar) NotifyRegistrationStatus(_ context.Context,
	s *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	log.Printf("registered: %t %s", s.PluginRegistered, s.Error)
	if !s.PluginRegistered {
		select {
		case r.refused <- s.Error:
		default:
		}
	}
	return &registration.RegistrationStatusResponse{}, nil
}
