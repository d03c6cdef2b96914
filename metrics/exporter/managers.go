package exporter

import "github.com/nodelet/nodelet/metrics"

// AddManagers adds the instruments of the CPU, memory and topology managers. Call it once.
func (e *Exporter) AddManagers() *metrics.Managers { return metrics.NewManagers(&e.main) }
