package fake

import (
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	health "k8s.io/kubelet/pkg/apis/dra-health/v1"
	"k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
)

// healthServer reports the health of a driver's devices.
type healthServer struct {
	health.UnimplementedDRAResourceHealthServer
	d *Driver
}

func (d *Driver) serveHealth(server *grpc.Server) {
	if slices.Contains(d.cfg.Services, health.DRAResourceHealthService) {
		health.RegisterDRAResourceHealthServer(server, healthServer{d: d})
	}
	if slices.Contains(d.cfg.Services, v1alpha1.DRAResourceHealthService) {
		v1alpha1.RegisterDRAResourceHealthServer(server,
			health.V1ServerWrapper{Server: healthServer{d: d}})
	}
}

// Report has the driver report the health of its devices, now and on each new stream.
func (d *Driver) Report(devices ...*health.DeviceHealth) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.report = &health.NodeWatchResourcesResponse{Devices: devices}
	close(d.reportChanged)
	d.reportChanged = make(chan struct{})
}

// EndReports ends all streams of reports with Unavailable. The driver reports again on the next.
func (d *Driver) EndReports() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.report = nil
	close(d.reportChanged)
	d.reportChanged = make(chan struct{})
}

// DeviceHealth makes a report about a device of pool "pool" that is valid for so many seconds.
func DeviceHealth(device string, status health.HealthStatus, message string, seconds int64) *health.DeviceHealth {
	return &health.DeviceHealth{
		Device:                    &health.DeviceIdentifier{PoolName: "pool", DeviceName: device},
		Health:                    status,
		Message:                   message,
		HealthCheckTimeoutSeconds: seconds,
	}
}

// NodeWatchResources sends each report until the caller is gone.
func (s healthServer) NodeWatchResources(_ *health.NodeWatchResourcesRequest,
	stream grpc.ServerStreamingServer[health.NodeWatchResourcesResponse]) error {
	sent := false
	for {
		s.d.mu.Lock()
		report, changed := s.d.report, s.d.reportChanged
		s.d.mu.Unlock()
		switch {
		case report != nil:
			if err := stream.Send(report); err != nil {
				return err
			}
			sent = true
		case sent:
			return status.Error(codes.Unavailable, "the driver has lost its devices")
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		}
	}
}
