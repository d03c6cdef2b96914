package dra

// InUse returns the number of ResourceClaims that are prepared for pods: all together, and by driver.
func (d *DRA) InUse() (total int, byDriver map[string]int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	byDriver = map[string]int{}
	for _, c := range d.claims {
		if !c.inUse() {
			continue
		}
		total++
		for driver := range c.DriverState {
			byDriver[driver]++
		}
	}
	return total, byDriver
}

// inUse reports whether the claim is prepared: in this process, or, by what its drivers have answered, in an earlier
// one. mu is held.
func (c *claim) inUse() bool {
	for _, state := range c.DriverState {
		if len(state.Devices) > 0 {
			return true
		}
	}
	return c.prepared
}
