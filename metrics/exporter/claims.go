package exporter

import (
	"context"

	"github.com/nodelet/nodelet/metrics"
)

// anyDriver is the label for all claims, whatever their drivers.
const anyDriver = "<any>"

// AddClaims adds the number of ResourceClaims in use; inUse returns it for all drivers together and by driver.
func (e *Exporter) AddClaims(inUse func() (total int, byDriver map[string]int)) {
	e.main.Func(func(_ context.Context, t *metrics.Text) {
		total, byDriver := inUse()
		t.Family("dra_resource_claims_in_use", "[ALPHA] The number of ResourceClaims that are currently in use on the node, "+
			"by driver name (driver_name label value) and across all drivers (special value <any> for driver_name). A claim "+
			"may use devices of several drivers, so the sum over the drivers is not the number of claims.", metrics.KindGauge)
		t.Sample(float64(total), "driver_name", anyDriver)
		for name, n := range byDriver {
			t.Sample(float64(n), "driver_name", name)
		}
	})
}
