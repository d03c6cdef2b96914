package plan

import (
	"github.com/nodelet/nodelet/agent/podstate"
)

// unfitness is what makes a new sandbox unusable.
type unfitness string

const (
	// unfitDead: its process has ended.
	unfitDead unfitness = "dead"
	// unfitNoAddress: it has no address. On the host network it needs none.
	unfitNoAddress unfitness = "no-address"
)

// spoil makes a new sandbox unusable.
func (u unfitness) spoil(box *podstate.Sandbox) {
	switch u {
	case unfitDead:
		box.Ready, box.IPs = false, nil
	case unfitNoAddress:
		box.IPs = nil
	}
}
