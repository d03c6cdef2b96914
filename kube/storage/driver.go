package storage

import (
	"context"
	"fmt"
	"sync"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodelet/nodelet/internal/latest"
	"github.com/nodelet/nodelet/kube/watch"
)

// driversTimeout is how long a step waits for the first list of CSIDrivers.
const driversTimeout = 15 * time.Second

// drivers are the CSIDriver objects; a cluster has few.
type drivers struct {
	begin sync.Once
	known chan struct{} // closed when byName holds the state
	// byName is guarded by Storage.mu.
	byName map[string]*storagev1.CSIDriver
	// changed is closed, and replaced, when one of them has changed. Guarded by Storage.mu.
	changed chan struct{}
	err     error // of the last attempt to watch them
}

// Driver returns a CSIDriver, with the API's defaults for fields that are not set; one that does not exist has only
// defaults.
func (s *Storage) Driver(ctx context.Context, name string) (*storagev1.CSIDriver, error) {
	s.watchDrivers()
	timeout := time.NewTimer(driversTimeout)
	defer timeout.Stop()
	select {
	case <-s.drivers.known:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-timeout.C:
		s.mu.Lock()
		defer s.mu.Unlock()
		return nil, fmt.Errorf("cannot read CSIDriver %s: CSIDrivers are not listed yet: %w", name, s.drivers.err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if d := s.drivers.byName[name]; d != nil {
		return d, nil
	}
	return withDefaults(&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: name}}), nil
}

func (s *Storage) watchDrivers() {
	s.drivers.begin.Do(func() {
		s.alive.Go(func() {
			watch.Target{Client: s.cfg.Storage, Resource: "csidrivers"}.Follow(s.ctx, driverSink{s})
		})
	})
}

// LimitPeriod returns after which period a driver has to be asked again how many volumes the node can have
// (nodeAllocatableUpdatePeriodSeconds), 0 for never, and a channel that is closed when that may have changed. It waits
// until the CSIDrivers are known, and returns an error only if ctx ends.
func (s *Storage) LimitPeriod(ctx context.Context, driver string) (time.Duration, <-chan struct{}, error) {
	s.watchDrivers()
	select {
	case <-s.drivers.known:
	case <-ctx.Done():
		return 0, nil, ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return limitPeriod(s.drivers.byName[driver]), s.drivers.changed, nil
}

// limitPeriod returns 0 without a CSIDriver.
func limitPeriod(d *storagev1.CSIDriver) time.Duration {
	if d == nil || d.Spec.NodeAllocatableUpdatePeriodSeconds == nil {
		return 0
	}
	return time.Duration(*d.Spec.NodeAllocatableUpdatePeriodSeconds) * time.Second
}

// withDefaults sets the fields that the API server would default in a CSIDriver.
func withDefaults(d *storagev1.CSIDriver) *storagev1.CSIDriver {
	yes, no := true, false
	policy := storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy
	if d.Spec.AttachRequired == nil {
		d.Spec.AttachRequired = &yes
	}
	for _, flag := range []**bool{
		&d.Spec.PodInfoOnMount, &d.Spec.RequiresRepublish, &d.Spec.SELinuxMount, &d.Spec.ServiceAccountTokenInSecrets,
	} {
		if *flag == nil {
			*flag = &no
		}
	}
	if d.Spec.FSGroupPolicy == nil {
		d.Spec.FSGroupPolicy = &policy
	}
	if len(d.Spec.VolumeLifecycleModes) == 0 {
		d.Spec.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent}
	}
	return d
}

type driverSink struct{ s *Storage }

func (k driverSink) Replace(objs []metav1.Object) {
	k.change(func(byName map[string]*storagev1.CSIDriver) {
		clear(byName)
		for _, o := range objs {
			if d, ok := o.(*storagev1.CSIDriver); ok {
				byName[d.Name] = withDefaults(d)
			}
		}
	})
	if !latest.Closed(k.s.drivers.known) {
		close(k.s.drivers.known)
	}
}

func (k driverSink) Set(o metav1.Object) {
	if d, ok := o.(*storagev1.CSIDriver); ok {
		k.change(func(byName map[string]*storagev1.CSIDriver) { byName[d.Name] = withDefaults(d) })
	}
}

func (k driverSink) Delete(o metav1.Object) {
	k.change(func(byName map[string]*storagev1.CSIDriver) { delete(byName, o.GetName()) })
}

// change changes the CSIDrivers and tells those who wait for that.
func (k driverSink) change(do func(byName map[string]*storagev1.CSIDriver)) {
	k.s.mu.Lock()
	defer k.s.mu.Unlock()
	do(k.s.drivers.byName)
	close(k.s.drivers.changed)
	k.s.drivers.changed = make(chan struct{})
}

func (k driverSink) Trouble(err error) {
	k.s.mu.Lock()
	k.s.drivers.err = err
	k.s.mu.Unlock()
	if err != nil {
		k.s.cfg.Log.Info("cannot watch CSIDrivers, retrying", "err", err)
	}
}
