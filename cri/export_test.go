package cri

// Fingerprint returns the fingerprint that Relist computes for a pod in the same state.
func (s *Snapshot) Fingerprint() uint64 {
	var sum uint64
	for _, sandbox := range s.Sandboxes {
		sum += sandboxPrint(sandbox.Id, sandbox.State)
	}
	for _, c := range s.Containers {
		sum += containerPrint(c.Id, c.State)
	}
	return sum
}
