// Package fake is the plugin's side of the registration in plugins_registry, for the fakes of what plugins serve: the
// sockets of a plugin, and what it sends and receives at the one by which it registers. It knows no interface of
// plugins. Only tests call it.
package fake

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// Plugin is the sockets of a plugin; its zero value serves none.
type Plugin struct {
	registration.UnimplementedRegistrationServer

	servers []*grpc.Server
	serving sync.WaitGroup
	info    *registration.PluginInfo

	mu       sync.Mutex
	statuses []*registration.RegistrationStatus
	refusal  error
}

// Serve serves at a socket until Close.
func (p *Plugin) Serve(server *grpc.Server, path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) { // of an earlier process that was killed
		return err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	p.servers = append(p.servers, server)
	p.serving.Go(func() { _ = server.Serve(l) })
	return nil
}

// Register serves the registration at a socket with info as the plugin.
func (p *Plugin) Register(path string, info *registration.PluginInfo) error {
	p.info = info
	server := grpc.NewServer()
	registration.RegisterRegistrationServer(server, p)
	return p.Serve(server, path)
}

// Close ends the plugin and its calls at once.
func (p *Plugin) Close() {
	for _, s := range p.servers {
		s.Stop()
	}
	p.serving.Wait()
}

// Registrations returns the registration statuses that the plugin has received.
func (p *Plugin) Registrations() []*registration.RegistrationStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.statuses)
}

// RefuseStatus sets what the plugin answers to registration statuses, which it records all the same.
func (p *Plugin) RefuseStatus(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refusal = err
}

// GetInfo is the registration's first call.
func (p *Plugin) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return p.info, nil
}

// NotifyRegistrationStatus is the registration's last call.
func (p *Plugin) NotifyRegistrationStatus(_ context.Context,
	s *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.statuses = append(p.statuses, s)
	return &registration.RegistrationStatusResponse{}, p.refusal
}
