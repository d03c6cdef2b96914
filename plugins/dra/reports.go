package dra

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	healthapi "k8s.io/kubelet/pkg/apis/dra-health/v1"
	"k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"

	"github.com/nodelet/nodelet/internal/backoff"
)

const (
	// reportTimeout is how long a report of a device's health is valid if the driver does not say.
	reportTimeout = 30 * time.Second
	// watchAgain is after how long a driver is asked again for its reports.
	watchAgain = 5 * time.Second
	// maxReported bounds the devices whose health is kept for one instance of a driver.
	maxReported = 16384
)

// deviceKey identifies a device of a driver.
type deviceKey struct{ pool, device string }

// reports is what an instance of a driver has reported about the health of its devices. DRA.mu guards it.
type reports struct {
	d      *DRA
	driver string
	watch  func(context.Context) (grpc.ServerStreamingClient[healthapi.NodeWatchResourcesResponse], error)
	// known: a report has come, or the driver sends none.
	known   bool
	devices map[deviceKey]report
	// expiry fires when the first of the reports is no longer valid.
	expiry *time.Timer
}

// report is a driver's report about one device, valid until a time.
type report struct {
	status  corev1.ResourceHealthStatus
	message string
	until   time.Time
}

// reportsOf returns the reports of an instance of a driver; nil if it does not serve them, or if they are not needed.
func reportsOf(d *DRA, driver string, conn *grpc.ClientConn, services []string) *reports {
	var client healthapi.DRAResourceHealthClient
	switch {
	case !d.cfg.Health:
		return nil
	case slices.Contains(services, healthapi.DRAResourceHealthService):
		client = healthapi.NewDRAResourceHealthClient(conn)
	case slices.Contains(services, v1alpha1.DRAResourceHealthService):
		client = healthapi.V1Alpha1ClientWrapper{Client: v1alpha1.NewDRAResourceHealthClient(conn)}
	default:
		return nil
	}
	return &reports{
		d:      d,
		driver: driver,
		watch: func(ctx context.Context) (grpc.ServerStreamingClient[healthapi.NodeWatchResourcesResponse], error) {
			return client.NodeWatchResources(ctx, &healthapi.NodeWatchResourcesRequest{}, grpc.WaitForReady(true))
		},
		devices: map[deviceKey]report{},
	}
}

// run receives reports until ctx ends, or until the driver says that it has none.
func (r *reports) run(ctx context.Context) {
	for ctx.Err() == nil {
		stream, err := r.watch(ctx)
		for err == nil {
			var report *healthapi.NodeWatchResourcesResponse
			if report, err = stream.Recv(); err == nil {
				r.add(report.Devices)
			}
		}
		r.forget()
		if status.Code(err) == codes.Unimplemented {
			return
		}
		r.d.log.Debug("DRA driver sends no more reports of its devices' health", "driver", r.driver, "err", err)
		backoff.Sleep(ctx, watchAgain)
	}
}

// add stores a report. Devices that it does not mention keep their health until that expires.
func (r *reports) add(list []*healthapi.DeviceHealth) {
	r.change(func(now time.Time) {
		ignored := 0
		for _, one := range list {
			key := deviceKey{one.GetDevice().GetPoolName(), one.GetDevice().GetDeviceName()}
			if _, known := r.devices[key]; !known && len(r.devices) >= maxReported {
				ignored++
				continue
			}
			r.devices[key] = healthFrom(one, now)
		}
		if ignored > 0 {
			r.d.log.Warn("DRA driver reports the health of too many devices, ignoring the rest", "driver", r.driver,
				"limit", maxReported, "ignored", ignored)
		}
	})
}

func healthFrom(one *healthapi.DeviceHealth, now time.Time) report {
	h := report{status: corev1.ResourceHealthStatusUnknown, message: bounded(one.GetMessage())}
	switch one.GetHealth() {
	case healthapi.HealthStatus_HEALTHY:
		h.status = corev1.ResourceHealthStatusHealthy
	case healthapi.HealthStatus_UNHEALTHY:
		h.status = corev1.ResourceHealthStatusUnhealthy
	}
	timeout := reportTimeout
	if s := one.GetHealthCheckTimeoutSeconds(); s > 0 {
		timeout = time.Duration(min(s, int64((24*time.Hour).Seconds()))) * time.Second
	}
	h.until = now.Add(timeout)
	return h
}

// bounded shortens a message to what the API accepts.
func bounded(message string) string {
	const end = "..."
	if len(message) <= corev1.ResourceHealthMessageMaxLength {
		return message
	}
	return strings.ToValidUTF8(message[:corev1.ResourceHealthMessageMaxLength-len(end)], "") + end
}

// forget forgets all reports, because their stream has ended.
func (r *reports) forget() { r.change(func(time.Time) { clear(r.devices) }) }

// change changes the reports, drops those that are no longer valid, and notifies the pods whose devices have another
// health than before. At the end of the agent nothing changes.
func (r *reports) change(do func(now time.Time)) {
	d := r.d
	d.mu.Lock()
	if d.background.Ended() {
		d.mu.Unlock()
		return
	}
	before, known := maps.Clone(r.devices), r.known
	now := time.Now()
	do(now)
	r.known = true
	r.prune(now)
	chosen := allDevices
	if known {
		chosen = func(key deviceKey) bool { return before[key].differs(r.devices[key]) }
	}
	pods := d.claims.holders(r.driver, chosen)
	d.mu.Unlock()
	d.healthChanged(pods)
}

// differs reports whether two reports about a device show another health.
func (h report) differs(o report) bool {
	return h.status != o.status || h.message != o.message
}

// prune drops the reports that are no longer valid, and does so again when the next one will be.
func (r *reports) prune(now time.Time) {
	var next time.Time
	for key, h := range r.devices {
		switch {
		case !h.until.After(now):
			delete(r.devices, key)
		case next.IsZero() || h.until.Before(next):
			next = h.until
		}
	}
	if r.expiry != nil {
		r.expiry.Stop()
		r.expiry = nil
	}
	if !next.IsZero() {
		r.expiry = time.AfterFunc(next.Sub(now), func() { r.change(func(time.Time) {}) })
	}
}
