package storage

import (
	"context"
	"fmt"
	"sync"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodelet/nodelet/kube/watch"
)

// driversPatience is how long a step waits for the first list of CSIDrivers.
const driversPatience = 15 * time.Second

// drivers are the CSIDriver objects; a cluster has few.
type drivers struct {
	begin sync.Once
	known chan struct{} // closed when byName holds the state
	// byName is guarded by Storage.mu.
	byName map[string]*storagev1.CSIDriver
	err    error // of the last attempt to watch them
}

// Driver returns a CSIDriver, with the API's defaults for fields that are not set; one that does not exist has only
// defaults.
func (s *Storage) Driver(ctx context.Context, name string) (*storagev1.CSIDriver, error) {
	s.drivers.begin.Do(func() {
		s.alive.Go(func() {
			watch.Target{Client: s.cfg.Storage, Resource: "csidrivers"}.Follow(s.ctx, driverSink{s})
		})
	})
	patience := time.NewTimer(driversPatience)
	defer patience.Stop()
	select {
	case <-s.drivers.known:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-patience.C:
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

// withDefaults sets the fields that the API server would default in a CSIDriver.
func withDefaults(d *storagev1.CSIDriver) *storagev1.CSIDriver {
	yes, no, policy := true, false, storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy
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
	k.s.mu.Lock()
	defer k.s.mu.Unlock()
	clear(k.s.drivers.byName)
	for _, o := range objs {
		if d, ok := o.(*storagev1.CSIDriver); ok {
			k.s.drivers.byName[d.Name] = withDefaults(d)
		}
	}
	select {
	case <-k.s.drivers.known:
	default:
		close(k.s.drivers.known)
	}
}

func (k driverSink) Set(o metav1.Object) {
	if d, ok := o.(*storagev1.CSIDriver); ok {
		k.s.mu.Lock()
		defer k.s.mu.Unlock()
		k.s.drivers.byName[d.Name] = withDefaults(d)
	}
}

func (k driverSink) Delete(o metav1.Object) {
	k.s.mu.Lock()
	defer k.s.mu.Unlock()
	delete(k.s.drivers.byName, o.GetName())
}

func (k driverSink) Trouble(err error) {
	k.s.mu.Lock()
	k.s.drivers.err = err
	k.s.mu.Unlock()
	if err != nil {
		k.s.cfg.Log.Info("cannot watch CSIDrivers, retrying", "err", err)
	}
}
